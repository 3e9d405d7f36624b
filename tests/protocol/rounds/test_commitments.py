"""Lists, confirmations, abandonments, endings: who signs them, for what, and how long they are."""

from collections.abc import Callable
from hashlib import sha256
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import (
    LARGEST_DISCLOSURE,
    BrokenChain,
    check_abandoned,
    check_abandonment,
    check_commitment,
    check_committed,
    check_confirmation,
    check_ending,
    digests,
    input_of,
    is_ended,
    sign_abandonment,
    sign_commitment,
    sign_confirmation,
    sign_voided,
)
from support.rounds import committed_list
from support.stated_rounds import LIST, OTHER, PARTIES, STUDY, D, check, copy, resigned


def test_a_commitment_is_one_mixs_for_one_list_of_one_round() -> None:
    first, second = STUDY.mixes[:2]
    list_hash = sha256(LIST).digest()
    signature = sign_commitment(D, list_hash, PARTIES.mix_key(0))
    check_commitment(signature, D, list_hash, first)
    for digest, hashed, mix in [
        (OTHER.digest, list_hash, first),
        (D, sha256(LIST[32:]).digest(), first),
        (D, LIST, first),
        (D, list_hash, second),
    ]:
        with pytest.raises(ForgedSignature, match="commitment"):
            check_commitment(signature, RoundDigest(digest), hashed, mix)


def test_a_committed_list_is_every_mixs_for_one_round() -> None:
    committed = committed_list(PARTIES, D, LIST)
    check_committed(committed, STUDY)
    for field, value in [
        ("digest", OTHER.digest),
        ("list", LIST[32:]),
        ("list", LIST[32:] + LIST[:32]),
        ("list", b""),
    ]:
        bent = type(committed).FromString(committed.SerializeToString())
        setattr(bent, field, value)
        with pytest.raises(ForgedSignature, match="commitment"):
            check_committed(bent, STUDY)


Signatures = list[bytes]


def check_list_signed(signatures: Signatures) -> None:
    committed = channel_pb2.RoundCommitted(digest=D, list=LIST, signatures=signatures)
    check_committed(committed, STUDY)


TOO_FEW_OR_MANY: dict[str, Callable[[Signatures], Signatures]] = {
    "none": lambda signed: [],
    "no first": lambda signed: signed[1:],
    "no second": lambda signed: [signed[0], signed[2]],
    "no last": lambda signed: signed[:-1],
    "one more": lambda signed: [*signed, signed[-1]],
    "the server's, too": lambda signed: [*signed, by("server")],
}
NOT_EVERY_MIXS: dict[str, Callable[[Signatures], Signatures]] = {
    "reversed": lambda signed: signed[::-1],
    "two swapped": lambda signed: [signed[0], signed[2], signed[1]],
    "one mix for all": lambda signed: [signed[0]] * 3,
    "one mix twice": lambda signed: [signed[0], signed[1], signed[1]],
    "an empty one": lambda signed: [signed[0], b"", signed[2]],
    "zeros": lambda signed: [bytes(64), *signed[1:]],
    "a bit flipped": lambda signed: [*signed[:2], bytes([signed[2][0] ^ 1]) + signed[2][1:]],
    "the server's for the last mix's": lambda signed: [*signed[:2], by("server")],
    "a silo's for the first mix's": lambda signed: [by("silo-0"), *signed[1:]],
    "a confirmation": lambda signed: [by("mix-1", "confirmation"), *signed[1:]],
    "one of another list": lambda signed: [
        signed[0], committed_list(PARTIES, D, LIST[32:]).signatures[1], signed[2]
    ],
    "one of another round": lambda signed: [
        *signed[:2], committed_list(PARTIES, OTHER.digest, LIST).signatures[2]
    ],
}  # fmt: skip


def by(party: str, purpose: str = "commitment") -> bytes:
    return PARTIES.keys[party].sign(purpose, D, sha256(LIST).digest())


@pytest.mark.parametrize("change", TOO_FEW_OR_MANY.values(), ids=TOO_FEW_OR_MANY)
def test_a_committed_list_has_one_signature_of_every_mix(
    change: Callable[[Signatures], Signatures],
) -> None:
    signed = list(committed_list(PARTIES, D, LIST).signatures)
    with pytest.raises(BrokenChain, match="a signature of every mix"):
        check_list_signed(change(signed))


@pytest.mark.parametrize("change", NOT_EVERY_MIXS.values(), ids=NOT_EVERY_MIXS)
def test_a_committed_list_that_one_mix_does_not_stand_by_is_forged(
    change: Callable[[Signatures], Signatures],
) -> None:
    signed = list(committed_list(PARTIES, D, LIST).signatures)
    check_list_signed(signed)
    with pytest.raises(ForgedSignature, match="commitment"):
        check_list_signed(change(signed))


@pytest.mark.parametrize("length", [1, 31, 33, 127])
def test_a_committed_list_is_made_of_digests(length: int) -> None:
    with pytest.raises(BrokenChain, match="made of digests"):
        check_committed(committed_list(PARTIES, D, bytes(length)), STUDY)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5))
def test_a_list_is_its_digests_back_to_back(parts: list[bytes]) -> None:
    assert digests(b"".join(parts)) == parts


@settings(deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32), max_size=6), st.randoms())
def test_what_came_in_first_tells_no_order(parts: list[bytes], rng: Random) -> None:
    shuffled = list(parts)
    rng.shuffle(shuffled)
    assert input_of(shuffled) == input_of(parts) == sha256(b"".join(sorted(parts))).digest()


@pytest.mark.parametrize("place", [0, 5])
def test_a_confirmation_is_one_silos_for_one_list_of_one_round(place: int) -> None:
    hashed, name = sha256(LIST).digest(), f"silo-{place}"
    confirmation = sign_confirmation(D, LIST, place, PARTIES.keys[name])
    assert check_confirmation(confirmation, D, hashed, STUDY) == name
    for digest, list_hash in [(OTHER.digest, hashed), (D, bytes(32)), (D, LIST)]:
        with pytest.raises(ForgedSignature, match="confirmation"):
            check_confirmation(confirmation, RoundDigest(digest), list_hash, STUDY)
    confirmation.silo = 5 - place
    with pytest.raises(ForgedSignature, match="confirmation"):
        check_confirmation(confirmation, D, hashed, STUDY)


@pytest.mark.parametrize("place", [6, 2**32 - 1])
def test_a_confirmation_of_nobody_is_forged(place: int) -> None:
    confirmation = sign_confirmation(D, LIST, place, PARTIES.keys["silo-0"])
    with pytest.raises(ForgedSignature, match="no silo of the study"):
        check_confirmation(confirmation, D, sha256(LIST).digest(), STUDY)


def test_the_servers_signature_confirms_nothing() -> None:
    confirmation = sign_confirmation(D, LIST, 0, PARTIES.keys["server"])
    with pytest.raises(ForgedSignature):
        check_confirmation(confirmation, D, sha256(LIST).digest(), STUDY)


def abandoned(
    digest: RoundDigest = D, reason: str = "mix-2 is away"
) -> list[round_pb2.Abandonment]:
    return [sign_abandonment(digest, reason, PARTIES.mix_key(hop)) for hop in range(3)]


def test_an_attempt_is_abandoned_when_every_mix_said_so() -> None:
    check_abandoned(abandoned(), D, STUDY)
    check_abandoned([*abandoned(OTHER.digest), *abandoned()], D, STUDY)
    check_abandoned([*abandoned(), *abandoned(OTHER.digest)], D, STUDY)


def test_reasons_may_be_any_text_of_200_characters() -> None:
    for reason in ("", "größer\n\0", "x" * 300):
        statements = abandoned(reason=reason)
        assert {each.reason for each in statements} == {reason[:200]}
        check_abandoned(statements, D, STUDY)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_mix_has_not_abandoned(missing: int) -> None:
    statements = abandoned()
    del statements[missing]
    with pytest.raises(BrokenChain, match="not every mix"):
        check_abandoned(statements, D, STUDY)
    with pytest.raises(BrokenChain, match="not every mix"):
        check_abandoned([*statements, *abandoned(OTHER.digest)], D, STUDY)


def test_one_mix_cannot_speak_for_another() -> None:
    statements = abandoned()
    for wrong in ([statements[0]] * 3, statements[::-1], [statements[0], *statements[:2]]):
        with pytest.raises(ForgedSignature, match="abandonment"):
            check_abandoned(wrong, D, STUDY)
    with pytest.raises(BrokenChain, match="not every mix"):
        check_abandoned([*statements, statements[0]], D, STUDY)


def test_an_abandonment_does_not_move_to_another_attempt() -> None:
    statements = abandoned(OTHER.digest)
    with pytest.raises(BrokenChain, match="not every mix"):
        check_abandoned(statements, D, STUDY)
    for each in statements:
        each.digest = D
    with pytest.raises(ForgedSignature, match="abandonment"):
        check_abandoned(statements, D, STUDY)


def test_a_reason_cannot_be_changed() -> None:
    statements = abandoned()
    statements[1].reason = "another"
    with pytest.raises(ForgedSignature, match="abandonment"):
        check_abandoned(statements, D, STUDY)


MIX, KEY = STUDY.mixes[0], PARTIES.mix_key(0)
UNKNOWN = b"\xfa\x3e\x90\x4e" + bytes(10_000)  # field 1007: nobody knows it, all hand it on


def long_abandonment(reason: str) -> round_pb2.Abandonment:
    """What a mix could sign that does not cut its reason."""
    signature = KEY.sign("abandonment", D, reason.encode())
    return round_pb2.Abandonment(digest=D, reason=reason, signature=signature)


def long_void(reason: str, disclosed: bytes = b"") -> round_pb2.Ending:
    signature = KEY.sign("void", D, reason.encode(), disclosed)
    voided = round_pb2.Voided(digest=D, reason=reason, disclosed=disclosed, signature=signature)
    return round_pb2.Ending(voided=voided)


def test_a_reason_that_is_longer_than_200_characters_counts_as_no_statement() -> None:
    """Three of them would not fit into the message that tells silos how a round ended."""
    check_abandonment(long_abandonment("ü" * 200), D, MIX)
    check_ending(long_void("\N{SNOWMAN}" * 200), D, MIX)
    for reason in ("x" * 201, "x" * 10**6):
        with pytest.raises(BrokenChain, match="more than fits"):
            check_abandonment(long_abandonment(reason), D, MIX)
        with pytest.raises(BrokenChain, match="more than fits"):
            check_ending(round_pb2.Ending(abandoned=long_abandonment(reason)), D, MIX)
        with pytest.raises(BrokenChain, match="more than fits"):
            check_ending(long_void(reason), D, MIX)


def test_nothing_else_makes_a_statement_longer() -> None:
    abandoned = round_pb2.Abandonment.FromString(
        sign_abandonment(D, "reason", KEY).SerializeToString() + UNKNOWN
    )
    with pytest.raises(BrokenChain, match="more than fits"):
        check_abandonment(abandoned, D, MIX)
    with pytest.raises(BrokenChain, match="more than fits"):
        check_ending(long_void("reason", disclosed=bytes(10**5)), D, MIX)
    for change in ({"input": bytes(10**5)}, {"aborted": "x" * 201, "forwarded": 0, "output": b""}):
        statement = copy()[0]
        for name, value in change.items():
            setattr(statement, name, value)
        with pytest.raises(BrokenChain, match="more than fits"):
            check(resigned([statement]), hops=1)


def test_a_disclosure_fits_into_a_message() -> None:
    check_ending(sign_voided(D, "reason", bytes(LARGEST_DISCLOSURE), KEY), D, MIX)
    larger = sign_voided(D, "reason", bytes(LARGEST_DISCLOSURE + 2**12), KEY)
    with pytest.raises(BrokenChain, match="discloses more"):
        check_ending(larger, D, MIX)


def test_a_mix_that_is_not_certain_does_not_make_a_round_void() -> None:
    """It may be the only honest one, and its key in the hands of the others."""
    endings = [sign_voided(D, "reason", b"", PARTIES.mix_key(hop)) for hop in range(3)]
    assert is_ended(endings, D, STUDY)
    endings[1] = sign_voided(D, "reason", b"", PARTIES.mix_key(1), uncertain=True)
    assert not is_ended(endings, D, STUDY)
    for place, uncertain in ((1, False), (0, True)):
        changed = [round_pb2.Ending.FromString(each.SerializeToString()) for each in endings]
        changed[place].voided.uncertain = uncertain
        with pytest.raises(ForgedSignature):
            is_ended(changed, D, STUDY)
