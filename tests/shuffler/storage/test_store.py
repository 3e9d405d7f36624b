"""What a mix keeps on disk: one descriptor per attempt, keys that really go, nothing lost."""

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.study.study import StudyId
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.storage.store import KeptReport, Over, SavedRound, Store, StoreBroken
from support.descriptors import plain_descriptor

STUDY, OTHER = StudyId(b"s" * 32), StudyId(b"t" * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    opened = Store(folder)
    yield opened
    opened.close()


def reopened(folder: Path) -> "closing[Store]":
    """What another process sees now: no step waits for `close`."""
    return closing(Store(folder))


def saved(store: Store) -> SavedRound:
    (only,) = store.unfinished()
    return only


def kept(slot: int) -> KeptReport:
    return KeptReport(slot, f"silo-{slot + 1}", b"onion %d" % slot, b"output %d" % slot)


def prepared(store: Store, number: int = 1, attempt: int = 1) -> tuple[SealKey, SealKey]:
    ((seal, release),) = store.prepare(STUDY, attempt, range(number, number + 1), gate=True)
    assert release is not None
    return seal, release


def opened(store: Store, descriptor: Descriptor) -> None:
    """Opened with keys of its own, made now if there are none."""
    seal_key, _ = store.keys(descriptor)
    if seal_key is None:
        number = descriptor.round
        try:
            ((seal_key, _),) = store.prepare(
                descriptor.study, descriptor.attempt, range(number, number + 1), gate=True
            )
        except WrongRound:
            seal_key = SealKey.generate()  # whatever it is now: the round was opened before
    store.open(descriptor, seal_key)


def sealed(
    store: Store, descriptor: Descriptor, state: State = State.SEALED, *, gate: bool = True
) -> None:
    """Opened, filled with two reports and sealed."""
    opened(store, descriptor)
    store.add([(descriptor.digest, kept(0))])
    chain = [round_pb2.HopStatement(hop=0, received=2, forwarded=2, output=b"list")]
    store.add([(descriptor.digest, kept(1))])
    store.seal(descriptor, (1, 0), chain, state, gate=gate)


# One descriptor per attempt -----------------------------------------------------------------------


def test_an_attempt_is_bound_to_its_first_descriptor(store: Store, folder: Path) -> None:
    opened(store, plain_descriptor(query=b"one"))
    for again, why in ((b"one", "is over"), (b"two", "opened with another descriptor")):
        with pytest.raises(WrongRound, match=why):
            opened(store, plain_descriptor(query=again))
    with reopened(folder) as other, pytest.raises(WrongRound):
        opened(other, plain_descriptor(query=b"two"))
    assert store.known(plain_descriptor(query=b"one").digest) == (State.OPEN, "")
    assert store.known(plain_descriptor(query=b"two").digest) is None


def test_rounds_and_studies_are_apart(store: Store) -> None:
    for descriptor in (
        plain_descriptor(1),
        plain_descriptor(2),
        plain_descriptor(1, study=OTHER),
    ):
        opened(store, descriptor)


@pytest.mark.parametrize("state", [State.OPEN, State.SEALED, State.FORWARDED, State.RELEASED])
@pytest.mark.parametrize("purged", [False, True])
def test_no_second_attempt_while_the_first_may_still_count(
    store: Store, folder: Path, state: State, purged: bool
) -> None:
    first = plain_descriptor(attempt=1)
    if state is State.OPEN:
        opened(store, first)
    else:
        sealed(store, first)
    if state in (State.FORWARDED, State.RELEASED):
        store.forwarded(first.digest)
    if state is State.RELEASED:
        store.released(first, last=False)
    if purged:
        store.purge([Over(first)])
    with pytest.raises(WrongRound, match="not aborted"):
        opened(store, plain_descriptor(attempt=2))
    with reopened(folder) as other, pytest.raises(WrongRound, match="not aborted"):
        opened(other, plain_descriptor(attempt=2))


@pytest.mark.parametrize("purged", [False, True])
def test_after_an_abort_the_next_attempt_and_never_an_earlier_one(
    store: Store, folder: Path, purged: bool
) -> None:
    opened(store, plain_descriptor(attempt=1))
    store.aborted(plain_descriptor(attempt=1), "too few")
    if purged:
        store.purge([Over(plain_descriptor(attempt=1))])
    with reopened(folder) as other:
        with pytest.raises(WrongRound):
            opened(other, plain_descriptor(attempt=1, query=b"another"))
        opened(other, plain_descriptor(attempt=2))
        with pytest.raises(WrongRound):
            opened(other, plain_descriptor(attempt=1, query=b"yet another"))
        with pytest.raises(WrongRound, match="not aborted"):
            opened(other, plain_descriptor(attempt=3))


def test_an_attempt_abandoned_before_it_was_opened_is_never_opened(
    store: Store, folder: Path
) -> None:
    prepared(store)
    store.open(plain_descriptor(), abandoned="abandoned by the coordinator")
    with reopened(folder) as other:
        assert other.known(plain_descriptor().digest) == (
            State.ABORTED,
            "abandoned by the coordinator",
        )
        assert other.keys(plain_descriptor()) == (None, None)
        with pytest.raises(WrongRound):
            opened(other, plain_descriptor())
        opened(other, plain_descriptor(attempt=2))


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "abort", "purge"]), st.integers(1, 3))
        | st.just(("reopen", 0)),
        max_size=15,
    )
)
def test_attempts_follow_one_another_however_often_the_mix_restarts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("attempts") / "state"
    aborted: dict[int, bool] = {}
    store = Store(folder)
    try:
        for step, attempt in steps:
            descriptor = plain_descriptor(attempt=attempt)
            if step == "reopen":
                store.close()
                store = Store(folder)
            elif step == "open":
                if all(each < attempt and over for each, over in aborted.items()):
                    opened(store, descriptor)
                    aborted[attempt] = False
                else:
                    with pytest.raises(WrongRound):
                        opened(store, descriptor)
            elif step == "abort" and store.known(descriptor.digest) == (State.OPEN, ""):
                store.aborted(descriptor, "reason")
                aborted[attempt] = True
            elif step == "purge" and attempt in aborted:
                store.purge([Over(descriptor)])
    finally:
        store.close()


# What a restarted mix finds -----------------------------------------------------------------------


def test_a_round_is_found_as_it_was_left_in_every_state(store: Store, folder: Path) -> None:
    descriptor = plain_descriptor()
    steps = [
        (lambda: opened(store, descriptor), State.OPEN),
        (lambda: store.add([(descriptor.digest, kept(0))]), State.OPEN),
        (lambda: seal(), State.SEALED),
        (lambda: store.forwarded(descriptor.digest), State.FORWARDED),
        (lambda: store.delivered(descriptor.digest, forget=False), State.FORWARDED),
        (lambda: store.released(descriptor, last=False), State.RELEASED),
    ]

    def seal() -> None:
        chain = [round_pb2.HopStatement(hop=0, received=2, forwarded=2, output=b"list")]
        store.add([(descriptor.digest, kept(1))])
        store.seal(descriptor, (1, 0), chain, State.SEALED, gate=True)

    for step, state in steps:
        step()
        with reopened(folder) as other:
            found = saved(other)
        assert found.state is state
        assert found.signed == descriptor.to_wire()
        assert not found.reason
    assert found.chain[0].output == b"list"


def test_reports_order_and_statements_come_back_exactly(store: Store, folder: Path) -> None:
    sealed(store, plain_descriptor())
    with reopened(folder) as other:
        found = saved(other)
    assert found.reports == (kept(0), kept(1))
    assert found.sequence == (1, 0)
    assert [(each.received, each.output) for each in found.chain] == [(2, b"list")]
    assert not found.delivered


def test_delivered_the_link_from_a_silo_to_what_went_out_is_gone(
    store: Store, folder: Path
) -> None:
    """Who sent which onion stays: the same bytes again get the same receipt."""
    sealed(store, plain_descriptor())
    store.forwarded(plain_descriptor().digest)
    store.delivered(plain_descriptor().digest, forget=True)
    with reopened(folder) as other:
        found = saved(other)
    assert found.delivered
    assert found.sequence == ()
    assert [(each.silo, each.onion) for each in found.reports] == [
        ("silo-1", b"onion 0"),
        ("silo-2", b"onion 1"),
    ]
    assert [each.output for each in found.reports] == [None, None]


def test_an_aborted_round_keeps_its_reason_and_nothing_else(store: Store, folder: Path) -> None:
    prepared(store)
    sealed(store, plain_descriptor())
    store.aborted(plain_descriptor(), "no batch came in time")
    with reopened(folder) as other:
        found = saved(other)
        assert other.keys(plain_descriptor()) == (None, None)
    assert (found.state, found.reason) == (State.ABORTED, "no batch came in time")
    assert (found.reports, found.sequence, found.chain) == ((), (), ())


def test_a_purged_round_is_only_known_to_have_been(store: Store, folder: Path) -> None:
    one, two = plain_descriptor(1), plain_descriptor(2)
    sealed(store, one)
    opened(store, two)
    store.aborted(two, "too few")
    store.purge([Over(one)])
    store.purge([Over(two)])
    with reopened(folder) as other:
        assert list(other.unfinished()) == []
        assert other.known(one.digest) == (State.PURGED, "")
        assert other.known(two.digest) == (State.PURGED, "too few")


def test_a_step_that_fails_changes_nothing(store: Store, folder: Path) -> None:
    """The second of two reports has a slot that is taken: neither is kept."""
    opened(store, plain_descriptor())
    digest = plain_descriptor().digest
    store.add([(digest, kept(0))])
    with pytest.raises(sqlite3.IntegrityError):
        store.add([(digest, kept(1)), (digest, kept(0))])
    with reopened(folder) as other:
        found = saved(other)
    assert (found.state, found.reports) == (State.OPEN, (kept(0),))
    store.add([(digest, kept(1))])


# Keys ---------------------------------------------------------------------------------------------


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


# Deleted is deleted -------------------------------------------------------------------------------


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


# The folder ---------------------------------------------------------------------------------------


def test_only_the_owner_can_read_what_is_kept(store: Store, folder: Path) -> None:
    opened(store, plain_descriptor())
    for path in (folder, store.bodies):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in folder.glob("mix.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_bodies_that_no_round_needs_are_swept(store: Store) -> None:
    needed, orphan = store.body(plain_descriptor(1).digest), store.body(plain_descriptor(2).digest)
    part = needed.with_suffix(".part")
    for path in (needed, orphan, part):
        path.write_bytes(b"body")
    store.sweep({needed})
    assert list(store.bodies.iterdir()) == [needed]


def test_a_folder_of_the_release_before_is_taken_over(folder: Path) -> None:
    with reopened(folder) as store:
        sealed(store, plain_descriptor(), State.FORWARDED)
    with closing(sqlite3.connect(folder / "mix.sqlite")) as database:
        database.execute("ALTER TABLE reports DROP COLUMN signature")
        database.execute("ALTER TABLE rounds DROP COLUMN disclosure")
        database.execute("ALTER TABLE rounds DROP COLUMN uncertain")
        database.execute("PRAGMA user_version = 1")
    with reopened(folder) as store:
        found = saved(store)
        assert (found.state, found.reports) == (State.FORWARDED, (kept(0), kept(1)))
        store.voided(plain_descriptor(), "a reason", b"disclosure")


def test_a_folder_of_another_release_is_refused_and_left_alone(folder: Path) -> None:
    with reopened(folder) as store:
        opened(store, plain_descriptor())
    with closing(sqlite3.connect(folder / "mix.sqlite")) as database:
        database.execute("PRAGMA user_version = 7")
        database.commit()
    with pytest.raises(StoreBroken, match=r"mix\.sqlite was made by another release \(format 7\)"):
        Store(folder)
    with closing(sqlite3.connect(folder / "mix.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM rounds").fetchone() == (1,)
