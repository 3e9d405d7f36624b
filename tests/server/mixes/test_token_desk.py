"""Tokens: one for every silo and round, for ever."""

from pathlib import Path

import pytest
from silomix_proto import channel_pb2
from silomix_protocol.keys import UnusableKey
from silomix_protocol.rounds.tokens import BlindedToken, Token, blind
from silomix_server.errors import UnwelcomeFrame
from silomix_server.mixes.token_desk import SEED, TokenDesk, check_request
from support.rounds import make_parties

STUDY = make_parties(rounds=20).study
ROUNDS = range(3, 7)


@pytest.fixture
def desk(tmp_path: Path) -> TokenDesk:
    return TokenDesk(STUDY, tmp_path)


def request(blinded: dict[int, BlindedToken], rounds: range = ROUNDS) -> channel_pb2.TokenRequest:
    elements = [blinded[each].blinded if each in blinded else b"" for each in rounds]
    return channel_pb2.TokenRequest(first_round=rounds.start, blinded=elements)


def given(reply: channel_pb2.TokenReply) -> list[int]:
    """The rounds that a token came for."""
    return [reply.first_round + at for at, each in enumerate(reply.evaluated) if each]


def token(
    desk: TokenDesk, blinded: BlindedToken, reply: channel_pb2.TokenReply, number: int
) -> Token:
    evaluated = reply.evaluated[number - reply.first_round]
    return blinded.finish(evaluated, desk.public_keys(number, 1)[0])


def test_a_silo_gets_a_token_for_every_round_that_it_asks_for(desk: TokenDesk) -> None:
    blinded = {number: blind() for number in (3, 4, 6)}
    reply = desk.issue("silo-1", request(blinded))
    assert len(reply.evaluated) == len(ROUNDS)
    assert given(reply) == [3, 4, 6]
    for number, each in blinded.items():
        held = token(desk, each, reply, number)
        assert desk.valid(number, held)
        assert not desk.valid(number + 1, held)
    assert not desk.has_all("silo-1", ROUNDS)
    assert given(desk.issue("silo-1", request({5: blind()}))) == [5]
    assert desk.has_all("silo-1", ROUNDS)
    assert not desk.has_all("silo-2", ROUNDS)


def test_the_same_element_again_gets_the_same_token_and_another_one_nothing(
    desk: TokenDesk,
) -> None:
    blinded = {number: blind() for number in ROUNDS}
    first = desk.issue("silo-1", request(blinded))
    again = desk.issue("silo-1", request(blinded))
    assert token(desk, blinded[4], first, 4) == token(desk, blinded[4], again, 4)
    second = desk.issue("silo-1", request(blinded | {4: blind()}))
    assert given(second) == [3, 5, 6]
    other = desk.issue("silo-2", request({4: blind()}))
    assert given(other) == [4]


def test_a_restarted_server_gives_no_second_token(tmp_path: Path, desk: TokenDesk) -> None:
    blinded = {3: blind()}
    first = desk.issue("silo-1", request(blinded))
    desk.close()
    after = TokenDesk(STUDY, tmp_path)
    assert given(after.issue("silo-1", request({3: blind(), 4: blind()}))) == [4]
    again = after.issue("silo-1", request(blinded))
    assert token(after, blinded[3], again, 3) == token(after, blinded[3], first, 3)
    assert after.valid(3, token(after, blinded[3], first, 3))


def test_what_is_no_element_costs_the_silo_nothing(desk: TokenDesk) -> None:
    nonsense = channel_pb2.TokenRequest(first_round=3, blinded=[b"\xff" * 32, bytes(32), b"", b""])
    assert given(desk.issue("silo-1", nonsense)) == []
    assert given(desk.issue("silo-1", request({3: blind(), 4: blind()}))) == [3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        channel_pb2.TokenRequest(first_round=4, blinded=[bytes(32)] * 4),
        channel_pb2.TokenRequest(first_round=3, blinded=[bytes(32)] * 3),
        channel_pb2.TokenRequest(first_round=3, blinded=[bytes(32)] * 65),
        channel_pb2.TokenRequest(first_round=3, blinded=[bytes(31)] * 4),
        channel_pb2.TokenRequest(),
    ],
)
def test_a_request_is_for_the_rounds_of_the_stretch(wrong: channel_pb2.TokenRequest) -> None:
    with pytest.raises(UnwelcomeFrame):
        check_request(wrong, ROUNDS)
    check_request(request({3: blind()}), ROUNDS)


def test_the_seed_is_for_its_owner_only_and_is_not_replaced(tmp_path: Path) -> None:
    TokenDesk(STUDY, tmp_path).close()
    path = tmp_path / SEED
    seed = path.read_bytes()
    assert (path.stat().st_mode & 0o777, len(seed)) == (0o600, 32)
    TokenDesk(STUDY, tmp_path).close()
    assert path.read_bytes() == seed
    path.chmod(0o644)
    with pytest.raises(UnusableKey, match="readable by others"):
        TokenDesk(STUDY, tmp_path)


def test_every_study_has_its_own_keys(tmp_path: Path, desk: TokenDesk) -> None:
    other = TokenDesk(make_parties(name="other").study, tmp_path)
    assert not set(desk.public_keys(1, 5)) & set(other.public_keys(1, 5))
    assert len(set(desk.public_keys(1, 5))) == 5
