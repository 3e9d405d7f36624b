"""Tokens: each is good for one round, shown to be made with the round's key, and tells nobody's
name.  That a token is spent once is the server's business.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.study.study import StudyId
from silomix_protocol.rounds import ristretto
from silomix_protocol.rounds.ristretto import KeyPair, NotInGroup
from silomix_protocol.rounds.tokens import (
    COIN_BYTES,
    TOKEN_BYTES,
    RefusedToken,
    Token,
    blind,
    issuer,
)

RFC = tomllib.loads(
    (Path(__file__).parents[2] / "vectors" / "protocol_rfc9497.toml").read_text("utf-8")
)
STUDY = StudyId(b"s" * 32)
ISSUER = issuer(b"\x07" * 32, STUDY)
IDENTITY = bytes(32)  # the neutral element of the group
ORDER = 2**252 + 27742317777372353535851937790883648493


def token(round_number: int = 1) -> Token:
    blinded = blind()
    evaluated = ISSUER.evaluate(round_number, blinded.blinded)
    return blinded.finish(evaluated, ISSUER.public_key(round_number))


# RFC 9497 ----------------------------------------------------------------------------------------


def rfc_key() -> KeyPair:
    return ristretto.derive_key_pair(bytes.fromhex(RFC["seed"]), bytes.fromhex(RFC["key_info"]))


def raw(vector: dict[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(value) for name, value in vector.items()}


def test_a_key_is_derived_as_the_rfc_says() -> None:
    assert rfc_key().secret.hex() == RFC["secret_key"]
    assert rfc_key().public.hex() == RFC["public_key"]
    assert RFC["secret_key"] not in repr(rfc_key())


@pytest.mark.parametrize("vector", RFC["vectors"], ids=lambda vector: vector["input"][:4])
def test_every_step_gives_the_bytes_of_the_rfc(vector: dict[str, str]) -> None:
    key, given = rfc_key(), raw(vector)
    blinded = ristretto.blind(given["input"], given["blind"])
    assert blinded == given["blinded_element"]
    answer = ristretto.blind_evaluate(key, blinded, given["proof_random_scalar"])
    assert answer == given["evaluation_element"] + given["proof"]
    ristretto.check_proof(key.public, blinded, answer[:32], answer[32:])
    output = ristretto.finalize(given["input"], given["blind"], answer[:32])
    assert output == ristretto.evaluate(key, given["input"]) == given["output"]


@pytest.mark.parametrize("name", ["blinded_element", "evaluation_element", "proof", "public_key"])
def test_the_proof_of_the_rfc_holds_for_nothing_else(name: str) -> None:
    one, two = map(raw, RFC["vectors"])
    parts = {**one, "public_key": rfc_key().public}
    parts[name] = {**two, "public_key": ISSUER.public_key(1)}[name]
    with pytest.raises(NotInGroup):
        ristretto.check_proof(
            parts["public_key"],
            parts["blinded_element"],
            parts["evaluation_element"],
            parts["proof"],
        )


def test_a_key_that_came_out_zero_is_derived_again_with_the_next_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows such a seed: the hash is made to give zero once."""
    expanded, counters = ristretto._expanded, []

    def zero_at_first(message: bytes, label: bytes) -> bytes:
        counters.append(message[-1])
        return bytes(64) if len(counters) == 1 else expanded(message, label)

    monkeypatch.setattr(ristretto, "_expanded", zero_at_first)
    assert rfc_key().public.hex() != RFC["public_key"]
    assert counters[:2] == [0, 1]
    monkeypatch.setattr(ristretto, "_expanded", lambda message, label: bytes(64))
    with pytest.raises(NotInGroup, match="no key"):
        rfc_key()


@settings(deadline=None, max_examples=100)
@given(uniform=st.binary(min_size=64, max_size=64))
def test_a_scalar_is_its_64_bytes_modulo_the_order(uniform: bytes) -> None:
    expected = int.from_bytes(uniform, "little") % ORDER
    assert ristretto.scalar_of(uniform) == expected.to_bytes(32, "little")


@settings(deadline=None, max_examples=50)
@given(message=st.binary(max_size=200), coins=st.binary(min_size=64, max_size=64))
def test_who_asks_and_who_has_the_key_agree(message: bytes, coins: bytes) -> None:
    key, scalar = rfc_key(), ristretto.scalar_of(b"\x01" + coins[1:])
    blinded = ristretto.blind(message, scalar)
    answer = ristretto.blind_evaluate(key, blinded)
    ristretto.check_proof(key.public, blinded, answer[:32], answer[32:])
    assert ristretto.finalize(message, scalar, answer[:32]) == ristretto.evaluate(key, message)


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


# Elements and scalars that are none ---------------------------------------------------------------

NO_ELEMENTS = [  # RFC 9496, A.2, one or more of each kind
    bytes.fromhex(encoding)
    for encoding in (
        # not below the field's modulus
        "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # zero once more
        # negative
        "0100000000000000000000000000000000000000000000000000000000000000",
        "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
        # no square root
        "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
        # negative x·y
        "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
        # s = −1, so that y = 0
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
]


@pytest.mark.parametrize("encoding", NO_ELEMENTS, ids=lambda encoding: encoding.hex()[:4])
def test_an_answer_with_an_encoding_that_is_no_element_is_refused(encoding: bytes) -> None:
    blinded = blind()
    proof = ISSUER.evaluate(1, blinded.blinded)[32:]
    with pytest.raises(RefusedToken, match="proof"):
        blinded.finish(encoding + proof, ISSUER.public_key(1))


@pytest.mark.parametrize("place", [32, 64])
def test_a_scalar_of_a_proof_has_one_encoding(place: int) -> None:
    """Plus the group's order it is the same scalar, and another answer for the same token."""
    blinded = blind()
    answer = ISSUER.evaluate(1, blinded.blinded)
    same = int.from_bytes(answer[place : place + 32], "little") + ORDER
    bent = answer[:place] + same.to_bytes(32, "little") + answer[place + 32 :]
    with pytest.raises(RefusedToken, match="proof"):
        blinded.finish(bent, ISSUER.public_key(1))


def test_a_key_of_zero_proves_nothing() -> None:
    """Public key and answer are neutral, and a proof for them is easily made."""
    blinded = blind()
    with pytest.raises(RefusedToken, match="proof"):
        blinded.finish(IDENTITY + bytes(64), IDENTITY)


@pytest.mark.parametrize("length", [0, COIN_BYTES - 1, COIN_BYTES + 1])
def test_a_token_is_made_of_so_many_bytes(length: int) -> None:
    with pytest.raises(RefusedToken, match="96 bytes"):
        blind(b"c" * length)


@pytest.mark.parametrize("multiple", [0, 1, 2**200])
def test_a_blinding_of_zero_is_refused(multiple: int) -> None:
    with pytest.raises(RefusedToken, match="blind nothing"):
        blind(b"n" * 32 + (multiple * ORDER).to_bytes(64, "little"))


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


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), IDENTITY, *NO_ELEMENTS])
def test_a_public_key_that_is_none_is_refused(key: bytes) -> None:
    blinded = blind()
    with pytest.raises(RefusedToken):
        blinded.finish(ISSUER.evaluate(1, blinded.blinded), key)


@pytest.mark.parametrize("element", [b"", bytes(31), bytes(33), IDENTITY, *NO_ELEMENTS])
def test_a_blinded_element_that_is_none_is_refused(element: bytes) -> None:
    with pytest.raises(RefusedToken, match="not a blinded element"):
        ISSUER.evaluate(1, element)


# Nobody's name -----------------------------------------------------------------------------------


def test_the_same_nonce_blinded_twice_looks_different() -> None:
    """The blinded element hides the nonce: both give the same token, and neither shows it."""
    one, two = blind(b"n" * 32 + b"1" * 64), blind(b"n" * 32 + b"2" * 64)
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


def test_the_same_bytes_make_the_same_token() -> None:
    one, two = blind(b"n" * 32 + b"1" * 64), blind(b"n" * 32 + b"1" * 64)
    assert one.blinded == two.blinded
    answer, key = ISSUER.evaluate(1, one.blinded), ISSUER.public_key(1)
    assert one.finish(answer, key) == two.finish(answer, key)


# Mutants: what each rule of the proof is for ------------------------------------------------------


def forged_by(answer: Callable[[bytes], bytes]) -> None:
    """RefusedToken unless a silo takes this answer."""
    blinded = blind()
    blinded.finish(answer(blinded.blinded), ISSUER.public_key(1))


def without_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    one = (1).to_bytes(32, "little")
    monkeypatch.setattr(ristretto, "_composite_weight", lambda *_: one)


def without_the_scalar_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ristretto, "_check_scalar", lambda _: None)


def without_a_word_in_the_challenge(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = ristretto._challenge
    monkeypatch.setattr(ristretto, "_challenge", lambda *elements: challenge(*elements[1:]))


@pytest.mark.parametrize("mutate", [without_weight, without_a_word_in_the_challenge])
def test_the_vectors_find_a_mutant_of_the_proof(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    given = raw(RFC["vectors"][0])
    answer = ristretto.blind_evaluate(
        rfc_key(), given["blinded_element"], given["proof_random_scalar"]
    )
    assert answer[32:] != given["proof"]


def test_without_the_check_of_scalars_an_answer_has_two_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_the_scalar_check(monkeypatch)

    def bent(blinded: bytes) -> bytes:
        answer = ISSUER.evaluate(1, blinded)
        response = int.from_bytes(answer[64:], "little") + ORDER
        return answer[:64] + response.to_bytes(32, "little")

    forged_by(bent)


def test_comparing_the_challenge_any_answer_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marked = issuer(b"\x66" * 32, STUDY)
    with pytest.raises(RefusedToken):
        forged_by(lambda blinded: marked.evaluate(1, blinded))
    monkeypatch.setattr(ristretto, "compare_digest", lambda a, b: b != IDENTITY or a == b)
    forged_by(lambda blinded: marked.evaluate(1, blinded))
