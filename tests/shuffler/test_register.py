"""The register: a round belongs to its first descriptor for good."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_core.study import StudyId
from silomix_protocol.descriptor import Descriptor
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.register import RoundRegister


def descriptor(round_number: int = 1, query: bytes = b"q", study: bytes = b"s" * 32) -> Descriptor:
    return Descriptor(
        study=StudyId(study),
        round=round_number,
        silos=("silo-1",),
        query=query,
        deadline_s=5.0,
        minimum_batch=1,
        encoded=b"%b %d %b" % (study, round_number, query),
        signature=b"",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.sqlite"


@pytest.fixture
def register(path: Path) -> Iterator[RoundRegister]:
    with closing(RoundRegister(path)) as opened:
        yield opened


def test_a_round_is_new_once(register: RoundRegister) -> None:
    assert register.open(descriptor()) is True
    assert register.open(descriptor()) is False


def test_a_round_takes_no_other_descriptor(register: RoundRegister) -> None:
    register.open(descriptor(query=b"one"))
    with pytest.raises(WrongRound, match="another descriptor"):
        register.open(descriptor(query=b"two"))
    assert register.open(descriptor(query=b"one")) is False, "the first one stands"


def test_rounds_and_studies_are_apart(register: RoundRegister) -> None:
    assert register.open(descriptor(1))
    assert register.open(descriptor(2))
    assert register.open(descriptor(1, study=b"t" * 32))


def test_a_round_stays_bound_when_the_mix_comes_back(path: Path) -> None:
    with closing(RoundRegister(path)) as first:
        first.open(descriptor(query=b"one"))
    with closing(RoundRegister(path)) as second:
        assert second.open(descriptor(query=b"one")) is False
        with pytest.raises(WrongRound):
            second.open(descriptor(query=b"two"))
        assert second.open(descriptor(2, query=b"two")) is True


def test_a_round_is_on_disk_before_open_returns(register: RoundRegister, path: Path) -> None:
    """Seen by another connection while the first is still open, as after a kill."""
    register.open(descriptor())
    with closing(sqlite3.connect(path)) as other:
        rows = other.execute("SELECT round, digest FROM rounds").fetchall()
    assert rows == [(1, descriptor().digest)]


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([b"a", b"b"])) | st.none(), max_size=15
    )
)
def test_reopening_the_register_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bytes] | None]
) -> None:
    """None reopens; a round answers as a dictionary of first descriptors would."""
    path = tmp_path_factory.mktemp("register") / "rounds.sqlite"
    bound: dict[int, bytes] = {}
    register = RoundRegister(path)
    try:
        for step in steps:
            if step is None:
                register.close()
                register = RoundRegister(path)
                continue
            number, query = step
            first = bound.get(number)
            if first is None:
                bound[number] = query
                assert register.open(descriptor(number, query)) is True
            elif first == query:
                assert register.open(descriptor(number, query)) is False
            else:
                with pytest.raises(WrongRound):
                    register.open(descriptor(number, query))
    finally:
        register.close()
