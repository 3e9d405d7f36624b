"""How far a round may go: when it may be tried again, and when never."""

import pytest
from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import MOST_ATTEMPTS
from silomix_server.rounds.round_state import TRIES, RoundState
from support.descriptors import plain_descriptor

WORD = round_pb2.Abandonment(reason="told to")
CHAIN = (round_pb2.HopStatement(hop=0), round_pb2.HopStatement(hop=1))


def state(tried: int = 0, abandoned: int = 0) -> RoundState:
    """A round with attempts of an earlier run, so many of them abandoned by both mixes."""
    descriptors = [plain_descriptor(attempt=1 + at) for at in range(tried)]
    made = RoundState(1, b"query", 2, descriptors)
    for _ in range(abandoned):
        made.abandon((WORD, WORD))
    return made


def begin(made: RoundState) -> None:
    made.begin(plain_descriptor(attempt=made.attempt))


def test_a_round_is_tried_again_only_behind_attempts_that_every_mix_abandoned() -> None:
    made = state(tried=2, abandoned=1)
    assert not made.may_try
    with pytest.raises(ValueError, match="may not be tried"):
        begin(made)
    with pytest.raises(ValueError, match="not every mix"):
        made.abandon((WORD,))
    made.abandon((WORD, WORD))
    assert made.may_try
    begin(made)
    assert [each.attempt for each in made.unabandoned] == [3]
    assert not made.may_try


def test_a_round_whose_batch_came_is_never_tried_again() -> None:
    made = state()
    begin(made)
    made.ask()
    made.collect(CHAIN)
    with pytest.raises(ValueError, match="a batch of this round came"):
        made.abandon((WORD, WORD))
    assert not made.may_try
    made.show_list()
    assert made.listed


@pytest.mark.parametrize("tried", [0, MOST_ATTEMPTS - 1, MOST_ATTEMPTS])
def test_attempts_are_bounded(tried: int) -> None:
    made, begun = state(tried, tried), 0
    while made.may_try:
        begin(made)
        made.abandon((WORD, WORD))
        begun += 1
    assert begun == min(TRIES, MOST_ATTEMPTS - tried)


def test_steps_out_of_order_are_mistakes() -> None:
    made = state()
    begin(made)
    with pytest.raises(ValueError, match="nobody was asked"):
        made.collect(CHAIN)
    with pytest.raises(ValueError, match="no batch"):
        made.show_list()
