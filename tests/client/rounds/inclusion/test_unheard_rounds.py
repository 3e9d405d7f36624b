"""Rounds that go without a silo, or of which nothing comes: when it stops, and what it asks for."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from silomix_client.approval.approve import resume
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds import complaint_files
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.descriptor import Descriptor
from support.consortia import make_consortium
from support.inclusion import (
    OTHERS,
    Seen,
    answered,
    dropped,
    gated_of,
    lists_of,
    refused_list,
    there,
)
from support.scripted_lease import ENDED, Event, Script, Stage, follow, round_with, rounds_charged
from support.silos import abandonments, approved_silo, asked, closed_round, endings


def test_a_silo_missing_from_two_lists_complains_twice_and_stops(
    made: Consortium, config: SiloConfig
) -> None:
    """Whatever happened in between: otherwise every second round could lose a report for ever."""
    followed = follow(made, config, lists_of(dropped, there, there, dropped, there, there))
    assert followed.outcome == (Ending.MISSING, 4)
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 4
    saved = complaint_files.saved(config.state / "complaints")
    assert [each.finding(made.study).round for each in saved] == [1, 4]


def test_it_takes_no_further_lease_whoever_restarts_it_until_its_operator_says_so(
    made: Consortium, config: SiloConfig
) -> None:
    """A server can end the process, and a service manager starts it again."""
    followed = follow(made, config, lists_of(dropped, dropped), leases=2)
    assert followed.outcome == (Ending.MISSING, 0)
    assert len(followed.coordinator.requests) == 1
    assert follow(made, config, lists_of(there, first=3)).outcome == (Ending.MISSING, 0)
    assert resume(config, made.study)
    assert not resume(config, made.study), "there is nothing left to forget"
    other = follow(made, config, lists_of(there, first=3))
    assert other.outcome == (Ending.DONE, 1)


def test_missing_reports_count_over_restarts(made: Consortium, config: SiloConfig) -> None:
    assert follow(made, config, lists_of(dropped)).outcome == (Ending.DONE, 1)
    assert follow(made, config, lists_of(there, first=2)).outcome == (Ending.DONE, 1)
    assert follow(made, config, lists_of(dropped, there, first=3)).outcome == (Ending.MISSING, 1)


def test_a_missing_report_counts_once_however_often_its_list_is_shown(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def first(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        yield stage.closed(seen.descriptor[0])
        yield ENDED

    async def again(stage: Stage) -> AsyncIterator[Event]:
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        yield stage.closed(seen.descriptor[0])
        yield ENDED

    assert follow(made, config, first).outcome == (Ending.DONE, 1)
    for _ in range(3):
        assert follow(made, config, again).outcome == (Ending.DONE, 0)
    assert follow(made, config, lists_of(there, first=2)).outcome == (Ending.DONE, 1)


def test_a_count_that_somebody_changed_is_one_that_stops(
    made: Consortium, config: SiloConfig
) -> None:
    follow(made, config, lists_of(dropped))
    (path,) = (config.state / "neglect").iterdir()
    path.write_text("{}")
    assert follow(made, config, lists_of(there, first=2)).outcome == (Ending.MISSING, 0)


def test_rounds_that_go_as_they_should_write_no_count(made: Consortium, config: SiloConfig) -> None:
    follow(made, config, lists_of(there, there))
    assert not (config.state / "neglect").exists()


def test_a_list_with_almost_our_digest_is_one_without_it(
    made: Consortium, config: SiloConfig
) -> None:
    def almost(gated: bytes) -> list[bytes]:
        return [OTHERS[0], gated[:-1] + bytes([gated[-1] ^ 1])]

    assert follow(made, config, lists_of(almost, almost)).ending is Ending.MISSING


@pytest.mark.parametrize("how", ["never closed", "closed without a list", "void without a word"])
def test_rounds_of_which_nothing_is_shown_stop_a_silo_after_eight(
    made: Consortium, config: SiloConfig, how: str
) -> None:
    """The server may say what it likes: without statements of the mixes nobody knows."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 11):
            async for event in answered(stage, seen, number):
                yield event
            if how == "closed without a list":
                yield stage.closed(seen.descriptor[-1])
            elif how == "void without a word":
                yield Event(closed=closed_round(made, seen.descriptor[-1], void=True, ended=()))
        await asyncio.Event().wait()

    assert follow(made, config, script).outcome == (Ending.MISSING, 8)


def test_a_report_that_was_in_the_list_is_not_missing_though_nobody_said_that_the_round_closed(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 12):
            async for event in answered(stage, seen, number):
                yield event
            yield stage.committed(seen.descriptor[-1], there(gated_of(made, seen)))
            await stage.said("answer")
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 11)


def test_a_later_attempt_that_is_refused_does_not_make_up_for_a_round_of_which_nothing_came(
    made: Consortium, config: SiloConfig
) -> None:
    """The server pretends that every round it is silent about is tried again."""

    def pretending(number: int) -> Script:
        async def script(stage: Stage) -> AsyncIterator[Event]:
            seen = Seen()
            async for event in answered(stage, seen, number):
                yield event
            wrong = abandonments(made, seen.descriptor[0].digest, [0])
            for event in stage.opened(number, 2, wrong)[1]:
                yield event
            await asyncio.Event().wait()

        return script

    scripts = [pretending(number) for number in range(1, 6)]
    assert follow(made, config, *scripts, leases=5).outcome == (Ending.REFUSED, 1)
    scripts = [pretending(number) for number in range(6, 11)]
    assert follow(made, config, *scripts, leases=4).outcome == (Ending.MISSING, 0)
    assert rounds_charged(config) == 8, "the silo was started again: what it sent before counts"


Heard = tuple[Callable[[bytes], list[bytes]] | None, bool]  # the list, and whether it was void
GOOD: Heard = (there, False)
VOID: Heard = (None, True)
NOT_OPENED: Heard = (there, True)  # confirmed, and then too few others did
SILENT: Heard = (None, False)  # said to be used, without a list


def rounds_of(*heard: Heard, first: int = 1) -> Script:
    """A lease whose rounds end like this."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number, (published, void) in enumerate(heard, start=first):
            if published is not None:
                async for event in round_with(stage, number, published, void=void):
                    yield event
                continue
            seen = Seen()
            async for event in answered(stage, seen, number):
                yield event
            yield stage.closed(seen.descriptor[0], void=void)
        yield ENDED

    return script


@pytest.mark.parametrize("void", [VOID, NOT_OPENED], ids=["no list", "confirmed"])
def test_rounds_that_every_mix_made_void_do_not_stop_a_silo(
    made: Consortium, config: SiloConfig, void: Heard
) -> None:
    """A coordinator or a mix that dies in the middle of rounds loses nothing but budget."""
    assert follow(made, config, rounds_of(*[void] * 20)).outcome == (Ending.DONE, 20)


def test_without_a_gate_a_void_round_is_one_of_which_nothing_came(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What the mixes state shows nothing there: the server could open every report at once."""
    folder = tmp_path_factory.mktemp("no-gate-void") / "consortium"
    open_study = make_consortium(folder, gate=False, rounds=24)
    followed = follow(open_study, approved_silo(open_study), rounds_of(*[VOID] * 12))
    assert followed.outcome == (Ending.MISSING, 8)


def forged(made: Consortium, descriptor: Descriptor) -> channel_pb2.RoundClosed:
    closed = closed_round(made, descriptor, void=True)
    closed.endings[1].voided.signature = closed.endings[0].voided.signature
    return closed


def short(made: Consortium, descriptor: Descriptor) -> channel_pb2.RoundClosed:
    return closed_round(made, descriptor, void=True, ended=endings(made, descriptor.digest)[:1])


def of_another_round(made: Consortium, descriptor: Descriptor) -> channel_pb2.RoundClosed:
    other = endings(made, asked(made, 2).descriptor.digest)
    return closed_round(made, descriptor, void=True, ended=other)


def unsigned_word(made: Consortium, descriptor: Descriptor) -> channel_pb2.RoundClosed:
    closed = closed_round(made, descriptor, void=True)
    closed.void = False
    return closed


def contrary(made: Consortium, descriptor: Descriptor) -> channel_pb2.RoundClosed:
    return closed_round(made, descriptor, void=False)


@pytest.mark.parametrize("change", [forged, short, of_another_round, unsigned_word])
def test_a_word_about_a_round_that_does_not_hold_ends_the_lease(
    made: Consortium,
    config: SiloConfig,
    change: Callable[[Consortium, Descriptor], channel_pb2.RoundClosed],
) -> None:
    refused_list(made, config, lambda _, seen: Event(closed=change(made, seen.descriptor[0])))


def test_a_server_that_takes_its_word_back_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    follow(made, config, rounds_of(VOID))

    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield Event(closed=contrary(made, asked(made, 1).descriptor))
        await asyncio.Event().wait()

    assert follow(made, config, script).outcome == (Ending.REFUSED, 0)


def test_a_silo_that_is_not_heard_in_eight_of_sixteen_rounds_stops(
    made: Consortium, config: SiloConfig
) -> None:
    """Though never twice in a row."""
    heard = [*[SILENT, GOOD] * 7, GOOD, SILENT, GOOD, GOOD]
    followed = follow(made, config, rounds_of(*heard))
    assert followed.outcome == (Ending.MISSING, 16)
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 16


def test_seven_of_sixteen_rounds_are_put_up_with_for_ever(
    made: Consortium, config: SiloConfig
) -> None:
    heard = [SILENT] * 7 + [GOOD] * 9 + [SILENT] * 7 + [GOOD]
    assert follow(made, config, rounds_of(*heard)).outcome == (Ending.DONE, 24)


def test_rounds_are_counted_over_leases_until_the_operator_resumes_the_study(
    made: Consortium, config: SiloConfig
) -> None:
    leases = [rounds_of(*[SILENT] * 4, first=first) for first in (1, 5, 9)]
    followed = follow(made, config, *leases, leases=3)
    assert followed.outcome == (Ending.MISSING, 0)
    assert follow(made, config, rounds_of(GOOD, first=9)).outcome == (Ending.MISSING, 0)
    assert resume(config, made.study)
    assert follow(made, config, rounds_of(GOOD, first=9)).outcome == (Ending.DONE, 1)


def test_a_round_that_is_asked_again_and_again_counts_once(
    made: Consortium, config: SiloConfig
) -> None:
    """Else one good round, repeated, would make a silo forget all of which nothing came."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for heard in (rounds_of(*[SILENT] * 7), *[rounds_of(GOOD, first=8)] * 16):
            async for event in heard(stage):
                if not event.HasField("ended"):
                    yield event
        async for event in rounds_of(SILENT, SILENT, first=9)(stage):
            yield event

    assert follow(made, config, script).outcome == (Ending.MISSING, 7 + 16 + 1)
    assert rounds_charged(config) == 9


def test_a_silo_says_which_report_it_knows_nothing_of_and_hears_it_first(
    made: Consortium, config: SiloConfig
) -> None:
    """The coordinator died behind the answers, again and again: nobody stops."""
    for number in range(1, 12):
        seen = Seen()

        async def dying(
            stage: Stage, seen: Seen = seen, number: int = number
        ) -> AsyncIterator[Event]:
            if number > 1:
                yield stage.closed(asked(made, number - 1).descriptor, void=True)
            async for event in answered(stage, seen, number):
                yield event
            yield ENDED

        followed = follow(made, config, dying)
        assert followed.outcome == (Ending.DONE, 1)
        (request,) = followed.coordinator.requests
        before = asked(made, number - 1).descriptor.digest if number > 1 else b""
        assert request.unsettled == before
    assert not (config.state / "neglect").exists()


def test_a_silo_that_knows_what_became_of_its_report_asks_nothing(
    made: Consortium, config: SiloConfig
) -> None:
    for first, heard in ((1, GOOD), (2, VOID), (3, GOOD)):
        followed = follow(made, config, rounds_of(heard, first=first))
        assert [each.unsettled for each in followed.coordinator.requests] == [b""]
