"""Is our report in the batch?  What a silo says to a committed list, and what it remembers.

A state machine without a network: events of the round channel in, frames for it out.  A silo whose
report is in the list confirms the whole list, never its own digest.  One whose report is not there
complains, without saying more, and asks what each mix stated, to tell its operator where the
report went missing.  It answers for at most one list for each D, before and after a restart.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from silomix_core.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol import logs
from silomix_protocol.complaints import lost_at, sign_complaint
from silomix_protocol.descriptor import Descriptor, RoundDigest
from silomix_protocol.keys import SigningKey
from silomix_protocol.statements import (
    check_chain,
    check_committed,
    digests,
    sign_confirmation,
)

from silomix_client import complaints
from silomix_client.errors import RefusedQuery
from silomix_client.ledger import Ledger
from silomix_client.neglect import Neglect
from silomix_client.reports import StoredReport


@dataclass(slots=True)
class _Sent:
    """A report that was sent, its digests along the way, and whether it was found in a list.

    Not `taken`: the first mix said that it came too late, as happens to a silo that was cut off.
    """

    descriptor: Descriptor
    trail: tuple[bytes, ...]
    included: bool = False
    taken: bool = True


@dataclass(slots=True)
class _Inquiry:
    """A missing report, and what the mixes stated so far."""

    sent: _Sent
    complaint: channel_pb2.Complaint
    chain: list[round_pb2.HopStatement] = field(default_factory=list)


class Inclusion:
    """What became of a silo's reports, over all leases of one study."""

    def __init__(self, study: Study, silo: str, ledger: Ledger, sign_key: SigningKey) -> None:
        self._study, self._ledger, self._sign_key = study, ledger, sign_key
        self._place = study.places[silo]
        self._waiting = self._left()  # answered, not yet closed
        self._inquiry: _Inquiry | None = None
        self.neglect = Neglect(ledger.state, study.identity)

    @property
    def inquiring(self) -> bool:
        """Whether statements of mixes are still to come."""
        return self._inquiry is not None

    def opened(self, descriptor: Descriptor) -> None:
        """Another round begins; the one before should have been closed."""
        sent = self._waiting
        if sent is None or sent.descriptor.round == descriptor.round:
            return  # asked again, or a later attempt of it, which counts once it is answered
        self._waiting = None
        self.neglect.judge(sent.descriptor.digest, unheard=True)
        if not sent.included:  # a cut line may swallow the word that a round was closed
            self._note_missing(sent)

    def answered(self, report: StoredReport) -> None:
        self._waiting = _Sent(report.descriptor, report.trail)

    def not_taken(self, descriptor: Descriptor) -> None:
        """The first mix refused the report of this attempt: nobody can have lost it."""
        if self._waiting is not None and self._waiting.descriptor.digest == descriptor.digest:
            self._waiting.taken = False

    def committed(
        self, committed: channel_pb2.RoundCommitted, *, over: bool = False
    ) -> list[channel_pb2.SiloFrame]:
        """What to say to a list; nothing if it is not of our last report.

        If the round is over, nobody waits for our confirmation any more.
        """
        sent = self._sent(RoundDigest(committed.digest))
        if sent is None:
            return []
        self._check_list(committed, sent.descriptor)
        if sent.trail[-1] in digests(committed.list):
            sent.included = True
            if self._study.has_control:
                self._ledger.controls.note_included(self._study.identity, sent.descriptor.round)
            return [] if over else self._confirmation(committed, sent.descriptor)
        self._note_missing(sent)
        return self._complain(sent, committed)

    def passage(self, passage: channel_pb2.Passage) -> None:
        """Take one mix's statement; with the last one the operator's copy is complete."""
        inquiry = self._inquiry
        if inquiry is None or passage.digest != inquiry.sent.descriptor.digest:
            return
        if passage.statement.hop != len(inquiry.chain):
            raise RefusedQuery("the statements of the mixes are out of order")
        inquiry.chain.append(passage.statement)
        if len(inquiry.chain) == len(self._study.mixes):
            self._inquiry = None
            self._name_accused(inquiry)

    def closed(self, closed: channel_pb2.RoundClosed) -> None:
        sent = self._waiting
        if sent is None or sent.descriptor.digest != closed.digest:
            return
        self._waiting = None
        self.neglect.judge(sent.descriptor.digest, unheard=closed.void or not sent.included)
        if sent.included:
            self.neglect.found()
        elif not closed.void:  # a void round used nobody's report
            self._note_missing(sent)

    def give_up(self) -> None:
        """The connection is gone: statements that did not come will not come."""
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            logs.warning("statements_withheld", round=inquiry.sent.descriptor.round)

    # Helpers ------------------------------------------------------------------------------------

    def _left(self) -> _Sent | None:
        """What this silo sent before it was started again and heard nothing of."""
        digest = self._ledger.reports.digest(self._study.identity)
        if digest is None:
            return None
        known = self._ledger.reports.afterwards(self._study.identity, digest)
        if known is None or known.committed is not None:
            return None
        stored = self._ledger.reports.find(self._study)
        return None if stored is None else _Sent(stored.descriptor, stored.trail)

    def _sent(self, digest: RoundDigest) -> _Sent | None:
        """Our report of D, if it is the last one; a restarted silo finds it in its ledger."""
        if self._waiting is not None and self._waiting.descriptor.digest == digest:
            return self._waiting
        if self._ledger.reports.digest(self._study.identity) != digest:
            return None
        stored = self._ledger.reports.find(self._study)
        return None if stored is None else _Sent(stored.descriptor, stored.trail)

    def _check_list(self, committed: channel_pb2.RoundCommitted, descriptor: Descriptor) -> None:
        """Raise unless every mix stands by it, it is the one of D, and of a batch's length."""
        check_committed(committed, self._study)
        listed = digests(committed.list)
        if not descriptor.minimum_batch <= len(listed) <= len(descriptor.silos):
            raise RefusedQuery("the committed list is not of a batch of this round")
        if len(set(listed)) < len(listed):
            raise RefusedQuery("the committed list has a report twice")
        list_hash = sha256(committed.list).digest()
        self._ledger.reports.keep_committed(self._study.identity, descriptor.digest, list_hash)

    def _confirmation(
        self, committed: channel_pb2.RoundCommitted, descriptor: Descriptor
    ) -> list[channel_pb2.SiloFrame]:
        if not self._study.batching.gate:
            return []
        signed = sign_confirmation(descriptor.digest, committed.list, self._place, self._sign_key)
        answer = channel_pb2.CommittedAnswer(digest=descriptor.digest, confirmation=signed)
        return [channel_pb2.SiloFrame(answer=answer)]

    def _complain(
        self, sent: _Sent, committed: channel_pb2.RoundCommitted
    ) -> list[channel_pb2.SiloFrame]:
        digest = sent.descriptor.digest
        known = self._ledger.reports.afterwards(self._study.identity, digest)
        if known is None or known.receipt is None:
            logs.warning("nobody_to_complain_about", reason="the first mix gave no receipt")
            return []
        self.give_up()
        key = self._sign_key
        made = sign_complaint(sent.descriptor, self._place, known.receipt, committed, key)
        self._inquiry = _Inquiry(sent, made)
        self._save(self._inquiry)
        answer = channel_pb2.CommittedAnswer(digest=digest, complaint=made)
        return [channel_pb2.SiloFrame(answer=answer), channel_pb2.SiloFrame(inspect=digest)]

    def _name_accused(self, inquiry: _Inquiry) -> None:
        """Tell the operator, and nobody else, where the report went missing."""
        sent, study = inquiry.sent, self._study
        check_chain(inquiry.chain, sent.descriptor, study, len(study.mixes))
        hop = lost_at(sent.trail, inquiry.chain, inquiry.complaint.committed.list)
        if hop is None:
            raise RefusedQuery("a report that is missing is in every list")
        path, accused = self._save(inquiry), study.mixes[hop].name
        logs.warning(
            "report_lost", round=sent.descriptor.round, accused=accused, complaint=path.name
        )

    def _save(self, inquiry: _Inquiry) -> Path:
        copy = channel_pb2.Complaint(trail=inquiry.sent.trail, chain=inquiry.chain)
        copy.MergeFrom(inquiry.complaint)
        folder = self._ledger.state / complaints.FOLDER
        return complaints.save(copy, inquiry.sent.descriptor, folder)

    def _note_missing(self, sent: _Sent) -> None:
        """A report that was taken and is gone; one that was not counts among the unheard only."""
        if sent.taken and self.neglect.miss(sent.descriptor.digest):
            times = self.neglect.missing
            logs.warning("report_missing", round=sent.descriptor.round, times=times)
