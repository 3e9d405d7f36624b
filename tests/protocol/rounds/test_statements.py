"""Statements of a round: they fit together, each is its party's, none moves elsewhere."""

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
    check_chain,
    check_commitment,
    check_committed,
    check_confirmation,
    check_ending,
    check_receipt,
    digests,
    input_of,
    is_ended,
    sign_abandonment,
    sign_commitment,
    sign_confirmation,
    sign_hop,
    sign_receipt,
    sign_voided,
)
from support.rounds import (
    committed_list,
    hop_statement,
    joined,
    make_parties,
    make_round,
    mixed,
)

Chain = list[round_pb2.HopStatement]

PARTIES = make_parties(silos=6, mixes=3, minimum=3)
STUDY = PARTIES.study
ROUND = make_round(STUDY, PARTIES.keys["server"])
OTHER = make_round(STUDY, PARTIES.keys["server"], 2)
D = ROUND.digest
ONIONS = [ROUND.seal(bytes([place])).sealed for place in range(5)]
MIXED = mixed(PARTIES, ROUND, ONIONS)
LIST = joined([b"one", b"two", b"three", b"four"])
CAME = sha256(b"what came in").digest()


def copy(chain: Chain = MIXED.chain) -> Chain:
    return [round_pb2.HopStatement.FromString(each.SerializeToString()) for each in chain]


def resigned(chain: Chain, digest: RoundDigest = D) -> Chain:
    """What mixes that all lie together could state."""
    return [sign_hop(digest, each, PARTIES.mix_key(hop)) for hop, each in enumerate(chain)]


def check(chain: Chain, hops: int = 3) -> None:
    check_chain(chain, ROUND.descriptor, STUDY, hops)


# The chain ---------------------------------------------------------------------------------------


def test_what_honest_mixes_state_fits_together() -> None:
    check(MIXED.chain)
    assert [each.forwarded for each in MIXED.chain] == [5, 5, 5]
    assert [each.hop for each in MIXED.chain] == [0, 1, 2]
    assert digests(MIXED.chain[-1].output) == [sha256(each).digest() for each in MIXED.gated]
    assert MIXED.chain[0].input == input_of(sha256(each).digest() for each in ONIONS)


@pytest.mark.parametrize("hops", [1, 2])
def test_a_mix_reads_the_statements_of_those_before_it(hops: int) -> None:
    check(MIXED.chain[:hops], hops)


def drop(place: int) -> Callable[[Chain], Chain]:
    return lambda chain: chain[:place] + chain[place + 1 :]


@pytest.mark.parametrize(
    "change",
    [drop(0), drop(1), drop(2), lambda chain: [*chain, chain[-1]], lambda chain: []],
    ids=["no first", "no second", "no third", "one more", "none"],
)
def test_a_chain_has_one_statement_of_every_mix(change: Callable[[Chain], Chain]) -> None:
    with pytest.raises(BrokenChain, match="3 statements are needed"):
        check(change(copy()))


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (0, 0, 1), (0, 1, 1)])
def test_statements_have_their_order(order: tuple[int, ...]) -> None:
    chain = copy()
    with pytest.raises(BrokenChain, match="out of order"):
        check([chain[place] for place in order])


def test_a_statement_under_another_mixs_number_is_forged() -> None:
    chain = copy()
    chain[1].CopyFrom(chain[0])
    chain[1].hop = 1
    with pytest.raises(ForgedSignature):
        check(chain)


CHANGES: dict[str, Callable[[round_pb2.HopStatement], object]] = {
    "received": lambda each: setattr(each, "received", 6),
    "forwarded": lambda each: setattr(each, "forwarded", 4),
    "dropped": lambda each: setattr(each, "dropped", 1),
    "input": lambda each: setattr(each, "input", bytes(32)),
    "output": lambda each: setattr(each, "output", each.output[32:] + each.output[:32]),
    "aborted": lambda each: setattr(each, "aborted", "because"),
    "signature": lambda each: setattr(each, "signature", bytes(64)),
}


@pytest.mark.parametrize("field", [*CHANGES, "hop"])
@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_signature_covers_every_field_of_a_statement(field: str, hop: int) -> None:
    assert {*CHANGES, "hop"} == set(round_pb2.HopStatement.DESCRIPTOR.fields_by_name)
    chain = copy()
    if field == "hop":
        chain[hop].hop = 7
        with pytest.raises(BrokenChain):
            check(chain)
    else:
        CHANGES[field](chain[hop])
        with pytest.raises(ForgedSignature):
            check(chain)


def test_a_chain_does_not_move_to_another_round() -> None:
    with pytest.raises(ForgedSignature):
        check_chain(MIXED.chain, OTHER.descriptor, STUDY, 3)


def test_a_statement_for_another_purpose_is_forged() -> None:
    chain = copy()
    chain[0].signature = PARTIES.mix_key(0).sign("receipt", D)
    with pytest.raises(ForgedSignature):
        check(chain)


@pytest.mark.parametrize("hop", [0, 1])
def test_a_replaced_output_does_not_fit_what_the_next_mix_received(hop: int) -> None:
    chain = copy()
    chain[hop].output = joined([b"a", b"b", b"c", b"d", b"e"])
    with pytest.raises(BrokenChain, match=f"mix-{hop + 2} received another batch"):
        check(resigned(chain))


@pytest.mark.parametrize("hop", [0, 1])
def test_a_digest_injected_after_the_fact_does_not_fit(hop: int) -> None:
    chain = copy()
    chain[hop].output += sha256(b"injected").digest()
    chain[hop].forwarded += 1
    chain[hop].received += 1
    expected = "mix-2 counts other reports" if hop == 1 else "mix-2 received another batch"
    with pytest.raises(BrokenChain, match=expected):
        check(resigned(chain))


def test_a_mix_cannot_count_other_reports_than_it_was_given() -> None:
    chain = copy()
    chain[1].received += 1
    chain[1].dropped += 1
    with pytest.raises(BrokenChain, match="mix-2 counts other reports than its predecessor"):
        check(resigned(chain))


def alone(**fields: object) -> Chain:
    """The statement of the first mix with these fields, properly signed."""
    statement = round_pb2.HopStatement(received=4, forwarded=4, input=CAME, output=LIST)
    for name, value in fields.items():
        setattr(statement, name, value)
    return resigned([statement])


def test_a_mix_may_drop_some_reports() -> None:
    check(alone(), 1)
    check(alone(received=6, dropped=2), 1)


MISCOUNTED: dict[str, dict[str, object]] = {
    "received too many": {"received": 7, "dropped": 3},
    "received more than it accounts for": {"received": 5},
    "received fewer than it forwarded": {"received": 3},
    "wrapped around": {"received": 3, "dropped": 2**32 - 1},
    "dropped without receiving": {"dropped": 1},
    "forwarded more than listed": {"received": 5, "forwarded": 5},
    "forwarded fewer than listed": {"forwarded": 3, "dropped": 1},
    "forwarded very many": {"received": 2**32 - 1, "forwarded": 2**32 - 1},
    "half a digest": {"output": LIST + bytes(16)},
    "half a digest, counted": {"received": 5, "forwarded": 5, "output": LIST + bytes(16)},
    "a digest twice": {"output": LIST[:32] + LIST[:96]},
    "below the minimum": {"received": 2, "forwarded": 2, "output": LIST[:64]},
    "below the minimum by dropping": {"forwarded": 2, "dropped": 2, "output": LIST[:64]},
    "nothing, without a reason": {"received": 0, "forwarded": 0, "output": b""},
    "aborted, with output": {"aborted": "because"},
    "aborted, with a count": {"aborted": "because", "output": b""},
    "aborted, with a list": {"aborted": "because", "forwarded": 0},
}


@pytest.mark.parametrize("name", MISCOUNTED)
def test_counts_that_do_not_add_up_are_refused_and_the_mix_is_named(name: str) -> None:
    with pytest.raises(BrokenChain, match="the counts of mix-1 do not add up"):
        check(alone(**MISCOUNTED[name]), 1)


# Aborted batches ---------------------------------------------------------------------------------


def test_an_aborted_batch_says_why_all_the_way() -> None:
    came, empty = CAME, sha256(b"").digest()
    chain = [
        hop_statement(PARTIES, D, 0, came, b"", dropped=2, aborted="2 reports, 3 needed"),
        hop_statement(PARTIES, D, 1, empty, b"", aborted="nothing came"),
        hop_statement(PARTIES, D, 2, empty, b"", aborted="nothing came"),
    ]
    check(chain)


def test_a_mix_in_the_middle_may_abort() -> None:
    chain = copy()
    chain[1] = hop_statement(PARTIES, D, 1, chain[1].input, b"", dropped=5, aborted="too few")
    chain[2] = hop_statement(PARTIES, D, 2, sha256(b"").digest(), b"", aborted="too few")
    check(chain)


def test_nothing_comes_out_behind_a_mix_that_aborted() -> None:
    """A later mix cannot fill an aborted batch with reports of its own."""
    chain = copy()
    chain[1] = hop_statement(PARTIES, D, 1, chain[1].input, b"", dropped=5, aborted="too few")
    for came in (chain[2].input, sha256(b"").digest()):
        chain[2] = hop_statement(PARTIES, D, 2, came, chain[2].output)
        with pytest.raises(BrokenChain, match="mix-3"):
            check(chain)


# Receipts ----------------------------------------------------------------------------------------


def test_a_receipt_is_the_first_mixs_for_one_report_of_one_silo_in_one_round() -> None:
    report = sha256(ONIONS[0]).digest()
    receipt = sign_receipt(D, 2, report, PARTIES.mix_key(0))
    check_receipt(receipt, D, 2, report, STUDY)
    assert (receipt.digest, receipt.report, receipt.status) == (D, report, receipt.ACCEPTED)
    for digest, place, other in [(D, 2, bytes(32)), (OTHER.digest, 2, report), (D, 3, report)]:
        with pytest.raises(ForgedSignature, match="receipt"):
            check_receipt(receipt, RoundDigest(digest), place, other, STUDY)
    with pytest.raises(ForgedSignature, match="receipt"):
        check_receipt(sign_receipt(D, 2, report, PARTIES.mix_key(1)), D, 2, report, STUDY)
    receipt.ClearField("signature")
    with pytest.raises(ForgedSignature, match="receipt"):
        check_receipt(receipt, D, 2, report, STUDY)


# Committed lists ---------------------------------------------------------------------------------


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


# Confirmations -----------------------------------------------------------------------------------


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


# Abandonments ------------------------------------------------------------------------------------


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


# What fits ----------------------------------------------------------------------------------------

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


# Endings ------------------------------------------------------------------------------------------


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
