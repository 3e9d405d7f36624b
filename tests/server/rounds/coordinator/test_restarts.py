"""A coordinator that is started again knows what became of every round."""

import asyncio
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import check_closing, is_ended
from silomix_server.config import load
from silomix_server.errors import StudyFailed
from silomix_server.rounds.coordinator import Coordinator
from silomix_server.study.journal import Journal
from support.coordinated_studies import FAILED, FakeGrid, Outlives, Scene, lines, once, study, voids
from support.coordinators import FakeChain
from support.mixes import run
from support.silos import altered


def test_a_round_that_was_open_when_the_coordinator_died_is_void(made: Consortium) -> None:
    """Its server key is gone: nobody can ever open what was sent."""

    def change(scene: Scene) -> None:
        def die(answer: object) -> object:
            if scene.opened()[-1][0] == 2:
                scene.stop()
            return answer

        scene.chain.mixes[1].faults["Release"] = die

    others = Outlives(FakeChain(made))
    with pytest.raises(asyncio.CancelledError):
        study(made, change, others)
    assert len(lines(made)) == 1
    others.chain.mixes[1].faults.clear()
    scene = study(made, earlier=others)
    assert [line["round"] for line in lines(made)] == [1, 3, 4]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("where", ["Collect", "Commit", "Release"])
def test_a_coordinator_that_dies_again_and_again_says_what_became_of_every_round(
    made: Consortium, where: str
) -> None:
    """Every mix was asked to make the round void; a silo that asks hears its list, if there was
    one, and that it was not used."""
    others = Outlives(FakeChain(made))

    def dying(number: int) -> Callable[[Scene], None]:
        def change(scene: Scene) -> None:
            def die(answer: object) -> object:
                if scene.opened()[-1][0] == number:
                    scene.stop()
                return answer

            place = -1 if where == "Collect" else 0
            scene.chain.mixes[place].faults[where] = die

        return change

    for number in (1, 2):
        with pytest.raises(asyncio.CancelledError):
            study(made, dying(number), others)
        for mix in others.chain.mixes:
            mix.faults.clear()
    study(made, earlier=others)
    assert [line["round"] for line in lines(made)] == [3, 4]
    calls = others.chain.mixes[0].told.calls
    assert calls.count("Void") == 2
    journal = Journal(made.server.parent / "state" / f"journal-{made.study.short_id}.sqlite")
    tried = others.chain.mixes[0].told.opened
    for descriptor, void in zip(tried, (True, True, False, False), strict=True):
        known = journal.outcome(descriptor.digest)
        assert known is not None
        assert known.closed is not None
        assert not known.pending
        check_closing(known.closed, made.study)
        assert known.closed.void is void
        assert is_ended(known.closed.endings, descriptor.digest, made.study) is void
        assert (known.committed is not None) is (not void or where == "Release")
    journal.close()


def test_a_mix_that_was_away_is_asked_again_before_the_next_round(made: Consortium) -> None:
    """It is there when the next round opens, and silos hear of it before they are asked."""

    def change(scene: Scene) -> None:
        scene.chain.mixes[0].faults["Commit"] = once(FAILED)
        scene.chain.mixes[1].faults["Void"] = once(grpc.StatusCode.DEADLINE_EXCEEDED)

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.chain.mixes[0].told.calls.count("Void") == 2
    heard = [each for each in scene.silos[0].heard if each.HasField("closed")]
    first = [each.closed for each in heard if each.closed.digest == heard[0].closed.digest]
    assert [is_ended(each.endings, RoundDigest(each.digest), made.study) for each in first] == [
        False,
        True,
    ]
    kinds = [each.WhichOneof("event") for each in scene.silos[0].heard]
    second = [at for at, kind in enumerate(kinds) if kind == "opened"][1]
    assert kinds[:second].count("closed") == 2


def test_silos_with_control_variates_are_told_the_mean_of_the_rounds_that_were_not_void(
    made: Consortium,
) -> None:
    """Round 2 is open when the coordinator dies; all silos send 1, 2 and 3 in every coordinate."""
    made = altered(made, ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 2'))

    def change(scene: Scene) -> None:
        def die(answer: object) -> object:
            if scene.opened()[-1][0] == 2:
                scene.stop()
            return answer

        scene.chain.mixes[1].faults["Release"] = die

    others = Outlives(FakeChain(made))
    with pytest.raises(asyncio.CancelledError):
        study(made, change, others)
    others.chain.mixes[1].faults.clear()
    scene = study(made, earlier=others)
    queries = [
        round_pb2.Query.FromString(event.query_chunk)
        for event in scene.silos[0].heard
        if event.query_chunk
    ]
    assert len(queries) == 2
    step = made.study.mechanism().grids[0] * (1 + 2 + 3) / 3 / 2
    for used, query in enumerate(queries, start=1):
        assert np.allclose(np.frombuffer(query.control, dtype="<f8"), used * step, rtol=1e-12)


def test_another_signing_key_than_the_studys_is_said_at_once(made: Consortium) -> None:
    path = made.server.parent / "sign.key"
    path.write_bytes(bytes(31) + b"\1")

    async def scenario() -> None:
        Coordinator(load(made.server), FakeGrid([], asyncio.get_running_loop()))  # type: ignore[arg-type]

    with pytest.raises(StudyFailed, match="lists another signing key for this server"):
        run(scenario())
