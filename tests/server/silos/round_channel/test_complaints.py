"""Reports that are missing from a list: what is kept of complaints, and what is shown."""

from hashlib import sha256
from pathlib import Path

import pytest
from google.protobuf.json_format import Parse
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.complaints import check_complaint, sign_complaint
from silomix_protocol.rounds.statements import sign_receipt
from support.coordinators import Listed, following, signer
from support.mixes import run
from support.round_channels import SILOS, Desk, asked, batch_of, desk_open, lossy, until
from support.rounds import Round


def complaint_of(
    made: Consortium, round_: Round, batch: Listed, onion: bytes, silo: str = "silo-3"
) -> channel_pb2.Complaint:
    place = SILOS.index(silo)
    receipt = sign_receipt(round_.digest, place, sha256(onion).digest(), signer(made, "mix-1"))
    return sign_complaint(round_.descriptor, place, receipt, batch.committed, signer(made, silo))


def test_a_missing_report_is_looked_into_and_complained_about(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, onion, trail = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            async with following(made, "silo-3") as stream:
                for kind in ("stretch", "opened", "query_chunk"):
                    await stream.hear(kind)
                desk.commit(round_, batch)
                await stream.hear("committed")
                await stream.say(inspect=round_.digest)
                complaint = complaint_of(made, round_, batch, onion)
                complaint.trail.extend(trail)  # neither must be kept
                complaint.chain.extend(batch.chain)
                answer = channel_pb2.CommittedAnswer(digest=round_.digest, complaint=complaint)
                await stream.say(answer=answer)
                await stream.say(answer=answer)
                await until(lambda: bool(desk.complaints()))
                desk.close_round(round_)
                passages = [(await stream.hear("passage")).passage for _ in made.study.mixes]
                assert [each.statement for each in passages] == batch.chain
                assert not any(each.HasField("ending") for each in passages)
                await stream.call.done_writing()
                desk.channel.close_lease("enough")
                await stream.hear("closed")
                await stream.hear("ended")
                assert await stream.is_over()
            (kept,) = desk.complaints()
            text = kept.read_text()
            finding = check_complaint(Parse(text, channel_pb2.Complaint()), made.study)
            assert (finding.silo, finding.round, finding.accused) == ("silo-3", 1, None)
            assert "trail" not in text
            assert "chain" not in text

    run(scenario())


def unwelcome(desk: Desk, silo: str) -> int:
    return desk.channel._followers[silo].unwelcome


def test_a_complaint_that_shows_nothing_is_not_kept(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_, other = asked(made, 1), asked(made, 2)
            batch, onion, _ = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            desk.commit(round_, batch)
            unsigned = complaint_of(made, round_, batch, onion)
            unsigned.signature = bytes(64)
            with pytest.raises(ForgedSignature):
                check_complaint(unsigned, made.study)
            elsewhere, its_onion, _ = lossy(made, other)
            for nonsense in (
                channel_pb2.Complaint(),
                unsigned,
                complaint_of(made, round_, batch, onion, "silo-2"),
                complaint_of(made, other, elsewhere, its_onion),
            ):
                async with following(made, "silo-3") as stream:
                    for kind in ("stretch", "opened", "query_chunk", "committed"):
                        await stream.hear(kind)
                    await stream.say(
                        answer=channel_pb2.CommittedAnswer(digest=round_.digest, complaint=nonsense)
                    )
                    await stream.say(inspect=other.digest)
                    await until(lambda: unwelcome(desk, "silo-3") == 2)  # both were read
            assert desk.complaints() == []

    run(scenario())


def test_statements_are_shown_once_and_only_of_the_current_and_the_two_last_rounds(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            rounds = [asked(made, number) for number in (1, 2, 3)]
            desk.open_stretch(rounds)
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                for round_ in rounds:
                    desk.open_round(round_)
                    batch, _, _ = batch_of(made, round_)
                    desk.commit(round_, batch)
                    desk.close_round(round_)
                    if round_ is not rounds[0]:  # how the last one ended comes with the next
                        await stream.hear("closed")
                    for kind in ("opened", "query_chunk", "committed"):
                        await stream.hear(kind)
                for round_ in (*rounds, rounds[2]):
                    await stream.say(inspect=round_.digest)
                for round_ in rounds[1:]:
                    for _ in made.study.mixes:
                        assert (await stream.hear("passage")).passage.digest == round_.digest
                desk.open_round(asked(made, 4))
                await stream.hear("closed")
                await stream.hear("opened")

    run(scenario())


def test_statements_are_shown_after_the_end_of_the_lease(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            desk.commit(round_, batch)
            async with following(made, "silo-3") as stream:
                for kind in ("stretch", "opened", "query_chunk", "committed"):
                    await stream.hear(kind)
                desk.close_round(round_)
                desk.channel.close_lease("enough")
                await stream.hear("closed")
                await stream.hear("ended")
                assert desk.channel.followers == frozenset()
                await stream.say(inspect=round_.digest)
                for _ in made.study.mixes:
                    await stream.hear("passage")
                assert await stream.is_over()  # but not for ever

    run(scenario())
