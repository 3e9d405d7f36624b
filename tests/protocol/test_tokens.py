"""Tokens: each is good for one round, shown to be made with the round's key, and tells nobody's
name.  That a token is spent once is the server's business.
"""

import secrets
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.study import StudyId
from silomix_protocol import ristretto as tokens_by_ristretto
from silomix_protocol.ristretto import RistrettoToken
from silomix_protocol.tokens import TOKEN_BYTES, RefusedToken, Token, blind, issuer
from voprf import ristretto

RFC = tomllib.loads(
    (Path(__file__).parents[1] / "vectors" / "protocol_rfc9497.toml").read_text("utf-8")
)
STUDY = StudyId(b"s" * 32)
ISSUER = issuer(b"\x07" * 32, STUDY)
IDENTITY = bytes(32)  # the neutral element of the group


def token(round_number: int = 1) -> Token:
    blinded = blind()
    evaluated = ISSUER.evaluate(round_number, blinded.blinded)
    return blinded.finish(evaluated, ISSUER.public_key(round_number))


# RFC 9497 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", RFC["vectors"], ids=lambda vector: vector["input"][:4])
def test_the_package_is_the_function_of_the_rfc(vector: dict[str, str]) -> None:
    seed, info = bytes.fromhex(RFC["seed"]), bytes.fromhex(RFC["key_info"])
    evaluator = ristretto.Evaluator.from_seed(seed, info)
    assert evaluator.public_key.serialize().hex() == RFC["public_key"]
    known = evaluator.evaluate_known_input(bytes.fromhex(vector["input"]))
    assert known.hex() == vector["output"]
    blinded = ristretto.BlindedInput.deserialize(bytes.fromhex(vector["blinded_element"]))
    evaluated = evaluator.evaluate(blinded).serialize()
    assert evaluated[64:].hex() == vector["evaluation_element"]


@pytest.mark.parametrize("vector", RFC["vectors"], ids=lambda vector: vector["input"][:4])
def test_an_answer_is_the_evaluated_element_and_then_its_proof(
    vector: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer with the key of the RFC, whose info is not ours."""
    evaluator = ristretto.Evaluator.from_seed(
        bytes.fromhex(RFC["seed"]), bytes.fromhex(RFC["key_info"])
    )
    monkeypatch.setattr(
        tokens_by_ristretto.RistrettoIssuer, "_evaluator", lambda self, number: evaluator
    )
    made = issuer(bytes(32), STUDY)
    answer = made.evaluate(1, bytes.fromhex(vector["blinded_element"]))
    assert len(answer) == 32 + 64
    assert answer[:32].hex() == vector["evaluation_element"]
    assert made.public_key(1).hex() == RFC["public_key"]


# Issuing and knowing again -----------------------------------------------------------------------


def test_a_token_is_known_again_in_its_round_only() -> None:
    made = token(3)
    assert [ISSUER.valid(number, made) for number in (1, 2, 3, 4)] == [False, False, True, False]


def test_a_token_of_another_study_or_issuer_is_worthless() -> None:
    made = token()
    assert not issuer(b"\x07" * 32, StudyId(b"t" * 32)).valid(1, made)
    assert not issuer(b"\x08" * 32, STUDY).valid(1, made)
    assert issuer(b"\x07" * 32, STUDY).valid(1, made), "an issuer is its seed and its study"


def test_every_round_has_a_key_of_its_own() -> None:
    keys = {ISSUER.public_key(number) for number in range(1, 200)}
    assert len(keys) == 199
    assert {len(key) for key in keys} == {32}


def test_an_issuer_that_served_many_rounds_still_knows_the_first() -> None:
    made = issuer(b"\x09" * 32, STUDY)
    first = made.public_key(1)
    blinded = blind()
    kept = blinded.finish(made.evaluate(1, blinded.blinded), first)
    for number in range(2, 300):
        made.public_key(number)
    assert made.public_key(1) == first
    assert made.valid(1, kept)


@settings(deadline=None, max_examples=60)
@given(bit=st.integers(0, 8 * TOKEN_BYTES - 1))
def test_no_bit_of_a_token_may_flip(bit: int) -> None:
    bent = bytearray(SPENT.to_bytes())
    bent[bit // 8] ^= 1 << bit % 8
    assert not ISSUER.valid(1, Token.from_bytes(bytes(bent)))


SPENT = token()


def test_a_made_up_token_is_worthless() -> None:
    assert not ISSUER.valid(1, Token(bytes(32), bytes(64)))
    assert not ISSUER.valid(1, Token(token().nonce, token().output))


def test_a_token_comes_back_from_its_bytes_and_is_not_shown() -> None:
    made = token()
    assert len(made.to_bytes()) == TOKEN_BYTES == 96
    assert Token.from_bytes(made.to_bytes()) == made
    assert repr(made) == "Token()"


@pytest.mark.parametrize("length", [0, 95, 97])
def test_a_token_has_one_length(length: int) -> None:
    with pytest.raises(RefusedToken, match="96 bytes"):
        Token.from_bytes(bytes(length))


# The server's proof ------------------------------------------------------------------------------


def test_a_key_that_is_not_the_rounds_is_refused() -> None:
    """A server that used another key for one silo, to know it again, is found out by that silo."""
    blinded = blind()
    marked = issuer(b"\x66" * 32, STUDY)
    for evaluated, key in [
        (marked.evaluate(1, blinded.blinded), ISSUER.public_key(1)),
        (ISSUER.evaluate(1, blinded.blinded), marked.public_key(1)),
        (ISSUER.evaluate(2, blinded.blinded), ISSUER.public_key(1)),
    ]:
        with pytest.raises(RefusedToken, match="proof"):
            blinded.finish(evaluated, key)
    assert blinded.finish(ISSUER.evaluate(1, blinded.blinded), ISSUER.public_key(1))


def test_an_answer_to_another_question_is_refused() -> None:
    one, two = blind(), blind()
    with pytest.raises(RefusedToken, match="proof"):
        one.finish(ISSUER.evaluate(1, two.blinded), ISSUER.public_key(1))


@settings(deadline=None, max_examples=100)
@given(bit=st.integers(0, 8 * 96 - 1))
def test_no_bit_of_an_answer_may_flip(bit: int) -> None:
    blinded = blind()
    bent = bytearray(ISSUER.evaluate(1, blinded.blinded))
    bent[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RefusedToken, match="proof"):
        blinded.finish(bytes(bent), ISSUER.public_key(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: b"",
        lambda answer: answer[:-1],
        lambda answer: answer + b"\0",
        lambda answer: answer[64:] + answer[:64],
        lambda answer: IDENTITY + answer[32:],
        lambda answer: answer[:32] + bytes(64),
        lambda answer: IDENTITY + bytes(64),
    ],
    ids=["empty", "short", "long", "proof first", "identity", "no proof", "zeros"],
)
def test_an_answer_that_is_none_is_refused(change: object) -> None:
    blinded = blind()
    answer = change(ISSUER.evaluate(1, blinded.blinded))  # type: ignore[operator]
    with pytest.raises(RefusedToken, match="proof"):
        blinded.finish(answer, ISSUER.public_key(1))


@pytest.mark.parametrize("key", [b"", bytes(31), IDENTITY, b"\xff" * 32])
def test_a_public_key_that_is_none_is_refused(key: bytes) -> None:
    blinded = blind()
    with pytest.raises(RefusedToken):
        blinded.finish(ISSUER.evaluate(1, blinded.blinded), key)


@pytest.mark.parametrize("element", [b"", bytes(31), bytes(33), IDENTITY, b"\xff" * 32])
def test_a_blinded_element_that_is_none_is_refused(element: bytes) -> None:
    with pytest.raises(RefusedToken, match="not a blinded element"):
        ISSUER.evaluate(1, element)


# Nobody's name -----------------------------------------------------------------------------------


def test_the_same_nonce_blinded_twice_looks_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blinded element hides the nonce: both give the same token, and neither shows it."""
    monkeypatch.setattr(secrets, "token_bytes", lambda count: b"n" * count)
    one, two = RistrettoToken(), RistrettoToken()
    assert one.blinded != two.blinded
    key = ISSUER.public_key(1)
    answers = [ISSUER.evaluate(1, each.blinded) for each in (one, two)]
    assert answers[0][:32] != answers[1][:32]
    assert one.finish(answers[0], key) == two.finish(answers[1], key)
    assert one.finish(answers[0], key).nonce == b"n" * 32


def test_every_silo_has_a_nonce_of_its_own() -> None:
    assert len({token().nonce for _ in range(20)}) == 20


def test_nothing_that_the_server_saw_is_in_the_token() -> None:
    blinded = blind()
    answer = ISSUER.evaluate(1, blinded.blinded)
    made = blinded.finish(answer, ISSUER.public_key(1)).to_bytes()
    for seen in (blinded.blinded, answer):
        assert not any(made[at : at + 8] in seen for at in range(len(made) - 8))


def test_the_same_question_gets_the_same_element_under_a_fresh_proof() -> None:
    blinded = blind()
    one, two = (ISSUER.evaluate(1, blinded.blinded) for _ in range(2))
    assert one[:32] == two[:32]
    key = ISSUER.public_key(1)
    assert blinded.finish(one, key) == blinded.finish(two, key)
