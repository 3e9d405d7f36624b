"""One round at a silo: check the query, compute the update, make it private, seal it, charge it.

The path from a record to a report.  Whether a query is answered depends on the approved study and
the ledger, never on a record's value; every record passes the same arithmetic.  A round that was
answered before is never computed again: its stored report goes out once more, sealed anew only if
every mix stated that it abandoned the attempt before.  Should the store itself be put back to an
earlier state, the report is made again as it was: what is random about it follows from the
approval's secret and the query.  In a round with check-ins a silo that
abstains does all of this too, so that nobody on the way can tell.
"""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

import numpy as np
from silomix_core.discrete_gaussian import Streams
from silomix_core.evaluation.private import measure_of
from silomix_core.mechanism.report_format import decode_report, encode_report, report_bytes
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.reporter import Integers, Reporter, RoundQuery
from silomix_protocol.connections.version import release
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, UnusableKey, number
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import seal
from silomix_protocol.rounds.statements import BrokenChain, check_abandoned
from silomix_protocol.rounds.tokens import token_bytes

from silomix_client.errors import NotApproved, RefusedQuery, TokenMissing, Unsettled
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.hash_chain import ChainEntry
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import NOTHING, is_sealed_again, may_answer, may_repeat
from silomix_client.ledger.reports import StoredReport
from silomix_client.random_stream import answer_streams, stream_of
from silomix_client.rounds.fixed_time import FixedTime
from silomix_client.rounds.query import QueryReader
from silomix_client.rounds.round_request import RoundRequest


class StudyDesk:
    """Answers the rounds of one approved study; `keystream` is replaced only in tests."""

    def __init__(
        self,
        name: str,
        approval: Approval,
        records: Records,
        ledger: Ledger,
        clock: Callable[[], datetime],
        keystream: Streams | None = None,
    ) -> None:
        if not approval.partition:
            raise NotApproved("the secret of this approval is gone: revoke the study")
        self.study = approval.study
        self._name = name
        self._approval = approval
        self._account = ledger.account(self.study)
        self._clock = clock
        self._keystream = keystream
        self._mechanism = approval.mechanism
        local = self.study.local(self._mechanism)
        calibrated = repr((self._mechanism, approval.participant, local))
        self._calibration = sha256(calibrated.encode()).digest()
        self._reporter = Reporter(
            self._mechanism,
            approval.participant,
            records,
            self.study.model,
            stream_of(approval.partition),
            local,
            approval.attendance,
            measure_of(self.study.task),
        )
        self._reader = QueryReader(name, self.study, self._mechanism)
        nothing = np.zeros(self._mechanism.dimension)
        longest = RoundQuery(self._reporter.longest_round, nothing, nothing)
        kept = np.zeros(self._mechanism.dimension, dtype=np.int64)
        streams = keystream or answer_streams(approval.partition)
        self._fixed_time = FixedTime(lambda: self._report(longest, streams, kept))

    def answer(self, asked: RoundRequest) -> StoredReport:
        """Return the round's report, charged and stored; the same payload if asked before."""
        descriptor = asked.descriptor
        query = self._reader.read(descriptor, asked.query)
        stored = self._account.stored(descriptor.round)
        if stored is not None:
            return self._again(stored, asked)
        self._account.check(self._approval, descriptor.round)
        self._check_new(descriptor)
        token = self._token(descriptor)
        kept = self._kept(descriptor)
        with self._fixed_time.kept():
            report = self._report(query, self._streams(descriptor), kept)
        sealed = self._seal(token + report, asked)
        with self._account.telling():
            entry = self._account.charge(self._approval, sealed, self._clock(), kept)
            self._tell_charged(descriptor, entry)
        return sealed

    def _tell_charged(self, descriptor: Descriptor, entry: ChainEntry) -> None:
        """Log the charge, in the same line whether or not the silo abstains.

        `mu` is what a step costs if the silo takes part.
        """
        _, event = self._approval.event(descriptor.round)
        logs.event(
            "round_charged",
            round=descriptor.round,
            entry=entry.number,
            head=entry.short,
            study=self.study.short_id,
            mu=event.mu,
        )

    def _again(self, stored: StoredReport, asked: RoundRequest) -> StoredReport:
        """Return the stored report, as is or sealed for a later attempt; refuse other queries."""
        earlier, descriptor = stored.descriptor, asked.descriptor
        number = descriptor.round
        known = self._account.outcome(earlier.digest)
        if not is_sealed_again(earlier, known, descriptor):
            return stored
        try:
            check_abandoned(asked.abandoned, earlier.digest, self.study)
        except (BrokenChain, ForgedSignature) as error:
            raise RefusedQuery(f"round {number} was asked again: {error}") from error
        sealed = self._seal(stored.payload, asked)
        self._account.replace(earlier.digest, sealed)
        logs.event("report_sealed_again", round=number, attempt=descriptor.attempt)
        return sealed

    def _check_new(self, asked: Descriptor) -> None:
        """Refuse a query that was answered with these records, unless the round was void.

        The mean of several answers would have less noise than any of them.  With check-ins a silo
        answers once, and a refusal would tell who did.
        """
        if any(phase.check_in for phase in self._mechanism.phases):
            return
        phase = self._mechanism.phase_of(asked.round)
        answers = [
            number
            for number in self._account.answers_to(asked.query)
            if self._mechanism.phase_of(number) == phase
        ]
        if not answers:
            return
        last = self._account.last_report()
        known = NOTHING
        if last is not None and last.descriptor.round == answers[-1]:
            known = self._account.outcome(last.descriptor.digest)
        if not may_repeat(known, len(answers)):
            raise RefusedQuery(
                f"round {asked.round} asks what round {answers[-1]} asked, and nobody showed that "
                "the answer was lost"
            )

    def _token(self, descriptor: Descriptor) -> bytes:
        """The bytes of the round's token; none in a study without tokens."""
        if not self.study.batching.tokens:
            return b""
        held = self._account.token(descriptor.round)
        if held is None:
            raise TokenMissing(f"no token for round {descriptor.round}")
        if held.key != descriptor.token_key:
            raise RefusedQuery("the token of this round was made with another key")
        return held.token.to_bytes()

    def _kept(self, asked: Descriptor) -> Integers | None:
        """The integers behind this silo's control variate; None in a study without them.

        The last answer is added if it was used: found in the list of its round, which was not
        void.  Raises Unsettled if that is not known.  What is stored is only replaced when the next
        answer is charged, so that whatever the silo dies of, it finds either both as they were or
        both as they are.
        """
        if not self.study.has_control:
            return None
        kept = self._account.control(self._mechanism.dimension)
        last = self._account.last_report()
        if last is None:
            return kept
        known = self._account.outcome(last.descriptor.digest)
        if not may_answer(last.descriptor, known, asked, control=True):
            raise Unsettled(f"it is not known whether round {last.descriptor.round} was used")
        if not known.used:
            return kept
        report = last.payload[-report_bytes(self._mechanism) :]
        return kept + decode_report(report, self._mechanism)

    def _report(self, query: RoundQuery, streams: Streams, kept: Integers | None) -> bytes:
        """The encoded report; a silo that abstains computes the values and leaves them out."""
        values = self._reporter.values(query, streams, kept)
        takes_part = self._reporter.takes_part(query.round)
        return encode_report(values, self._mechanism, takes_part=takes_part)

    def _streams(self, descriptor: Descriptor) -> Streams:
        """The random bytes of an answer, derived from everything that its values depend on.

        The release stands for the arithmetic.  What the silo keeps of its last answer only says
        where later steps of its walk stand, which is in their labels (`Reporter`): the same
        query of the same point has the same noise, whatever is kept.
        """
        if self._keystream is not None:
            return self._keystream
        _, event = self._approval.event(descriptor.round)
        return answer_streams(
            self._approval.partition,
            release().encode(),
            self.study.identity,
            number(descriptor.round),
            descriptor.query,
            self._approval.snapshot,
            self._calibration,
            repr(event).encode(),
        )

    def _seal(self, payload: bytes, asked: RoundRequest) -> StoredReport:
        """Seal the payload for this attempt, or refuse a key that nothing can be sealed to."""
        keys, digest = asked.mix_keys, asked.descriptor.digest
        try:
            onion = seal(payload, asked.server_key, keys, digest, ungated=token_bytes(self.study))
        except UnusableKey as error:
            raise RefusedQuery(str(error)) from error
        return StoredReport(asked.descriptor, payload, onion.sealed, onion.trail)
