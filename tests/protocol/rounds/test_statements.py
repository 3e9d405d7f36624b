"""Statements of a round: they fit together, each is its party's, none moves elsewhere."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from silomix_proto import round_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import (
    BrokenChain,
    check_chain,
    check_receipt,
    digests,
    input_of,
    sign_receipt,
)
from support.rounds import hop_statement, joined
from support.stated_rounds import (
    LIST,
    MIXED,
    ONIONS,
    OTHER,
    PARTIES,
    STUDY,
    Chain,
    D,
    check,
    copy,
    resigned,
)

CAME = sha256(b"what came in").digest()


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
