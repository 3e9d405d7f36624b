"""Complaints: a silo's report is missing from the committed list.

What is sent says no more than that.  A silo knows the digest of its report at every hop, and the
statements of the mixes say what each put out, so it can find where the report went missing; but
who is told, and still holds the report, would learn whose it is.  That stays in the operator's
copy, which names the party that has to explain it to whom the operator shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from silomix_core.study import Study
from silomix_proto import channel_pb2, mix_pb2, round_pb2

from silomix_protocol.descriptor import Descriptor, check
from silomix_protocol.keys import SigningKey, number, verify
from silomix_protocol.statements import (
    BrokenChain,
    check_chain,
    check_committed,
    check_receipt,
    digests,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a complaint says: which silo, in which round; in the operator's copy, who has to
    explain it.  The digests there are the silo's word; receipt, list and statements are not."""

    silo: str
    round: int
    accused: str | None


def lost_at(
    trail: Sequence[bytes], chain: Sequence[round_pb2.HopStatement], committed: bytes
) -> int | None:
    """The first hop whose output lacks the report, the last one if the committed list does.

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
    committed: channel_pb2.RoundCommitted,
    key: SigningKey,
) -> channel_pb2.Complaint:
    """What the silo at `place` of the roster sends."""
    signed = descriptor.digest, number(place), sha256(committed.list).digest()
    return channel_pb2.Complaint(
        descriptor=descriptor.to_wire(),
        silo=place,
        receipt=receipt,
        committed=committed,
        signature=key.sign("complaint", *signed),
    )


def check_complaint(complaint: channel_pb2.Complaint, study: Study) -> Finding:
    """What the complaint shows, or an error if it shows nothing."""
    descriptor = check(complaint.descriptor, study)
    if complaint.silo >= len(study.silos):
        raise BrokenChain("the complaint names no silo of the study")
    silo = study.silos[complaint.silo]
    if silo.name not in descriptor.silos:
        raise BrokenChain(f"the round did not ask {silo.name}")
    receipt, committed = complaint.receipt, complaint.committed
    signed = descriptor.digest, number(complaint.silo), sha256(committed.list).digest()
    verify(silo.sign_key, complaint.signature, "complaint", *signed)
    check_receipt(receipt, descriptor.digest, complaint.silo, receipt.report, study)
    check_committed(committed, study)
    if committed.digest != descriptor.digest:
        raise BrokenChain("the list belongs to another round")
    return Finding(silo.name, descriptor.round, _accused(complaint, descriptor, study))


def _accused(complaint: channel_pb2.Complaint, descriptor: Descriptor, study: Study) -> str | None:
    """By the operator's copy, the mix whose output lacks the report."""
    trail, chain = list(complaint.trail), complaint.chain
    if not trail or not chain:
        return None
    check_chain(chain, descriptor, study, len(study.mixes))
    if len(trail) != len(chain) + 1 or trail[0] != complaint.receipt.report:
        raise BrokenChain("the digests are not those of the report in the receipt")
    hop = lost_at(trail, chain, complaint.committed.list)
    if hop is None:
        raise BrokenChain("the report that is said to be missing is there")
    return study.mixes[hop].name
