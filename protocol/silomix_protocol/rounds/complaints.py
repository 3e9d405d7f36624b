"""Complaints: a silo's report is missing from the committed list.

The complaint that is sent says no more than that.  A silo knows the digest of its report at every
hop, and the mixes' statements say what each put out, so the silo can find where its report went
missing; but a party that is told where, and still holds the report, would learn whose it is.  So
only the operator's copy says it: it names the party that has to explain the loss to whomever the
operator shows the copy.  If the round is void, the copy also has what the mixes disclosed: then it
proves who is to blame (`blame`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from silomix_core.study.study import Study
from silomix_proto import channel_pb2, mix_pb2, round_pb2

from silomix_protocol.keys import ForgedSignature, SigningKey, number, verify
from silomix_protocol.rounds.blame import Displaced, NotLost, at_fault, trace
from silomix_protocol.rounds.descriptor import Descriptor, check
from silomix_protocol.rounds.statements import (
    BrokenChain,
    check_chain,
    check_committed,
    check_receipt,
    digests,
)


class NothingMissing(BrokenChain):
    """The report is not missing: every mix states that it put it out, and the list has it."""


@dataclass(frozen=True, slots=True)
class ComplaintFinding:
    """What a complaint shows: whose report is missing, in which round; in the operator's copy, who
    has to explain the loss (`accused`).  The digests there are the silo's word; receipt, list and
    statements are not.  `proven`: the digests and who is to blame follow from disclosed keys."""

    silo: str
    round: int
    accused: str | None
    proven: bool = False


def lost_at(
    trail: Sequence[bytes], chain: Sequence[round_pb2.HopStatement], committed: bytes
) -> int | None:
    """The first hop whose output lacks the report; the last hop if only the list lacks it.

    `trail` is the report's digest at each mix and then at the server.  None: nothing is missing.
    """
    for hop, statement in enumerate(chain):
        if trail[hop + 1] not in digests(statement.output):
            return hop
    return None if trail[-1] in digests(committed) else len(chain) - 1


def sign_complaint(
    descriptor: Descriptor,
    place: int,
    receipt: mix_pb2.Receipt,
    committed: channel_pb2.RoundCommitted | None,
    key: SigningKey,
) -> channel_pb2.Complaint:
    """The signed complaint of the silo at `place` of the roster; with no list, its operator's."""
    made = channel_pb2.Complaint(
        descriptor=descriptor.to_wire(), silo=place, receipt=receipt, committed=committed
    )
    made.signature = key.sign("complaint", *_signed(made, descriptor))
    return made


def _signed(complaint: channel_pb2.Complaint, descriptor: Descriptor) -> tuple[bytes, ...]:
    listed = sha256(complaint.committed.list).digest()
    return descriptor.digest, number(complaint.silo), listed


def check_complaint(complaint: channel_pb2.Complaint, study: Study) -> ComplaintFinding:
    """Check a complaint and return what it shows, or raise an error if it shows nothing."""
    descriptor = check(complaint.descriptor, study)
    if complaint.silo >= len(study.silos):
        raise BrokenChain("the complaint names no silo of the study")
    silo = study.silos[complaint.silo]
    if silo.name not in descriptor.silos:
        raise BrokenChain(f"the round did not ask {silo.name}")
    receipt, committed = complaint.receipt, complaint.committed
    verify(silo.sign_key, complaint.signature, "complaint", *_signed(complaint, descriptor))
    check_receipt(receipt, descriptor.digest, complaint.silo, receipt.report, study)
    if complaint.HasField("committed"):
        check_committed(committed, study)
        if committed.digest != descriptor.digest:
            raise BrokenChain("the list belongs to another round")
    elif not complaint.chain:
        raise BrokenChain("neither a list nor statements of the mixes show that it is missing")
    return _finding(complaint, descriptor, study)


def _finding(
    complaint: channel_pb2.Complaint, descriptor: Descriptor, study: Study
) -> ComplaintFinding:
    """The finding; an operator's copy accuses the mix that lost the report, or the silo itself."""
    silo, round_number = study.silos[complaint.silo].name, descriptor.round
    trail, chain = list(complaint.trail), complaint.chain
    if not trail or not chain:
        return ComplaintFinding(silo, round_number, None)
    check_chain(chain, descriptor, study, len(study.mixes))
    if len(trail) != len(chain) + 1 or trail[0] != complaint.receipt.report:
        raise BrokenChain("the digests are not those of the report in the receipt")
    if complaint.onion:
        shown = _shown_by_keys(complaint, descriptor, study)
        if shown is not None:
            return shown
    listed = complaint.committed.list or chain[-1].output
    hop = lost_at(trail, chain, listed)
    if hop is None:
        raise NothingMissing("the report that is said to be missing is there")
    return ComplaintFinding(silo, round_number, study.mixes[hop].name)


def _shown_by_keys(
    complaint: channel_pb2.Complaint, descriptor: Descriptor, study: Study
) -> ComplaintFinding | None:
    """The finding of who is to blame, a mix or the silo itself, if the disclosed keys show it."""
    if sha256(complaint.onion).digest() != complaint.receipt.report:
        raise BrokenChain("the onion is not the one in the receipt")
    if not complaint.endings or not all(each.disclosure for each in complaint.endings):
        return None  # a mix that was started again, or lies about it, discloses nothing
    if len(complaint.endings) != len(complaint.chain):
        raise BrokenChain("not every mix said how the round ended")
    silo, told = study.silos[complaint.silo].name, (complaint.chain, complaint.endings)
    try:
        hop = at_fault(complaint.onion, complaint.silo, *told, descriptor, study)
    except (NotLost, BrokenChain, ForgedSignature):
        return None  # a disclosure that does not fit proves nothing, and must hide nothing
    except Displaced as elsewhere:
        return ComplaintFinding(silo, descriptor.round, study.mixes[elsewhere.hop].name)
    accused = silo if hop is None else study.mixes[hop].name
    return ComplaintFinding(silo, descriptor.round, accused, proven=True)


def check_evidence(evidence: channel_pb2.Complaint, study: Study) -> list[ComplaintFinding]:
    """Find in a coordinator's evidence of a void round whose reports which mix dropped.

    Evidence is no silo's complaint: it has statements and disclosures of the mixes only.
    """
    descriptor = check(evidence.descriptor, study)
    check_chain(evidence.chain, descriptor, study, len(study.mixes))
    return [
        ComplaintFinding(study.silos[drop.silo].name, descriptor.round, study.mixes[drop.hop].name)
        for drop in trace(evidence.chain, evidence.endings, descriptor, study)
    ]
