"""A silo whose report was dropped or replaced proves which mix did it."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds import complaint_files
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.complaints import ComplaintFinding
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import digests
from support.coordinators import parties
from support.inclusion import Seen, answered, there
from support.scripted_lease import ENDED, Event, Stage, follow, round_with
from support.silos import closed_round, round_of
from support.voids import VoidRound, void_round


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
