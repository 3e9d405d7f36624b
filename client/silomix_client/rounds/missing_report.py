"""Where a missing report went: what the mixes stated about it, for the operator and nobody else.

A silo knows its report's digest at every hop.  With every mix's statement it finds the mix whose
output lacks it; if the round is void, the mixes also disclosed their seal keys, and the onion that
the silo stored then proves which of them lost it, or that it was sealed wrongly here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from silomix_core.study.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint
from silomix_protocol.rounds.descriptor import Descriptor

from silomix_client.errors import RefusedQuery


@dataclass(slots=True)
class Inquiry:
    """A report that is missing, and what the mixes stated so far."""

    descriptor: Descriptor
    trail: Sequence[bytes]
    onion: bytes = field(repr=False)
    complaint: channel_pb2.Complaint
    chain: list[round_pb2.HopStatement] = field(default_factory=list)
    endings: list[round_pb2.Ending] = field(default_factory=list)

    def take(self, passage: channel_pb2.Passage) -> None:
        """Take the next mix's statement, and how the round ended there."""
        if passage.statement.hop != len(self.chain):
            raise RefusedQuery("the statements of the mixes are out of order")
        self.chain.append(passage.statement)
        if passage.HasField("ending"):
            self.endings.append(passage.ending)

    @property
    def copy(self) -> channel_pb2.Complaint:
        """The operator's copy of the complaint: who shows it also shows which report it was."""
        copy = channel_pb2.Complaint(trail=self.trail, chain=self.chain)
        if self.chain and len(self.endings) == len(self.chain):
            copy.endings.extend(self.endings)
            copy.onion = self.onion
        copy.MergeFrom(self.complaint)
        return copy

    def finding(self, study: Study) -> ComplaintFinding:
        """Who lost the report, as anybody would find it from the copy."""
        return check_complaint(self.copy, study)
