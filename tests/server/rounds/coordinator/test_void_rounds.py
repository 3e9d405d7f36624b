"""Batches that do not open: the round is void, is told so, and is not tried again."""

import logging

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.tokens import blind
from silomix_server.errors import StudyFailed
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.rounds import availability as membership_module
from support.coordinated_studies import FAILED, ROUNDS, Outlives, Scene, lines, once, study, voids
from support.coordinators import FakeChain


def test_a_batch_that_too_few_silos_confirm_stays_closed_and_is_not_tried_again(
    made: Consortium,
) -> None:
    def change(scene: Scene) -> None:
        for silo in scene.silos[1:]:
            silo.confirms = False

    with pytest.raises(StudyFailed, match="3 rounds in a row were void"):
        study(made, change)
    assert voids(made) == [True] * 3
    assert [line["attempts"] for line in lines(made)] == [1] * 3


def test_a_server_that_is_started_again_counts_void_rounds_on_and_pauses(
    made: Consortium, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its processes would otherwise cost every silo three more rounds."""

    def change(scene: Scene) -> None:
        for silo in scene.silos[1:]:
            silo.confirms = False

    monkeypatch.setattr("silomix_server.rounds.coordinator._LONGEST_PAUSE_S", 0.01)
    others = Outlives(FakeChain(made))
    with pytest.raises(StudyFailed, match="3 rounds in a row were void"):
        study(made, change, earlier=others)
    assert "pause" not in caplog.text
    with pytest.raises(StudyFailed, match="4 rounds in a row were void"):
        study(made, change, earlier=others)
    assert "pause rounds_void=3 seconds=0.01" in caplog.text
    assert voids(made) == [True] * 4


def test_a_mix_that_releases_another_key_is_named_and_the_round_is_void(
    made: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    def change(scene: Scene) -> None:
        wrong = mix_pb2.ReleasedKey(key=SealKey.generate().raw)
        scene.chain.mixes[0].faults["Release"] = once(wrong)

    with caplog.at_level(logging.WARNING, "silomix"):
        scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert (1, 2) not in scene.opened()
    assert any("round_lost" in line and "mix-1" in line for line in caplog.messages)


def test_no_list_is_published_that_a_mix_does_not_stand_by(made: Consortium) -> None:
    """Nor is the round tried again: the batch was here."""

    def change(scene: Scene) -> None:
        scene.chain.mixes[0].faults["Commit"] = once(FAILED)

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    kinds = [each.WhichOneof("event") for each in scene.silos[0].heard]
    assert kinds.count("committed") == ROUNDS - 1


def test_a_batch_that_breaks_off_is_never_asked_for_again(made: Consortium) -> None:
    def change(scene: Scene) -> None:
        broken = [True]

        def cut(answer: list[mix_pb2.BatchFrame]) -> list[mix_pb2.BatchFrame]:
            return answer[:1] if broken and broken.pop() else answer

        scene.chain.mixes[1].faults["Collect"] = cut

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert "Abandon" not in scene.chain.mixes[0].told.calls


def lose_token(made: Consortium, silo: str, number: int) -> None:
    """The silo was given that token and does not have it any more."""
    state = made.server.parent / "state"
    state.mkdir(exist_ok=True)
    desk = TokenDesk(made.study, state)
    lost = channel_pb2.TokenRequest(first_round=number, blinded=[blind().blinded])
    desk.issue(silo, lost)
    desk.close()


def test_a_silo_sits_out_the_round_whose_token_it_lost(made: Consortium) -> None:
    lose_token(made, "silo-3", 2)
    scene = study(made)
    assert [line["asked"] for line in lines(made)] == [3, 3, 3, 3]
    assert [line["accepted"] for line in lines(made)] == [3, 2, 3, 3]
    assert voids(made) == [False] * ROUNDS
    assert 2 not in scene.silos[2].wallet


def test_too_few_silos_with_tokens_end_the_study(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "_REJOIN_S", 0.2)
    monkeypatch.setattr(membership_module, "_FOLLOW_S", 0.5)
    for silo in ("silo-2", "silo-3"):
        lose_token(made, silo, 1)
    with pytest.raises(StudyFailed, match="2 more are connected but have no token for round 1"):
        study(made)
    assert lines(made) == []
