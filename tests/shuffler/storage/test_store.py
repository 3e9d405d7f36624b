"""What a mix keeps on disk: one descriptor per attempt, keys that really go, nothing lost."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_proto import round_pb2
from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.storage.store import Over, Store, StoreBroken
from support.descriptors import plain_descriptor
from support.stored_rounds import OTHER, kept, opened, prepared, reopened, saved, sealed


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
