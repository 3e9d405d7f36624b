"""Complaints: what is sent says that a report is missing; what its operator keeps says where."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.complaints import (
    ComplaintFinding,
    check_complaint,
    lost_at,
    sign_complaint,
)
from silomix_protocol.rounds.descriptor import RefusedDescriptor
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import BrokenChain, sign_hop
from support.rounds import (
    committed_list,
    hop_statement,
    joined,
    make_round,
    mixed,
    parties_asking,
    receipt,
)

PARTIES = parties_asking(4, silos=5, mixes=3)  # silo-4 is not asked
STUDY, SERVER = PARTIES.study, PARTIES.keys["server"]
ROUND = make_round(STUDY, SERVER)
OTHER = make_round(STUDY, SERVER, next(n for n in (2, 3) if "silo-0" in STUDY.asked(n)))
ONIONS = [ROUND.seal(bytes([place])) for place in range(4)]
SEALED = [onion.sealed for onion in ONIONS]
MIXED = mixed(PARTIES, ROUND, SEALED)
LOST = range(4)  # at a mix, or in the committed list alone
ACCUSED = ["mix-1", "mix-2", "mix-3", "mix-3"]


def without_report(lost: int) -> tuple[list[round_pb2.HopStatement], bytes]:
    """Statements and committed list if the report of silo-0 was lost at this place."""
    reports, chain = [onion.sealed for onion in ONIONS], []
    came = bytes(32)
    for hop, mix in enumerate(ROUND.mixes):
        reports = [open_layer(each, mix.seal, hop, ROUND.digest) for each in reports]
        if hop == lost:
            reports = reports[1:]
        dropped = 1 if hop == lost else 0
        output = joined(reports)
        chain.append(hop_statement(PARTIES, ROUND.digest, hop, came, output, dropped=dropped))
        came = sha256(output).digest()
    return chain, joined(reports[1:] if lost == len(ROUND.mixes) else reports)


def sent(lost: int = 0, silo: int = 0) -> channel_pb2.Complaint:
    """What goes over the wire."""
    return sign_complaint(
        ROUND.descriptor,
        silo,
        receipt(PARTIES, ROUND, SEALED[0], silo),
        committed_list(PARTIES, ROUND.digest, without_report(lost)[1]),
        PARTIES.keys[f"silo-{silo}"],
    )


def kept(lost: int = 0) -> channel_pb2.Complaint:
    """What the silo's operator keeps."""
    made = sent(lost)
    made.trail.extend(ONIONS[0].trail)
    made.chain.extend(without_report(lost)[0])
    return made


def signed_again(made: channel_pb2.Complaint, silo: str = "silo-0") -> channel_pb2.Complaint:
    """The complaint under a good signature, whatever was changed in it."""
    copy = sign_complaint(
        ROUND.descriptor, made.silo, made.receipt, made.committed, PARTIES.keys[silo]
    )
    copy.descriptor.CopyFrom(made.descriptor)
    copy.trail.extend(made.trail)
    copy.chain.extend(made.chain)
    return copy


# Where a report was lost -------------------------------------------------------------------------


@pytest.mark.parametrize("lost", LOST)
def test_a_report_was_lost_where_it_is_first_missing(lost: int) -> None:
    """At the last mix if only the committed list lacks it: it stands by that list, too."""
    chain, listed = without_report(lost)
    assert lost_at(ONIONS[0].trail, chain, listed) == min(lost, 2)
    assert [lost_at(each.trail, chain, listed) for each in ONIONS[1:]] == [None] * 3


def test_nothing_is_missing_from_an_honest_batch() -> None:
    for onion in ONIONS:
        assert lost_at(onion.trail, MIXED.chain, MIXED.committed.list) is None


def test_half_of_one_digest_and_half_of_the_next_is_no_report() -> None:
    listed = MIXED.committed.list
    straddling = (*ONIONS[0].trail[:-1], listed[16:48])
    chain = [*MIXED.chain[:-1], sign_hop(ROUND.digest, MIXED.chain[-1], PARTIES.mix_key(2))]
    assert lost_at(straddling, chain, listed) == 2


# What a complaint shows --------------------------------------------------------------------------


@pytest.mark.parametrize("lost", LOST)
def test_the_operators_copy_names_who_lost_the_report_and_what_is_sent_does_not(lost: int) -> None:
    assert check_complaint(sent(lost), STUDY) == ComplaintFinding("silo-0", 1, None)
    assert check_complaint(kept(lost), STUDY) == ComplaintFinding("silo-0", 1, ACCUSED[lost])


@pytest.mark.parametrize("field", ["trail", "chain"])
def test_half_of_the_evidence_names_nobody(field: str) -> None:
    """The copy before the mixes' statements came; and statements without the digests."""
    made = kept()
    made.ClearField(field)
    assert check_complaint(made, STUDY) == ComplaintFinding("silo-0", 1, None)


@pytest.mark.parametrize("lost", LOST)
def test_a_complaint_as_it_is_sent_says_neither_which_report_it_was_nor_where_it_was_lost(
    lost: int,
) -> None:
    made = sent(lost)
    assert {field.name for field, _ in made.ListFields()} <= {
        "descriptor",
        "silo",
        "receipt",
        "committed",
        "signature",
    }
    wire = made.SerializeToString()
    assert not any(digest in wire for digest in ONIONS[0].trail[1:])
    assert not any(each.signature in wire for each in without_report(lost)[0])
    assert wire.count(ONIONS[0].trail[0]) == 1, "in the receipt, of what the first mix knows"


def test_complaints_of_one_silo_about_one_list_are_the_same_wherever_its_report_was_lost() -> None:
    assert without_report(0)[1] == without_report(1)[1] == without_report(3)[1]
    assert len({sent(lost).SerializeToString() for lost in LOST}) == 1


@pytest.mark.parametrize("make", [sent, kept])
def test_a_complaint_survives_the_wire_and_a_file(
    make: Callable[[], channel_pb2.Complaint],
) -> None:
    made = make()
    again = channel_pb2.Complaint.FromString(made.SerializeToString())
    assert check_complaint(again, STUDY) == check_complaint(made, STUDY)


# Wrong complaints --------------------------------------------------------------------------------


def test_a_report_that_is_there_is_nothing_to_complain_about() -> None:
    made = sign_complaint(
        ROUND.descriptor,
        0,
        receipt(PARTIES, ROUND, SEALED[0]),
        MIXED.committed,
        PARTIES.keys["silo-0"],
    )
    made.trail.extend(ONIONS[0].trail)
    made.chain.extend(MIXED.chain)
    with pytest.raises(BrokenChain, match="said to be missing is there"):
        check_complaint(made, STUDY)


@pytest.mark.parametrize(
    "change",
    [
        lambda trail: trail[:1],
        lambda trail: trail[:3],
        lambda trail: [*trail, bytes(32)],
        lambda trail: [bytes(32), *trail[1:]],
        lambda trail: trail[1:],
        lambda trail: trail[::-1],
    ],
    ids=["one", "three", "five", "another onion", "without the onion", "reversed"],
)
def test_digests_that_are_not_those_of_the_receipt_show_nothing(
    change: Callable[[list[bytes]], list[bytes]],
) -> None:
    made = kept()
    trail = change(list(made.trail))
    del made.trail[:]
    made.trail.extend(trail)
    with pytest.raises(BrokenChain, match="not those of the report in the receipt"):
        check_complaint(made, STUDY)


@pytest.mark.parametrize("silo", [5, 2**32 - 1])
def test_a_complaint_names_a_silo_of_the_study(silo: int) -> None:
    made = kept()
    made.silo = silo
    with pytest.raises(BrokenChain, match="no silo of the study"):
        check_complaint(signed_again(made), STUDY)


def test_a_silo_that_was_not_asked_has_nothing_to_complain_about() -> None:
    with pytest.raises(BrokenChain, match="did not ask silo-4"):
        check_complaint(sent(silo=4), STUDY)


@pytest.mark.parametrize("make", [sent, kept])
def test_the_receipt_of_another_silo_is_no_evidence(
    make: Callable[[], channel_pb2.Complaint],
) -> None:
    """Else one silo with a receipt could complain in the place of any other."""
    made = make()
    made.silo = 1
    with pytest.raises(ForgedSignature, match="receipt"):
        check_complaint(signed_again(made, "silo-1"), STUDY)


def test_the_list_of_another_round_is_no_evidence() -> None:
    made = kept()
    made.committed.CopyFrom(committed_list(PARTIES, OTHER.digest, made.committed.list))
    with pytest.raises(BrokenChain, match="another round"):
        check_complaint(signed_again(made), STUDY)


@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_list_that_not_every_mix_signed_is_no_evidence(hop: int) -> None:
    made = sent()
    del made.committed.signatures[hop]
    with pytest.raises(BrokenChain, match="a signature of every mix"):
        check_complaint(signed_again(made), STUDY)


def test_statements_that_do_not_fit_are_no_evidence() -> None:
    made = kept()
    del made.chain[1]
    with pytest.raises(BrokenChain, match="3 statements are needed"):
        check_complaint(signed_again(made), STUDY)


FORGED: dict[str, Callable[[channel_pb2.Complaint], object]] = {
    "the receipt": lambda made: setattr(made.receipt, "signature", bytes(64)),
    "the receipt's report": lambda made: setattr(made.receipt, "report", bytes(32)),
    "a statement": lambda made: setattr(made.chain[0], "output", made.chain[0].output[::-1]),
    "the list's first signature": lambda made: made.committed.signatures.__setitem__(0, bytes(64)),
    "the list's last signature": lambda made: made.committed.signatures.__setitem__(2, bytes(64)),
    "the order of the list's signatures": lambda made: made.committed.signatures.reverse(),
    "the list": lambda made: setattr(made.committed, "list", made.committed.list[32:]),
    "a receipt of another round": lambda made: made.receipt.CopyFrom(
        receipt(PARTIES, OTHER, SEALED[0])
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_evidence_is_forged_under_any_complaint(name: str) -> None:
    made = kept()
    FORGED[name](made)
    with pytest.raises(ForgedSignature):
        check_complaint(signed_again(made), STUDY)


UNSIGNED: dict[str, Callable[[channel_pb2.Complaint], object]] = {
    "another silo": lambda made: setattr(made, "silo", 1),
    "another list": lambda made: made.committed.CopyFrom(MIXED.committed),
    "no signature": lambda made: setattr(made, "signature", b""),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_nobody_complains_in_another_silos_name(name: str) -> None:
    made = sent()
    UNSIGNED[name](made)
    with pytest.raises(ForgedSignature, match="complaint"):
        check_complaint(made, STUDY)


def test_a_complaint_of_another_round_is_refused() -> None:
    made = sent()
    made.descriptor.CopyFrom(OTHER.descriptor.to_wire())
    with pytest.raises(ForgedSignature, match="complaint"):
        check_complaint(made, STUDY)
    made.descriptor.signature = bytes(64)
    with pytest.raises(RefusedDescriptor):
        check_complaint(made, STUDY)


def test_an_empty_complaint_is_refused() -> None:
    with pytest.raises(RefusedDescriptor):
        check_complaint(channel_pb2.Complaint(), STUDY)
