"""Whether a silo's report is in the batch: what it says to a committed list, and remembers.

A state machine without a network: events of the round channel in, frames for it out.  A silo whose
report is in the list confirms the whole list, never its own digest.  One whose report is not there
complains, without saying more, and asks what each mix stated, to tell its operator where the
report went missing.  It answers for at most one list for each D, before and after a restart.  What
became of a report, and what follows from it, is decided in `outcome_rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.complaints import NothingMissing, sign_complaint
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.statements import (
    check_closing,
    check_committed,
    digests,
    is_ended,
    sign_confirmation,
)

from silomix_client.errors import RefusedQuery
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import Fate, ReportOutcome
from silomix_client.ledger.reports import StoredReport
from silomix_client.rounds import complaint_files
from silomix_client.rounds.missing_report import Inquiry
from silomix_client.rounds.stop_rule import StopRule

Frames = list[channel_pb2.SiloFrame]


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last report that was sent, and its digests along the way."""

    descriptor: Descriptor
    trail: Sequence[bytes]

    @property
    def digest(self) -> RoundDigest:
        return self.descriptor.digest


class Inclusion:
    """Follows what became of a silo's reports, over all leases of one study."""

    def __init__(
        self, study: Study, silo: str, ledger: Ledger, sign_key: SigningKey, state: Path
    ) -> None:
        self._study, self._sign_key, self._state = study, sign_key, state
        self._account = ledger.account(study)
        self._place = study.places[silo]
        self._sent: _Sent | None = None
        stored = self._account.last_report()
        if stored is not None:
            self.answered(stored)
        self._inquiry: Inquiry | None = None
        self._last_answered = self._account.last_round()
        self._told = 0  # the last round that was opened, over all connections
        self._listening = False  # whether a round was opened on this connection
        self.stop_rule = StopRule(state, study.identity)

    @property
    def inquiring(self) -> bool:
        """Whether mixes' statements about a missing report are still to come."""
        return self._inquiry is not None

    @property
    def unsettled(self) -> RoundDigest | None:
        """The digest D of the last report, if what became of that report is not known."""
        if self._sent is None:
            return None
        known = self._known(self._sent)
        over = known.settled and known.fate is not Fate.UNHEARD
        return None if over else self._sent.digest

    def listen(self) -> None:
        """Begin a connection: rounds that were opened before it may have gone by."""
        self._listening = False

    def told(self, round_number: int) -> None:
        """Note that a round was opened; count those before it that we were not told of.

        They count only where every round asks every silo: elsewhere a round is passed over if its
        silos are away.
        """
        before, self._told = max(self._told, self._last_answered), round_number
        listening, self._listening = self._listening, True
        if round_number > before + 1 and self._study.participants == len(self._study.silos):
            self.stop_rule.left_out(listening=listening)
            logs.warning("rounds_untold", first=before + 1, last=round_number - 1)

    def opened(self, descriptor: Descriptor) -> None:
        """Begin another round: what was not heard of the last report by now counts."""
        sent = self._sent
        if sent is not None and sent.descriptor.round != descriptor.round:
            self._judge(sent, self._known(sent).fate)

    def answered(self, report: StoredReport) -> None:
        self._sent = _Sent(report.descriptor, report.trail)

    def committed(self, committed: channel_pb2.RoundCommitted, *, over: bool = False) -> Frames:
        """Answer a committed list with frames; none if the list is not about our last report.

        If the round is over, nobody waits for our confirmation any more.
        """
        sent = self._of(committed.digest)
        if sent is None:
            return []
        known = self._listed(committed, sent)
        if known.included:
            return [] if over else self._confirmation(committed, sent)
        self._judge(sent, known.fate)
        return self._complain(sent, known, committed)

    def closed(self, closed: channel_pb2.RoundClosed) -> Frames:
        """Take note of how a round ended; maybe ask what happened to our report on its way."""
        sent = self._of(closed.digest)
        if sent is None:
            return []
        check_closing(closed, self._study)
        ended = closed.void and is_ended(closed.endings, sent.digest, self._study)
        known = self._keep(sent, self._known(sent).closed(void=closed.void, ended=ended))
        if known.fate is not Fate.UNHEARD:  # statements may still come
            self._judge(sent, known.fate)
        if not closed.traced or known.included or self._inquiry is not None:
            return []
        return self._inquire(sent, known, None)

    def passage(self, passage: channel_pb2.Passage) -> None:
        """Take one mix's statement; with the last statement the operator's copy is complete."""
        inquiry = self._inquiry
        if inquiry is None or passage.digest != inquiry.descriptor.digest:
            return
        inquiry.take(passage)
        if len(inquiry.chain) == len(self._study.mixes):
            self._inquiry = None
            self._name_accused(inquiry)

    def give_up(self) -> None:
        """Give up the inquiry: statements that did not come on this connection will not come."""
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            logs.warning("statements_withheld", round=inquiry.descriptor.round)

    # What is known ------------------------------------------------------------------------------

    def _of(self, digest: bytes) -> _Sent | None:
        """The report that was sent last, if D of its round is `digest`."""
        return self._sent if self._sent is not None and self._sent.digest == digest else None

    def _known(self, sent: _Sent) -> ReportOutcome:
        return self._account.outcome(sent.digest)

    def _keep(self, sent: _Sent, known: ReportOutcome) -> ReportOutcome:
        self._account.note_outcome(sent.digest, known)
        return known

    def _listed(self, committed: channel_pb2.RoundCommitted, sent: _Sent) -> ReportOutcome:
        """Keep whether our report is in the list.

        Raises unless every mix stands by the list, it is the one list of D, and as long as a batch.
        """
        check_committed(committed, self._study)
        listed, descriptor = digests(committed.list), sent.descriptor
        if not descriptor.minimum_batch <= len(listed) <= len(descriptor.silos):
            raise RefusedQuery("the committed list is not of a batch of this round")
        if len(set(listed)) < len(listed):
            raise RefusedQuery("the committed list has a report twice")
        list_hash, included = sha256(committed.list).digest(), sent.trail[-1] in listed
        return self._keep(sent, self._known(sent).listed(list_hash, included=included))

    def _judge(self, sent: _Sent, fate: Fate) -> None:
        counted = self.stop_rule.judge(sent.digest, fate)
        if counted and fate is Fate.MISSING:
            times = self.stop_rule.missing
            logs.warning("report_missing", round=sent.descriptor.round, times=times)

    # What is said -------------------------------------------------------------------------------

    def _confirmation(self, committed: channel_pb2.RoundCommitted, sent: _Sent) -> Frames:
        if not self._study.batching.gate:
            return []
        signed = sign_confirmation(sent.digest, committed.list, self._place, self._sign_key)
        answer = channel_pb2.CommittedAnswer(digest=sent.digest, confirmation=signed)
        return [channel_pb2.SiloFrame(answer=answer)]

    def _complain(
        self, sent: _Sent, known: ReportOutcome, committed: channel_pb2.RoundCommitted
    ) -> Frames:
        self.give_up()
        inspect = self._inquire(sent, known, committed)
        if self._inquiry is None:
            return []
        made = self._inquiry.complaint
        answer = channel_pb2.CommittedAnswer(digest=sent.digest, complaint=made)
        return [channel_pb2.SiloFrame(answer=answer), *inspect]

    def _inquire(
        self, sent: _Sent, known: ReportOutcome, committed: channel_pb2.RoundCommitted | None
    ) -> Frames:
        """Ask what every mix stated about a round in which our report, or any report, was lost."""
        stored = self._account.last_report()
        if known.receipt is None or stored is None:
            logs.warning("nobody_to_complain_about", reason="the first mix gave no receipt")
            return []
        made = sign_complaint(
            sent.descriptor, self._place, known.receipt, committed, self._sign_key
        )
        self._inquiry = Inquiry(sent.descriptor, sent.trail, stored.onion, made)
        if committed is not None:
            self._save(self._inquiry)
        return [channel_pb2.SiloFrame(inspect=sent.digest)]

    def _name_accused(self, inquiry: Inquiry) -> None:
        """Tell the operator, and nobody else, where the report went missing, if it did."""
        try:
            finding = inquiry.finding(self._study)
        except NothingMissing:
            logs.event("report_not_lost", round=inquiry.descriptor.round)
            return
        path, number = self._save(inquiry), inquiry.descriptor.round
        logs.warning(
            "report_lost",
            round=number,
            accused=finding.accused,
            proven=finding.proven,
            complaint=path.name,
        )

    def _save(self, inquiry: Inquiry) -> Path:
        folder = self._state / complaint_files.FOLDER
        return complaint_files.save(inquiry.copy, inquiry.descriptor, folder)
