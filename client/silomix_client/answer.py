"""One round at a silo: check the query, compute the update, make it private, seal it, charge it.

The path from a record to a report.  Whether a query is answered depends on the approved study and
the ledger, never on a record's value; every record passes the same arithmetic.  A round that was
answered before is never computed again: its stored report goes out once more, sealed anew only if
every mix stated that it abandoned the attempt before.  In a round with check-ins a silo that
abstains does all of this too, so that nobody on the way can tell.
"""

from collections.abc import Callable
from datetime import datetime

import numpy as np
from silomix_core.noise import RandomBytes
from silomix_core.private_evaluation import measure_of
from silomix_core.report import decode_report, encode_report, report_bytes
from silomix_core.reporting import Integers, Question, Reporter
from silomix_core.update import Records
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import ForgedSignature, UnusableKey
from silomix_protocol.onion import seal
from silomix_protocol.statements import BrokenChain, check_abandoned
from silomix_protocol.tokens import token_bytes

from silomix_client.asked import AskedRound
from silomix_client.chain import Entry
from silomix_client.entries import Approval
from silomix_client.errors import RefusedQuery, TokenMissing
from silomix_client.keystream import fresh_keystream, stream_of
from silomix_client.ledger import Ledger
from silomix_client.pace import Pace
from silomix_client.question import QueryReader
from silomix_client.reports import StoredReport


class StudyDesk:
    """Answers the rounds of one approved study; `keystream` is replaced only in tests."""

    def __init__(
        self,
        name: str,
        approval: Approval,
        records: Records,
        ledger: Ledger,
        clock: Callable[[], datetime],
        keystream: Callable[[], RandomBytes] = fresh_keystream,
    ) -> None:
        self.study = approval.study
        self._name = name
        self._approval = approval
        self._ledger = ledger
        self._clock = clock
        self._keystream = keystream
        self._mechanism = approval.mechanism
        self._reporter = Reporter(
            self._mechanism,
            approval.participant,
            records,
            self.study.model,
            stream_of(approval.partition),
            self.study.local(self._mechanism),
            approval.attendance,
            measure_of(self.study.task),
        )
        self._reader = QueryReader(name, self.study, self._mechanism)
        nothing = np.zeros(self._mechanism.dimension)
        longest = Question(self._reporter.longest_round, nothing, nothing)
        kept = np.zeros(self._mechanism.dimension, dtype=np.int64)
        self._pace = Pace(lambda: self._report(longest, kept))

    def answer(self, asked: AskedRound) -> StoredReport:
        """The stored, charged report for this round; the same bytes if it was asked before."""
        descriptor = asked.descriptor
        question, void = self._reader.read(descriptor, asked.query)
        stored = self._ledger.stored(self.study, descriptor.round)
        if stored is not None:
            return self._again(stored, asked)
        self._ledger.check(self._approval, descriptor.round)
        token = self._token(descriptor)
        kept = self._kept(void)
        with self._pace.kept():
            report = self._report(question, kept)
        sealed = self._seal(token + report, asked)
        entry = self._ledger.charge(self._approval, sealed, self._clock(), kept)
        self._tell_charged(descriptor, entry)
        return sealed

    def _tell_charged(self, descriptor: Descriptor, entry: Entry) -> None:
        """The same line whether or not the silo abstains: `mu` is what a step costs otherwise."""
        _, event = self._approval.event(descriptor.round)
        logs.event(
            "round_charged",
            round=descriptor.round,
            entry=entry.number,
            head=entry.short,
            study=self.study.short_id,
            mu=event.mu,
        )

    def _again(self, stored: StoredReport, asked: AskedRound) -> StoredReport:
        """The stored report, as it is or sealed for a later attempt; no other question gets it."""
        earlier, descriptor = stored.descriptor, asked.descriptor
        number = descriptor.round
        if descriptor.digest == earlier.digest:
            return stored
        if descriptor.query != earlier.query:
            raise RefusedQuery(f"round {number} was asked again with another query")
        if descriptor.token_key != earlier.token_key:
            raise RefusedQuery(f"round {number} was asked again with another token key")
        if descriptor.attempt <= earlier.attempt:
            raise RefusedQuery(f"round {number} was asked again without being a later attempt")
        try:
            check_abandoned(asked.abandoned, earlier.digest, self.study)
        except (BrokenChain, ForgedSignature) as error:
            raise RefusedQuery(f"round {number} was asked again: {error}") from error
        sealed = self._seal(stored.payload, asked)
        self._ledger.replace(earlier.digest, sealed)
        logs.event("report_sealed_again", round=number, attempt=descriptor.attempt)
        return sealed

    def _token(self, descriptor: Descriptor) -> bytes:
        """The round's token; nothing in a study without tokens."""
        if not self.study.batching.tokens:
            return b""
        held = self._ledger.wallet.find(self.study.identity, descriptor.round)
        if held is None:
            raise TokenMissing(f"no token for round {descriptor.round}")
        if held.key != descriptor.token_key:
            raise RefusedQuery("the token of this round was made with another key")
        return held.token.to_bytes()

    def _kept(self, void: frozenset[int]) -> Integers | None:
        """The integers behind this silo's control variate; None where there are none.

        The last answer is added if it was used: found in the list of its round, which was not
        void.  What is stored is only replaced when the next answer is charged, so that whatever
        the silo dies of, it finds either both as they were or both as they are.
        """
        if not self.study.has_control:
            return None
        identity, controls = self.study.identity, self._ledger.controls
        kept = controls.find(identity, self._mechanism.dimension)
        last = self._ledger.reports.find(self.study)
        if (
            last is None
            or last.descriptor.round in void
            or not controls.is_included(identity, last.descriptor.round)
        ):
            return kept
        report = last.payload[-report_bytes(self._mechanism) :]
        return kept + decode_report(report, self._mechanism)

    def _report(self, question: Question, kept: Integers | None) -> bytes:
        """The values of this round; if the silo abstains they are made too, and then left out."""
        values = self._reporter.values(question, self._keystream(), kept)
        takes_part = self._reporter.takes_part(question.round)
        return encode_report(values, self._mechanism, takes_part=takes_part)

    def _seal(self, payload: bytes, asked: AskedRound) -> StoredReport:
        """The payload for this attempt; a key that nothing can be sealed to is refused."""
        keys, digest = asked.mix_keys, asked.descriptor.digest
        try:
            onion = seal(payload, asked.server_key, keys, digest, ungated=token_bytes(self.study))
        except UnusableKey as error:
            raise RefusedQuery(str(error)) from error
        return StoredReport(asked.descriptor, payload, onion.sealed, onion.trail)
