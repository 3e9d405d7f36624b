"""A report that is missing from a list: what a silo complains about, and what shows who lost it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import grpc
import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import SiloError
from silomix_client.rounds import complaint_files
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import BrokenChain
from support.inclusion import (
    OTHERS,
    Seen,
    answered,
    dropped,
    gated_of,
    lists_of,
    said_nothing,
    there,
)
from support.scripted_lease import ENDED, Event, PlayedMix, Stage, follow, passages, round_with
from support.silos import asked, open_ledger, round_of


def lost(hop: int, gated: bytes, between: bytes) -> list[list[bytes]]:
    """What the two mixes put out and commit to, when the report is lost at `hop` (2: only in the
    committed list)."""
    first, last, listed = [*OTHERS, between], [*OTHERS, gated], [*OTHERS, gated]
    if hop == 0:
        first = last = listed = OTHERS
    elif hop == 1:
        last = listed = OTHERS
    else:
        listed = OTHERS
    return [list(first), list(last), list(listed)]


def between_mixes(made: Consortium, seen: Seen) -> bytes:
    """The digest of the last report when the second mix gets it."""
    descriptor = seen.descriptor[-1]
    layer = round_of(made, descriptor.round).mixes[0].seal
    return sha256(open_layer(seen.onions[-1], layer, 0, descriptor.digest)).digest()


@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_complaint_says_that_a_report_is_missing_and_only_the_operator_s_copy_who_lost_it(
    made: Consortium, config: SiloConfig, hop: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    sent: list[channel_pb2.Complaint] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        *outputs, listed = lost(hop, gated_of(made, seen), between_mixes(made, seen))
        yield stage.committed(seen.descriptor[0], listed)
        sent.append(await stage.complained())
        for event in passages(made, seen.descriptor[0], outputs):
            yield event
        yield stage.closed(seen.descriptor[0])
        async for event in round_with(stage, 2, there):
            yield event
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 2)
    assert said_nothing(followed), "nobody else is told where it was lost"
    accused = ["mix-1", "mix-2", "mix-2"][hop]
    assert f"report_lost round=1 accused={accused}" in caplog.text
    (complaint,) = sent
    assert check_complaint(complaint, made.study) == ComplaintFinding("silo-1", 1, None)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.study == made.study.identity
    assert copy.finding(made.study) == ComplaintFinding("silo-1", 1, accused)
    assert copy.path.name == f"1-{seen.descriptor[0].digest.hex()[:12]}.json"
    assert copy.path.stat().st_mode & 0o777 == 0o600
    assert copy.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_complaint_on_the_wire_has_nothing_of_the_report_but_its_receipt(
    made: Consortium, config: SiloConfig, hop: int
) -> None:
    seen = Seen()
    frames: list[bytes] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        *_, listed = lost(hop, gated_of(made, seen), between_mixes(made, seen))
        yield stage.committed(seen.descriptor[0], listed)
        for kind in ("answer", "inspect"):
            frames.append((await stage.said(kind)).SerializeToString())
        yield ENDED

    follow(made, config, script)
    complaint = channel_pb2.SiloFrame.FromString(frames[0]).answer.complaint
    assert not complaint.trail
    assert not complaint.chain
    ledger = open_ledger(config)
    report = ledger.account(made.study).stored(1)
    ledger.close()
    assert report is not None
    onion, *layers = report.trail
    assert layers == [between_mixes(made, seen), gated_of(made, seen)]
    assert complaint.receipt.report == onion
    complaint.receipt.ClearField("report")
    said = complaint.SerializeToString() + frames[1]
    assert not any(each in said for each in report.trail)
    assert not any(each in frames[0] for each in layers)


def test_the_operator_s_copy_is_there_before_any_mix_made_a_statement(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()
    found: list[list[ComplaintFinding]] = []

    def copies() -> list[ComplaintFinding]:
        saved = complaint_files.saved(config.state / "complaints")
        return [each.finding(made.study) for each in saved]

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        found.append(copies())
        for event in passages(made, seen.descriptor[0], [OTHERS, OTHERS]):
            yield event
        yield ENDED

    follow(made, config, script)
    assert found == [[ComplaintFinding("silo-1", 1, None)]]
    assert copies() == [ComplaintFinding("silo-1", 1, "mix-1")]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_that_is_shown_again_does_not_take_the_statements_from_the_copy(
    made: Consortium, config: SiloConfig, restarted: bool
) -> None:
    """The same complaint is made again; the statements are withheld this time."""
    seen = Seen()
    sent: list[channel_pb2.Complaint] = []

    async def first(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        sent.append(await stage.complained())
        for event in passages(made, seen.descriptor[0], [OTHERS, OTHERS]):
            yield event
        yield ENDED

    async def again(stage: Stage) -> AsyncIterator[Event]:
        yield stage.committed(seen.descriptor[0], OTHERS)
        sent.append(await stage.complained())
        yield ENDED

    if restarted:
        follow(made, config, first)
        follow(made, config, again)
    else:
        follow(made, config, first, again, leases=2)
    assert sent[0] == sent[1]
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study).accused == "mix-1"


def test_a_copy_that_was_changed_shows_nothing(made: Consortium, config: SiloConfig) -> None:
    follow(made, config, lists_of(dropped))
    (copy,) = complaint_files.saved(config.state / "complaints")
    copy.complaint.trail[0] = bytes(32)
    with pytest.raises(BrokenChain):
        copy.finding(made.study)
    copy.path.write_text("{")
    with pytest.raises(SiloError, match="not a complaint"):
        complaint_files.saved(config.state / "complaints")


def test_there_are_no_complaints_before_the_first(config: SiloConfig) -> None:
    assert complaint_files.saved(config.state / "complaints") == []


def test_the_next_round_is_answered_while_statements_are_still_to_come(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        yield stage.closed(seen.descriptor[0])
        first, last = passages(made, seen.descriptor[0], [OTHERS, OTHERS])
        yield first
        async for event in round_with(stage, 2, there):
            yield event
        yield last
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 2)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study).accused == "mix-1"


def test_statements_may_come_after_the_end_of_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def late(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        yield stage.closed(seen.descriptor[0])
        await stage.complained()
        for event in [ENDED, *passages(made, seen.descriptor[0], [OTHERS, OTHERS])]:
            yield event

    followed = follow(made, config, late)
    assert followed.ending is Ending.DONE
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study).accused == "mix-1"


@pytest.mark.parametrize("shown", [0, 1])
def test_statements_that_never_come_hold_nobody_up(
    made: Consortium, config: SiloConfig, shown: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in (1, 2):
            async for event in answered(stage, seen, number):
                yield event
            yield stage.committed(seen.descriptor[-1], OTHERS)
            await stage.complained()
            for event in passages(made, seen.descriptor[-1], [OTHERS, OTHERS])[:shown]:
                yield event
        await asyncio.Event().wait()

    assert follow(made, config, script).outcome == (Ending.MISSING, 2)
    assert "statements_withheld round=1" in caplog.text
    assert "statements_withheld round=2" in caplog.text
    copies = complaint_files.saved(config.state / "complaints")
    findings = [copy.finding(made.study) for copy in copies]
    assert findings == [ComplaintFinding("silo-1", 1, None), ComplaintFinding("silo-1", 2, None)]


def turned(events: list[Event]) -> list[Event]:
    return events[::-1]


def unsigned(events: list[Event]) -> list[Event]:
    events[0].passage.statement.signature = b""
    return events


def miscounted(events: list[Event]) -> list[Event]:
    events[1].passage.statement.forwarded += 1
    return events


def twice(events: list[Event]) -> list[Event]:
    return [events[0], events[0]]


@pytest.mark.parametrize("change", [turned, unsigned, miscounted, twice])
def test_statements_that_do_not_hold_end_the_lease_and_nobody_is_accused(
    made: Consortium, config: SiloConfig, change: Callable[[list[Event]], list[Event]]
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        for event in change(passages(made, seen.descriptor[0], [OTHERS, OTHERS])):
            yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert said_nothing(followed)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study) == ComplaintFinding("silo-1", 1, None)


def test_statements_that_nobody_asked_for_change_nothing(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        for event in passages(made, seen.descriptor[0], [OTHERS, OTHERS]):
            yield event
        yield stage.committed(seen.descriptor[0], OTHERS)
        await stage.complained()
        for event in passages(made, asked(made, 2).descriptor, [OTHERS, OTHERS]):
            yield event
        for event in passages(made, seen.descriptor[0], [OTHERS, OTHERS]):
            yield event
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 1)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study).accused == "mix-1"


def refusing(mix: PlayedMix) -> None:
    receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="this round is over")
    mix.reply = lambda digest, report: receipt


def over(mix: PlayedMix) -> None:
    mix.breaks, mix.code = 1000, grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("refuse", [refusing, over])
def test_reports_that_the_mix_refused_are_not_lost_but_eight_of_them_end_it(
    made: Consortium,
    config: SiloConfig,
    caplog: pytest.LogCaptureFixture,
    refuse: Callable[[PlayedMix], None],
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 21):
            async for event in answered(stage, seen, number):
                yield event
            yield stage.committed(seen.descriptor[-1], OTHERS)
            yield stage.closed(seen.descriptor[-1])
        await asyncio.Event().wait()

    followed = follow(made, config, script, prepare=refuse)
    assert followed.outcome == (Ending.MISSING, 8)
    assert said_nothing(followed)
    assert "the first mix gave no receipt" in caplog.text


def test_a_receipt_is_kept_over_a_restart(made: Consortium, config: SiloConfig) -> None:
    seen = Seen()
    sent: list[channel_pb2.Complaint] = []

    async def first(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield ENDED

    async def then(stage: Stage) -> AsyncIterator[Event]:
        yield stage.committed(seen.descriptor[0], OTHERS)
        sent.append(await stage.complained())
        for event in passages(made, seen.descriptor[0], [OTHERS, OTHERS]):
            yield event
        yield ENDED

    follow(made, config, first)
    assert follow(made, config, then).outcome == (Ending.DONE, 0)
    assert check_complaint(sent[0], made.study) == ComplaintFinding("silo-1", 1, None)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study).accused == "mix-1"
