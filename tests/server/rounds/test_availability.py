"""Whether enough of the silos that a round asks are there; whom it asks is nobody's choice."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from silomix_server.config import load
from silomix_server.errors import StudyFailed
from silomix_server.rounds.availability import Membership
from support.consortia import make_consortium

EVERYBODY = frozenset({"silo-1", "silo-2", "silo-3"})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three silos, of which a round asks two and needs two."""
    folder = tmp_path_factory.mktemp("membership")
    return load(make_consortium(folder / "c", minimum_batch=2, participants=2).server)


@pytest.fixture(scope="module")
def all_asked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("membership")
    return load(make_consortium(folder / "c", minimum_batch=2).server)


class Channel:
    """With these followers, of whom these can answer; nobody comes while somebody waits."""

    def __init__(
        self, followers: frozenset[str], without_token: Mapping[int, frozenset[str]] | None = None
    ) -> None:
        self.followers, self.waits = followers, 0
        self._without = without_token or {}

    def ready(self, round_number: int) -> frozenset[str]:
        return self.followers - self._without.get(round_number, frozenset())

    async def wait_for(self, silos: frozenset[str], number: int, *_: object) -> frozenset[str]:
        self.waits += 1
        return self.ready(number)


def membership(
    config: Any,
    channel: Channel,
    office: object = None,
    come_back: frozenset[str] = frozenset(),
) -> Membership:
    """A further lease brings these silos back."""
    nobody = cast(Any, None)
    members = Membership(config, cast(Any, office), cast(Any, channel), nobody, None)

    async def next_lease(*_: object) -> None:
        channel.followers |= come_back

    members._next_lease = next_lease  # type: ignore[method-assign]
    return members


def enough(members: Membership, number: int) -> bool:
    return asyncio.run(members.enough(number))


def rounds_without(config: Any, silo: str) -> list[int]:
    """Rounds of the study that do not ask this silo."""
    return [number for number in range(1, 6) if silo not in config.study.asked(number)]


def test_a_round_is_played_if_those_it_asks_are_there_whoever_else_is_away(config: Any) -> None:
    for away in EVERYBODY:
        channel = Channel(EVERYBODY - {away})
        members = membership(config, channel)
        for number in rounds_without(config, away):
            assert enough(members, number)
        assert channel.waits == 0


def test_a_round_whose_silos_are_away_is_not_played_with_others(config: Any) -> None:
    """It waits for them once: in later rounds it is known that they are away."""
    for away in EVERYBODY:
        channel = Channel(EVERYBODY - {away})
        members = membership(config, channel)
        asking = [number for number in range(1, 6) if away in config.study.asked(number)]
        assert not any(enough(members, number) for number in asking)
        assert channel.waits == 1
        channel.followers = EVERYBODY
        assert all(enough(members, number) for number in asking)


def test_too_few_silos_end_a_study_that_asks_everybody(all_asked: Any) -> None:
    async def replies(*_: object) -> list[dict[str, str]]:
        return []

    members = membership(
        all_asked, Channel(frozenset({"silo-2"})), SimpleNamespace(replies=replies)
    )
    with pytest.raises(StudyFailed, match="only 1 silos are connected and a batch needs 2"):
        enough(members, 1)
    assert enough(membership(all_asked, Channel(EVERYBODY - {"silo-2"})), 1)


def test_silos_that_were_started_again_are_offered_another_lease(all_asked: Any) -> None:
    channel = Channel(frozenset({"silo-2"}))
    assert enough(membership(all_asked, channel, come_back=frozenset({"silo-3"})), 1)


def test_silos_without_a_token_are_counted_in_what_the_study_fails_of(all_asked: Any) -> None:
    channel = Channel(EVERYBODY, {1: frozenset({"silo-1", "silo-2"})})
    with pytest.raises(StudyFailed, match="2 more are connected but have no token for round 1"):
        enough(membership(all_asked, channel), 1)
    assert enough(membership(all_asked, channel), 2)


def test_silos_outside_their_hours_are_absent_and_named_if_too_few_are_left(config: Any) -> None:
    async def replies(*_: object) -> list[dict[str, str]]:
        return [{"silo": f"silo-{place}", "ending": "outside-hours"} for place in (3, 2)]

    members = membership(config, Channel(frozenset({"silo-1"})), SimpleNamespace(replies=replies))
    members._lease = cast(Any, SimpleNamespace(silos=EVERYBODY))
    with pytest.raises(StudyFailed, match="outside the hours of their policies: silo-2, silo-3;"):
        enough(members, 1)
