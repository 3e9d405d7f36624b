"""Is our report in the list of its round?  What a silo confirms, and what gets no word from it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds import complaint_files
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import check_confirmation, sign_commitment
from support.consortia import make_consortium
from support.inclusion import (
    OTHERS,
    Seen,
    answered,
    dropped,
    gated_of,
    lists_of,
    refused_list,
    said_nothing,
    there,
)
from support.scripted_lease import ENDED, Event, Stage, follow, rounds_charged
from support.silos import approved_silo, asked, committed_list, open_ledger, server_key


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
