"""The opening of a batch: from gated reports to one integer sum, a report at a time.

In two steps.  `unwrap`, while the gate is still closed: take off the server's layer and read the
tokens.  A report without a token that a silo was given for this round is dropped; so are all that
share one, since nobody knows which of them is the silo's own.  `add_up`, with the mixes' release
keys: open the rest and give its values to the study's reception, which makes one sum of all.  A
report that is not one of the mechanism's (a value out of range, or longer than any silo's) is
dropped whole, never repaired.

In a phase with check-ins silos may say that they abstain: only how many do is learned.  Where one
report of a round is to be used, it is chosen here, and where there is none, the server makes one of
noise alone: no silo's randomness is used twice, and a journal that has the sum has everything that
the next step needs.
"""

import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.discrete_gaussian import discrete_gaussian
from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.mechanism.report_format import MalformedReport, decode_report, is_abstention
from silomix_core.reports.reception import Reception, ReportTooLong
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import UnopenableLayer, open_at_server, open_gates
from silomix_protocol.rounds.tokens import TOKEN_BYTES, Token

from silomix_server.mixes.batch_file import BatchFile
from silomix_server.mixes.token_desk import TokenDesk


@dataclass(slots=True)
class Opened:
    """The sum over the accepted reports, and how many were not accepted, by reason.

    `summed` counts the reports in the sum: all accepted ones, those that the study's rule leaves
    of them, or one.  Outlying reports are accepted.
    """

    total: NDArray[np.int64]
    accepted: int = 0
    abstained: int = 0  # silos that said that they abstain
    summed: int = 0
    unopenable: int = 0
    injected: int = 0  # without a token of this round: no silo sent them
    repeated: int = 0  # with a token that another report of the batch has, too
    malformed: int = 0
    too_long: int = 0  # no silo that runs our software sent them
    outlying: int = 0  # far from most others of the round

    @property
    def dropped(self) -> int:
        return self.unopenable + self.injected + self.repeated + self.malformed + self.too_long


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """A report behind its gates, at its place in the batch: it is read from there once more."""

    place: int
    nonce: bytes  # of the report's token


class Opening:
    """The opening of one batch."""

    def __init__(
        self,
        descriptor: Descriptor,
        server_key: SealKey,
        mechanism: Mechanism,
        reception: Reception,
        tokens: TokenDesk | None,
    ) -> None:
        self._descriptor, self._server_key = descriptor, server_key
        self._mechanism, self._tokens = mechanism, tokens
        self._gathering = reception.gathering(descriptor.round, len(descriptor.silos))
        self.result = Opened(np.zeros(mechanism.dimension, dtype=np.int64))
        self._wrapped: list[_Wrapped] = []
        self._check_in = mechanism.phases[mechanism.phase_of(descriptor.round)].check_in

    def unwrap(self, reports: BatchFile) -> None:
        """Take the server's layer off and check tokens; forget the reports that are dropped."""
        for place, gated in enumerate(reports):
            self._unwrap(place, gated)
        if self._tokens is not None:
            self._drop_repeated()

    def _unwrap(self, place: int, gated: bytes) -> None:
        try:
            token, _ = self._at_server(gated)
        except UnopenableLayer:
            self.result.unopenable += 1
            return
        if token is not None and not self._is_ours(token):
            self.result.injected += 1
            return
        self._wrapped.append(_Wrapped(place, token.nonce if token is not None else b""))

    def _at_server(self, gated: bytes) -> tuple[Token | None, bytes]:
        content = open_at_server(gated, self._server_key, self._descriptor.digest)
        if self._tokens is None:
            return None, content
        return Token.from_bytes(content[:TOKEN_BYTES]), content[TOKEN_BYTES:]

    def _is_ours(self, token: Token) -> bool:
        return self._tokens is not None and self._tokens.valid(self._descriptor.round, token)

    def _drop_repeated(self) -> None:
        times = Counter(each.nonce for each in self._wrapped)
        self.result.repeated = sum(count for count in times.values() if count > 1)
        self._wrapped = [each for each in self._wrapped if times[each.nonce] == 1]

    def add_up(self, reports: BatchFile, released: Sequence[SealKey]) -> Opened:
        """Open and sum the unwrapped reports; `released`: every mix's key, none without a gate."""
        result, used = self.result, []
        for each in self._wrapped:
            try:
                values = self._values(each, reports, released)
                if values is None:
                    result.abstained += 1
                    continue
                self._gathering.add(values)
            except UnopenableLayer:
                result.unopenable += 1
            except MalformedReport:
                result.malformed += 1
            except ReportTooLong:
                result.too_long += 1
            else:
                used.append(each)
        gathered = self._gathering.close()
        result.accepted, result.outlying = len(used), gathered.outlying
        result.total, result.summed = gathered.sum.total, gathered.sum.reports
        if self._check_in is not None and self._check_in.lone:
            result.total, result.summed = self._lone(used, reports, released), 1
        return result

    def _values(
        self, wrapped: _Wrapped, reports: BatchFile, released: Sequence[SealKey]
    ) -> NDArray[np.int64] | None:
        """The values of a report; None if it says that its silo abstains."""
        _, closed = self._at_server(reports[wrapped.place])
        report = open_gates(closed, released, self._descriptor.digest)
        if self._check_in is not None and is_abstention(report, self._mechanism):
            return None
        return decode_report(report, self._mechanism)

    def _lone(
        self, used: Sequence[_Wrapped], reports: BatchFile, released: Sequence[SealKey]
    ) -> NDArray[np.int64]:
        """The values of one accepted report, each as likely; noise alone if there is none."""
        if used:
            values = self._values(secrets.choice(used), reports, released)
            if values is not None:
                return values
        mechanism = self._mechanism
        return discrete_gaussian(mechanism.dimension, os.urandom, mechanism.fineness)
