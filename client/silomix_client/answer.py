"""One round at a silo: check the query, compute the update, make it private, seal it, charge it.

The path from a record to a report.  Whether a query is answered depends on the approved study and
the ledger, never on a record's value; every record passes the same arithmetic.  A round that was
answered before is never computed again: its stored report goes out once more, sealed anew only if
every mix stated that it abandoned the attempt before.  In a round with check-ins a silo that
abstains does all of this too, so that nobody on the way can tell.
"""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from silomix_core.noise import RandomBytes
from silomix_core.report import encode_report
from silomix_core.reporting import Reporter
from silomix_core.update import Records
from silomix_proto import round_pb2
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import ForgedSignature, UnusableKey
from silomix_protocol.onion import seal
from silomix_protocol.statements import BrokenChain, check_abandoned

from silomix_client.asked import AskedRound
from silomix_client.entries import Approval
from silomix_client.errors import RefusedQuery, TokenMissing
from silomix_client.keystream import fresh_keystream, stream_of
from silomix_client.ledger import Ledger
from silomix_client.pace import Pace
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
            self.study.task.loss,
            stream_of(approval.partition),
            approval.attendance,
        )
        longest = self._mechanism.first_round(self._reporter.largest_phase)
        self._pace = Pace(lambda: self._report(np.zeros(self._mechanism.dimension), longest))

    def answer(self, asked: AskedRound) -> StoredReport:
        """The stored, charged report for this round; the same bytes if it was asked before."""
        descriptor = asked.descriptor
        point = self._point(descriptor, asked.query)
        stored = self._ledger.stored(self.study, descriptor.round)
        if stored is not None:
            return self._again(stored, asked)
        self._ledger.check(self._approval, descriptor.round)
        token = self._token(descriptor)
        with self._pace.kept():
            report = self._report(point, descriptor.round)
        sealed = _seal(token + report, asked)
        entry = self._ledger.charge(self._approval, sealed, self._clock())
        logs.event("round_charged", round=descriptor.round, entry=entry.number, head=entry.short)
        return sealed

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
        sealed = _seal(stored.payload, asked)
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

    def _report(self, point: NDArray[np.float64], round_number: int) -> bytes:
        """The values of this round; if the silo abstains they are made too, and then left out."""
        phase = self._mechanism.phase_of(round_number)
        values = self._reporter.values(point, phase, self._keystream())
        takes_part = self._reporter.takes_part(round_number)
        return encode_report(values, self._mechanism, takes_part=takes_part)

    def _point(self, descriptor: Descriptor, query: bytes) -> NDArray[np.float64]:
        """The point that is asked about, if the descriptor covers it and it lies in W."""
        if descriptor.study != self.study.identity:
            raise RefusedQuery("the round belongs to another study")
        if self._name not in descriptor.silos:
            raise RefusedQuery("the round does not wait for this silo")
        if sha256(query).digest() != descriptor.query:
            raise RefusedQuery("the query is not the one that the descriptor names")
        try:
            encoded = round_pb2.Query.FromString(query).point
        except DecodeError as error:
            raise RefusedQuery("the query cannot be read") from error
        if round_pb2.Query(point=encoded).SerializeToString(deterministic=True) != query:
            raise RefusedQuery("the query says more than a point")
        if len(encoded) != 8 * self.study.task.dimension:
            raise RefusedQuery("the point has another dimension than the study")
        point = np.frombuffer(encoded, dtype="<f8").astype(np.float64)
        radius = self.study.radius * (1 + 1e-9)
        # Also false for NaN; the largest coordinate first, since a square may overflow.
        if not (np.abs(point).max() <= radius and np.linalg.norm(point) <= radius):
            raise RefusedQuery("the point lies outside the study's ball")
        return point


def _seal(payload: bytes, asked: AskedRound) -> StoredReport:
    """The payload for this attempt; a key that nothing can be sealed to is refused."""
    try:
        onion = seal(payload, asked.server_key, asked.mix_keys, asked.descriptor.digest)
    except UnusableKey as error:
        raise RefusedQuery(str(error)) from error
    return StoredReport(asked.descriptor, payload, onion.sealed, onion.trail)
