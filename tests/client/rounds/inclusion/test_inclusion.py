"""Is our report in the batch?  What a silo confirms, what it complains about, when it stops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from silomix_client.approval.approve import resume
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import SiloError
from silomix_client.rounds import complaint_files
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import (
    BrokenChain,
    check_confirmation,
    digests,
    sign_commitment,
)
from support.consortia import make_consortium
from support.coordinators import parties
from support.scripted_lease import (
    ENDED,
    Event,
    Followed,
    PlayedMix,
    Script,
    Stage,
    follow,
    gated_digest,
    passages,
    round_with,
    rounds_charged,
)
from support.silos import (
    abandonments,
    approved_silo,
    asked,
    closed_round,
    committed_list,
    copied,
    endings,
    open_ledger,
    round_of,
    server_key,
)
from support.voids import VoidRound, void_round

OTHERS = [bytes(32), b"\1" * 32]


@pytest.fixture(scope="module")
def two_mixes(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("two-mixes") / "consortium"
    return make_consortium(folder, minimum_batch=2, rounds=24)


@pytest.fixture
def made(two_mixes: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    no_pause = SimpleNamespace(uniform=lambda low, high: 0.0)
    monkeypatch.setattr("silomix_protocol.host.backoff.random", no_pause)
    monkeypatch.setattr("silomix_client.rounds.lease._STATEMENTS_S", 1.0)
    return copied(two_mixes, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)


def there(gated: bytes) -> list[bytes]:
    return [OTHERS[0], gated, OTHERS[1]]


def dropped(gated: bytes) -> list[bytes]:
    return list(OTHERS)


@dataclass
class Seen:
    """What a script saw of a round."""

    descriptor: list[Descriptor] = field(default_factory=list)
    onions: list[bytes] = field(default_factory=list)
    frames: list[channel_pb2.SiloFrame] = field(default_factory=list)


async def answered(stage: Stage, seen: Seen, number: int = 1) -> AsyncIterator[Event]:
    """A round is opened, and its report awaited."""
    descriptor, events = stage.opened(number)
    seen.descriptor.append(descriptor)
    for event in events:
        yield event
    seen.onions.append(await stage.mix.onions.get())


def gated_of(made: Consortium, seen: Seen) -> bytes:
    return gated_digest(made, seen.onions[-1], seen.descriptor[-1])


def said_nothing(followed: Followed) -> bool:
    return all(stage.frames.empty() for stage in followed.coordinator.stages)


# Confirmations -----------------------------------------------------------------------------------


def test_a_silo_whose_report_is_there_confirms_the_whole_list_and_never_its_own_digest(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield stage.committed(seen.descriptor[0], there(gated_of(made, seen)))
        seen.frames.append(await stage.said("answer"))
        yield stage.closed(seen.descriptor[0])
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 1)
    assert said_nothing(followed)
    (frame,) = seen.frames
    digest, answer = seen.descriptor[0].digest, frame.answer
    assert (answer.digest, answer.WhichOneof("answer")) == (digest, "confirmation")
    joined = b"".join(there(gated_of(made, seen)))
    list_hash = sha256(joined).digest()
    assert check_confirmation(answer.confirmation, digest, list_hash, made.study) == "silo-1"
    ledger = open_ledger(config)
    report = ledger.account(made.study).stored(1)
    ledger.close()
    assert report is not None
    assert not any(each in frame.SerializeToString() for each in report.trail)


def test_a_list_that_comes_with_the_word_that_its_round_is_over_is_checked_and_not_confirmed(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        late = stage.committed(seen.descriptor[0], there(gated_of(made, seen)))
        late.more.append(stage.closed(seen.descriptor[0]))
        yield late
        async for event in answered(stage, seen, 2):
            yield event
        late = stage.committed(seen.descriptor[1], OTHERS)
        late.more.append(stage.closed(seen.descriptor[1]))
        yield late
        seen.frames.append(await stage.said("answer"))
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 2)
    (frame,) = seen.frames
    assert frame.answer.digest == seen.descriptor[1].digest
    assert frame.answer.HasField("complaint"), "a missing report is told, however late"


def test_without_a_gate_nothing_is_confirmed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("no-gate") / "consortium"
    open_study = make_consortium(folder, gate=False)
    followed = follow(open_study, approved_silo(open_study), lists_of(there, there))
    assert followed.outcome == (Ending.DONE, 2)
    assert said_nothing(followed)


def refused_list(
    made: Consortium, config: SiloConfig, committed: Callable[[Stage, Seen], Event]
) -> None:
    """This list ends the lease, and nothing is said to it."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield committed(stage, seen)
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert said_nothing(followed)


@dataclass(frozen=True, slots=True)
class Signing:
    """A list that is to be signed, and its signatures as they should be."""

    made: Consortium
    descriptor: Descriptor
    listed: list[bytes]

    def of(self, listed: list[bytes]) -> list[bytes]:
        return list(committed_list(self.made, self.descriptor.digest, listed).signatures)

    @property
    def good(self) -> list[bytes]:
        return self.of(self.listed)

    @property
    def by_server(self) -> bytes:
        list_hash = sha256(b"".join(self.listed)).digest()
        return sign_commitment(self.descriptor.digest, list_hash, server_key(self.made))


SIGNATURES: dict[str, Callable[[Signing], list[bytes]]] = {
    "none": lambda signing: [],
    "the-first-missing": lambda signing: signing.good[1:],
    "the-last-missing": lambda signing: signing.good[:1],
    "one-too-many": lambda signing: [*signing.good, signing.good[0]],
    "an-empty-one": lambda signing: [signing.good[0], b""],
    "a-forged-one": lambda signing: [bytes(64), signing.good[1]],
    "reordered": lambda signing: signing.good[::-1],
    "one-mix-for-both": lambda signing: [signing.good[1]] * 2,
    "the-server-for-a-mix": lambda signing: [signing.good[0], signing.by_server],
    "the-server-alone": lambda signing: [signing.by_server],
    "one-mix-stands-by-another-list": lambda signing: [
        signing.good[0],
        signing.of([*OTHERS, b"\3" * 32])[1],
    ],
    "of-the-same-reports-in-another-order": lambda signing: signing.of(signing.listed[::-1]),
}


@pytest.mark.parametrize("published", [there, dropped], ids=["there", "missing"])
@pytest.mark.parametrize("signatures", SIGNATURES.values(), ids=SIGNATURES)
def test_a_list_that_not_every_mix_stands_by_ends_the_lease(
    made: Consortium,
    config: SiloConfig,
    signatures: Callable[[Signing], list[bytes]],
    published: Callable[[bytes], list[bytes]],
) -> None:
    """Whether our report is in it or not: neither a confirmation nor a complaint."""

    def committed(stage: Stage, seen: Seen) -> Event:
        listed = published(gated_of(made, seen))
        event = stage.committed(seen.descriptor[0], listed)
        del event.committed.signatures[:]
        event.committed.signatures.extend(signatures(Signing(made, seen.descriptor[0], listed)))
        return event

    refused_list(made, config, committed)
    assert complaint_files.saved(config.state / "complaints") == []


def test_a_list_that_not_every_mix_stands_by_is_not_the_one_of_its_round(
    made: Consortium, config: SiloConfig
) -> None:
    """It is not remembered: the list that all mixes signed is still confirmed."""

    def unsigned_list(stage: Stage, seen: Seen) -> Event:
        event = stage.committed(seen.descriptor[0], other_list(gated_of(made, seen)))
        del event.committed.signatures[1]
        return event

    refused_list(made, config, unsigned_list)
    assert follow(made, config, lists_of(there)).outcome == (Ending.DONE, 1)


def test_a_list_that_was_signed_for_another_round_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    def committed(stage: Stage, seen: Seen) -> Event:
        listed = there(gated_of(made, seen))
        event = stage.committed(asked(made, 2).descriptor, listed)
        event.committed.digest = seen.descriptor[0].digest
        return event

    refused_list(made, config, committed)


LISTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "empty": lambda gated: [],
    "below-the-minimum": lambda gated: [gated],
    "longer-than-the-roster": lambda gated: [*there(gated), b"\2" * 32],
    "the-report-twice": lambda gated: [gated, gated],
    "cut": lambda gated: [gated, OTHERS[0][:31]],
}


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_a_list_that_no_batch_has_ends_the_lease(
    made: Consortium, config: SiloConfig, listed: Callable[[bytes], list[bytes]]
) -> None:
    refused_list(
        made,
        config,
        lambda stage, seen: stage.committed(seen.descriptor[0], listed(gated_of(made, seen))),
    )


def test_lists_of_rounds_that_the_silo_did_not_answer_get_no_word(
    made: Consortium, config: SiloConfig
) -> None:
    """Of a round to come, with or without signature; of this one before it was asked."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield stage.committed(asked(made, 1).descriptor, OTHERS)
        async for event in answered(stage, seen):
            yield event
        listed = there(gated_of(made, seen))
        yield stage.committed(asked(made, 2).descriptor, listed)
        yield stage.committed(asked(made, 1, attempt=2).descriptor, listed)
        unsigned_list = stage.committed(asked(made, 2).descriptor, listed)
        del unsigned_list.committed.signatures[:]
        yield unsigned_list
        yield stage.closed(asked(made, 2).descriptor)
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 1)
    assert said_nothing(followed)


# One list for each D -----------------------------------------------------------------------------


def other_list(gated: bytes) -> list[bytes]:
    return [gated, b"\3" * 32]


@pytest.mark.parametrize("first", [there, dropped], ids=["confirmed", "missed"])
def test_of_two_lists_for_one_round_only_the_first_gets_an_answer(
    made: Consortium, config: SiloConfig, first: Callable[[bytes], list[bytes]]
) -> None:
    """Though all mixes stand by both."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        gated = gated_of(made, seen)
        yield stage.committed(seen.descriptor[0], first(gated))
        await (stage.said("answer") if first is there else stage.complained())
        yield stage.committed(seen.descriptor[0], other_list(gated))
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert said_nothing(followed)


def test_a_restarted_silo_confirms_the_same_list_again_and_no_other(
    made: Consortium, config: SiloConfig
) -> None:
    """The list alone is enough: the silo finds its report in its ledger."""
    seen = Seen()

    async def confirmed(stage: Stage) -> AsyncIterator[Event]:
        if not seen.onions:
            async for event in answered(stage, seen):
                yield event
        yield stage.committed(seen.descriptor[0], there(gated_of(made, seen)))
        seen.frames.append(await stage.said("answer"))
        yield ENDED

    for opened in (True, False):

        async def other(stage: Stage, opened: bool = opened) -> AsyncIterator[Event]:
            if opened:
                async for event in answered(stage, seen):
                    yield event
            gated = gated_of(made, seen)
            yield stage.committed(seen.descriptor[0], other_list(gated))
            await asyncio.Event().wait()

        assert follow(made, config, confirmed).ending is Ending.DONE
        followed = follow(made, config, other)
        assert followed.ending is Ending.REFUSED
        assert said_nothing(followed)
    assert follow(made, config, confirmed).ending is Ending.DONE
    assert len(seen.frames) == 3
    assert len({frame.SerializeToString() for frame in seen.frames}) == 1
    assert len(set(seen.onions)) == 1
    assert rounds_charged(config) == 1


def test_a_list_of_a_round_that_is_over_gets_no_word(made: Consortium, config: SiloConfig) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        late = stage.committed(seen.descriptor[0], there(gated_of(made, seen)))
        async for event in answered(stage, seen, 2):
            yield event
        yield late
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 2)
    assert said_nothing(followed)


# Complaints --------------------------------------------------------------------------------------


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


# When a silo stops -------------------------------------------------------------------------------


def lists_of(*published: Callable[[bytes], list[bytes]], first: int = 1) -> Script:
    """A lease whose rounds close with these lists, made from the silo's own digest."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number, make in enumerate(published, start=first):
            async for event in round_with(stage, number, make):
                yield event
        yield ENDED

    return script


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


# What became of a report is asked for -----------------------------------------------------------


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


# Proofs ------------------------------------------------------------------------------------------


def lossy_round(made: Consortium, seen: Seen, thief: int, *, replaced: bool) -> VoidRound:
    """The silo's report and two others through the mixes, one of which loses the silo's."""
    descriptor, own = seen.descriptor[-1], seen.onions[-1]
    round_ = round_of(made, descriptor.round)
    others = [round_.seal_with_token(round_.payload(bytes(80))).sealed for _ in range(2)]

    def steal(hop: int, reports: list[bytes], origins: list[int]) -> None:
        if hop != thief:
            return
        layer = own
        for before in range(hop + 1):
            layer = open_layer(layer, round_.mixes[before].seal, before, descriptor.digest)
        place = reports.index(layer)
        if replaced:
            reports[place] = bytes(len(layer))
        else:
            del reports[place], origins[place]

    return void_round(parties(made), round_, [own, *others], steal)


def framing_round(made: Consortium, seen: Seen, thief: int) -> VoidRound:
    """One of the others' reports is lost, and the mix says that it was the silo's."""
    descriptor, own = seen.descriptor[-1], seen.onions[-1]
    round_ = round_of(made, descriptor.round)
    others = [round_.seal_with_token(round_.payload(bytes(80))).sealed for _ in range(2)]

    def steal(hop: int, reports: list[bytes], origins: list[int]) -> None:
        if hop != thief:
            return
        layer = own
        for before in range(hop + 1):
            layer = open_layer(layer, round_.mixes[before].seal, before, descriptor.digest)
        mine = reports.index(layer)
        victim = (mine + 1) % len(reports)
        origins[mine] = origins[victim]
        del reports[victim], origins[victim]

    return void_round(parties(made), round_, [own, *others], steal)


def disclosed_passages(descriptor: Descriptor, lost: VoidRound) -> Iterator[Event]:
    for statement, ending in zip(lost.chain, lost.endings, strict=True):
        passage = channel_pb2.Passage(digest=descriptor.digest, statement=statement, ending=ending)
        yield Event(passage=passage)


@pytest.mark.parametrize("thief", [0, 1])
def test_a_silo_whose_report_was_dropped_proves_which_mix_did_it(
    made: Consortium, config: SiloConfig, thief: int, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no list: a mix did not stand by one that is too short."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        lost = lossy_round(made, seen, thief, replaced=False)
        closed = closed_round(made, seen.descriptor[0], void=True, ended=lost.endings)
        closed.traced = True
        yield Event(closed=closed)
        assert (await stage.said("inspect")).inspect == seen.descriptor[0].digest
        for event in disclosed_passages(seen.descriptor[0], lost):
            yield event
        async for event in round_with(stage, 2, there):
            yield event
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 2)
    accused = f"mix-{thief + 1}"
    assert f"report_lost round=1 accused={accused} proven=True" in caplog.text
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study) == ComplaintFinding("silo-1", 1, accused, proven=True)
    assert not (config.state / "neglect").exists(), "a void round does not count"


def test_a_silo_whose_report_was_replaced_proves_which_mix_did_it_when_the_round_is_void(
    made: Consortium, config: SiloConfig
) -> None:
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        lost = lossy_round(made, seen, 1, replaced=True)
        listed = digests(lost.chain[-1].output)
        yield stage.committed(seen.descriptor[0], listed)
        await stage.complained()
        closed = closed_round(made, seen.descriptor[0], void=True, ended=lost.endings)
        yield Event(closed=closed)
        for event in disclosed_passages(seen.descriptor[0], lost):
            yield event
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 1)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study) == ComplaintFinding("silo-1", 1, "mix-2", proven=True)


def test_a_silo_that_looks_and_finds_its_report_goes_on_and_complains_about_nobody(
    made: Consortium, config: SiloConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody's was dropped, and everybody looks: a mix may name another silo than it was."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        honest = lossy_round(made, seen, -1, replaced=False)
        closed = closed_round(made, seen.descriptor[0], void=True, ended=honest.endings)
        closed.traced = True
        yield Event(closed=closed)
        await stage.said("inspect")
        for event in disclosed_passages(seen.descriptor[0], honest):
            yield event
        async for event in round_with(stage, 2, there):
            yield event
        yield ENDED

    with caplog.at_level(logging.INFO, "silomix"):
        assert follow(made, config, script).outcome == (Ending.DONE, 2)
    assert "report_not_lost round=1" in caplog.text
    assert complaint_files.saved(config.state / "complaints") == []


@pytest.mark.parametrize("hop", [0, 1])
def test_a_silo_that_a_mix_names_in_the_place_of_another_accuses_it_and_goes_on(
    made: Consortium, config: SiloConfig, hop: int
) -> None:
    """The mix dropped another report, and says that it was this silo's."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        framing = framing_round(made, seen, hop)
        closed = closed_round(made, seen.descriptor[0], void=True, ended=framing.endings)
        closed.traced = True
        yield Event(closed=closed)
        await stage.said("inspect")
        for event in disclosed_passages(seen.descriptor[0], framing):
            yield event
        async for event in round_with(stage, 2, there):
            yield event
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 2)
    (copy,) = complaint_files.saved(config.state / "complaints")
    assert copy.finding(made.study) == ComplaintFinding("silo-1", 1, f"mix-{hop + 1}")
    assert all(each.disclosure for each in copy.complaint.endings)
