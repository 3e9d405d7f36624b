"""A mix's keys of a round: made once, kept while they are needed, gone from the disk after that."""

from pathlib import Path

import pytest
from silomix_protocol.keys import SealKey
from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.storage.store import KeptReport, Over, Store
from support.descriptors import plain_descriptor
from support.stored_rounds import OTHER, STUDY, opened, prepared, reopened, saved, sealed


def raws(made: list[tuple[SealKey, SealKey | None]]) -> list[tuple[bytes, bytes | None]]:
    return [(seal.raw, release.raw if release else None) for seal, release in made]


def test_keys_are_made_once_however_often_they_are_asked_for(store: Store, folder: Path) -> None:
    made = raws(store.prepare(STUDY, 1, range(1, 5), gate=True))
    assert len({key for pair in made for key in pair}) == 8, "all fresh"
    assert raws(store.prepare(STUDY, 1, range(1, 5), gate=True)) == made
    with reopened(folder) as other:
        assert raws(other.prepare(STUDY, 1, range(3, 7), gate=True))[:2] == made[2:]


def test_attempts_and_studies_have_keys_of_their_own(store: Store) -> None:
    keys = [
        raws(store.prepare(study, attempt, range(1, 2), gate=True))[0]
        for study, attempt in [(STUDY, 1), (STUDY, 2), (OTHER, 1)]
    ]
    assert len(set(keys)) == 3


def test_without_a_gate_there_is_no_release_key(store: Store) -> None:
    ((_, release),) = store.prepare(STUDY, 1, range(1, 2), gate=False)
    assert release is None
    assert store.keys(plain_descriptor())[1] is None


def test_an_opened_attempt_gets_no_keys_again(store: Store) -> None:
    """Otherwise two descriptors could name keys of one attempt."""
    prepared(store, 2)
    opened(store, plain_descriptor(2))
    for rounds in (range(2, 3), range(1, 4)):
        with pytest.raises(WrongRound, match="attempt 1 of round 2 was opened already"):
            store.prepare(STUDY, 1, rounds, gate=True)
    store.aborted(plain_descriptor(2), "reason")
    with pytest.raises(WrongRound):
        store.prepare(STUDY, 1, range(2, 3), gate=True)
    store.prepare(STUDY, 2, range(2, 3), gate=True)


def test_what_was_purged_is_not_brought_back(store: Store) -> None:
    """A key may be given away while an older round than that is being purged."""
    sealed(store, plain_descriptor(), State.FORWARDED)
    store.purge([Over(plain_descriptor())])
    store.released(plain_descriptor(), last=False)
    assert store.known(plain_descriptor().digest) == (State.PURGED, "")


def test_sealed_without_a_gate_the_seal_key_is_gone(store: Store) -> None:
    sealed(store, plain_descriptor(), gate=False)
    assert store.keys(plain_descriptor())[0] is None


def test_behind_a_gate_the_seal_key_stays_until_the_release_key_is_given(store: Store) -> None:
    seal, release = prepared(store)
    descriptor = plain_descriptor()
    sealed(store, descriptor)
    found = store.keys(descriptor)
    assert [key.raw for key in found if key] == [seal.raw, release.raw]
    store.forwarded(descriptor.digest)
    store.released(descriptor, last=False)
    gone, left = store.keys(descriptor)
    assert gone is None
    assert left is not None
    assert left.raw == release.raw
    store.purge([Over(descriptor)])
    assert store.keys(descriptor) == (None, None)


def test_voided_no_key_is_left_and_what_is_disclosed_is_kept(store: Store, folder: Path) -> None:
    seal, release = prepared(store)
    descriptor = plain_descriptor()
    sealed(store, descriptor, State.FORWARDED)
    store.voided(descriptor, "a reason", b"disclosure")
    assert store.keys(descriptor) == (None, None)
    assert anywhere(folder, seal.raw) == anywhere(folder, release.raw) == []
    with reopened(folder) as other:
        found = saved(other)
        assert (found.state, found.reason) == (State.VOIDED, "a reason")
        assert (found.disclosed, found.sequence, found.delivered) == (b"disclosure", (), True)
        other.released(descriptor, last=False)
        assert other.known(descriptor.digest) == (State.VOIDED, "a reason"), "void for good"
        other.purge([Over(descriptor, unopened=True)])
        assert list(other.unfinished()) == []
        assert other.known(descriptor.digest) == (State.VOIDED, "a reason")
    with pytest.raises(WrongRound, match="not aborted"):
        opened(store, plain_descriptor(attempt=2))


def test_what_was_forwarded_and_is_purged_unopened_is_void(store: Store) -> None:
    descriptor = plain_descriptor()
    sealed(store, descriptor, State.FORWARDED)
    store.purge([Over(descriptor, unopened=True)])
    assert store.known(descriptor.digest) == (State.VOIDED, "nobody asked to open it")
    assert store.keys(descriptor) == (None, None)
    with pytest.raises(WrongRound, match="not aborted"):
        opened(store, plain_descriptor(attempt=2))


def test_a_mix_says_of_a_purged_round_that_it_is_void_when_that_is_surely_on_disk(
    store: Store,
) -> None:
    """A purge does not wait for the disk: a power cut would bring the key back."""
    descriptor = plain_descriptor()
    sealed(store, descriptor, State.FORWARDED)
    assert store.void_for_good(descriptor.digest) is None
    store.purge([Over(descriptor, unopened=True)])
    done: list[str] = []
    store._database.set_trace_callback(done.append)
    assert store.void_for_good(descriptor.digest) == ("nobody asked to open it", False)
    store._database.set_trace_callback(None)
    written, read = done.index("COMMIT"), [each.startswith("SELECT") for each in done].index(True)
    assert "PRAGMA user_version" in done[written - 1], "a commit that writes something"
    assert written < read
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,), "and waits for it"


@pytest.mark.parametrize("voided", [False, True])
def test_that_a_mix_is_not_certain_is_kept_for_good(
    store: Store, folder: Path, voided: bool
) -> None:
    descriptor = plain_descriptor()
    sealed(store, descriptor, State.FORWARDED)
    if voided:
        store.voided(descriptor, "a reason", b"", uncertain=True)
        with reopened(folder) as other:
            assert saved(other).uncertain
    store.purge([Over(descriptor, unopened=True, uncertain=True)])
    with reopened(folder) as other:
        found = other.void_for_good(descriptor.digest)
    assert found == ("a reason" if voided else "nobody asked to open it", True)


def test_unused_keys_of_rounds_gone_by_are_thrown_away(store: Store) -> None:
    store.prepare(STUDY, 1, range(1, 4), gate=True)
    opened(store, plain_descriptor(1))
    store.prepare(STUDY, 1, range(4, 6), gate=True)
    assert store.keys(plain_descriptor(1))[0] is not None, "in use"
    assert store.keys(plain_descriptor(2)) == (None, None)
    assert store.keys(plain_descriptor(4))[0] is not None


def test_rotation_throws_away_what_no_round_uses_and_counts_it(store: Store, folder: Path) -> None:
    before = raws(store.prepare(STUDY, 1, range(1, 6), gate=True))
    opened(store, plain_descriptor(1))
    with reopened(folder) as other:
        assert other.rotate() == 4
        assert other.rotate() == 0
    seal, _ = store.keys(plain_descriptor(1))
    assert seal is not None, "the open round goes on"
    assert seal.raw == before[0][0]
    assert store.keys(plain_descriptor(2)) == (None, None)
    after = raws(store.prepare(STUDY, 1, range(2, 6), gate=True))
    assert not {key for pair in before for key in pair} & {key for pair in after for key in pair}


def anywhere(folder: Path, secret: bytes) -> list[str]:
    """Files of the database, log included, that hold these bytes (or a good part of them)."""
    files = sorted(folder.glob("mix.sqlite*"))
    assert files
    return [path.name for path in files if secret[:32] in path.read_bytes()]


def test_a_secret_that_is_kept_is_found_by_this_search(store: Store, folder: Path) -> None:
    """Or the next tests would prove nothing."""
    seal, release = prepared(store)
    assert anywhere(folder, seal.raw)
    store.tidy()
    assert anywhere(folder, seal.raw) == anywhere(folder, release.raw) == ["mix.sqlite"]


def test_no_byte_of_a_deleted_key_stays_in_the_files(store: Store, folder: Path) -> None:
    made = store.prepare(STUDY, 1, range(1, 65), gate=True)
    for number in range(1, 60):
        sealed(store, plain_descriptor(number), gate=False)
        if number % 3 == 0:
            store.purge([Over(plain_descriptor(number))])
        if number % 7 == 0:
            store.prepare(STUDY, 2, range(number, number + 1), gate=True)
            store.tidy()
    store.open(plain_descriptor(60), abandoned="reason")
    store.rotate()
    store.tidy()
    assert anywhere(folder, made[60][0].raw) == [], "rotated"
    for number, (seal, release) in enumerate(made[:60], start=1):
        assert release is not None
        assert anywhere(folder, seal.raw) == [], f"seal key of round {number}"
        gone = number % 3 == 0 or number == 60
        assert bool(anywhere(folder, release.raw)) is not gone, f"release key of round {number}"


def test_who_sent_what_is_not_in_the_files_of_a_purged_round(store: Store, folder: Path) -> None:
    descriptor = plain_descriptor()
    opened(store, descriptor)
    onions = [bytes([number]) * 32 for number in range(1, 40)]
    store.add(
        [
            (descriptor.digest, KeptReport(slot, "silo-x", onion, bytes([slot + 100]) * 32))
            for slot, onion in enumerate(onions)
        ]
    )
    store.tidy()
    assert anywhere(folder, onions[0])
    store.purge([Over(descriptor)])
    store.tidy()
    for onion in onions:
        assert anywhere(folder, onion) == []
