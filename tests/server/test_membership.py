"""Whom a round asks: as many as the study says, drawn anew, the same ones for another attempt."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from silomix_server.config import load
from silomix_server.errors import StudyFailed
from silomix_server.membership import Membership
from support.consortia import make_consortium
from support.silos import altered

EVERYBODY = frozenset({"silo-1", "silo-2", "silo-3"})
ROUNDS = 60


@pytest.fixture
def config(tmp_path: Path) -> Any:
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, minimum_batch=2)
    return load(altered(made, ("rounds = 60", "rounds = 60\nparticipants = 2")).server)


def asked(membership: Membership, number: int) -> frozenset[str]:
    return asyncio.run(membership.silos(number))


def listening(config: Any, followers: dict[int, frozenset[str]] | None = None) -> Membership:
    """With these followers in the rounds named, else with everybody."""
    present = followers or {}
    channel = SimpleNamespace(ready=lambda number: present.get(number, EVERYBODY))
    nobody = cast(Any, None)
    return Membership(config, nobody, cast(Any, channel), nobody, None)


def test_every_round_asks_as_many_as_the_study_says_and_others_every_time(config: Any) -> None:
    """Each pair is drawn 20 times of 60, with a deviation of 3.7: below 4 once in 10⁵ runs."""
    membership = listening(config)
    drawn = Counter(asked(membership, number) for number in range(1, ROUNDS + 1))
    assert {len(each) for each in drawn} == {2}
    assert len(drawn) == 3
    assert min(drawn.values()) >= 4


def test_a_further_attempt_asks_the_same_silos(config: Any) -> None:
    membership = listening(config)
    for number in range(1, 21):
        first = asked(membership, number)
        assert all(asked(membership, number) == first for _ in range(3))


def test_who_has_left_is_replaced_and_nobody_else(config: Any) -> None:
    present = {1: EVERYBODY}
    membership = listening(config, present)
    first = asked(membership, 1)
    (gone, stays) = sorted(first)
    present[1] = EVERYBODY - {gone}
    assert asked(membership, 1) == {stays, *(EVERYBODY - first)}


def test_when_few_are_there_all_of_them_are_asked(config: Any) -> None:
    assert asked(listening(config, {1: frozenset({"silo-1", "silo-3"})}), 1) == {"silo-1", "silo-3"}


def test_silos_outside_their_hours_are_absent_and_named_if_too_few_are_left(config: Any) -> None:
    async def nobody_came(*_: object) -> frozenset[str]:
        return frozenset({"silo-1"})

    async def replies(*_: object) -> list[dict[str, str]]:
        return [{"silo": f"silo-{place}", "ending": "outside-hours"} for place in (3, 2)]

    channel = SimpleNamespace(
        ready=lambda _: frozenset({"silo-1"}),
        wait_for=nobody_came,
        followers=frozenset({"silo-1"}),
    )
    office, nobody = SimpleNamespace(replies=replies), cast(Any, None)
    membership = Membership(config, cast(Any, office), cast(Any, channel), nobody, None)
    membership._lease = cast(Any, SimpleNamespace(silos=EVERYBODY))
    with pytest.raises(StudyFailed, match="outside the hours of their policies: silo-2, silo-3;"):
        asked(membership, 1)
