"""From gated reports to one integer sum, a report at a time.

Opens every report with the mixes' release keys and the server's key of the round, checks that its
token is one that a silo was given for this round, and adds its values.  A report that is not one
of the mechanism's is dropped whole, never repaired; reports that share a token are all dropped,
since nobody knows which of them is the silo's own.

In a phase with check-ins silos may say that they abstain: how many do is all that is learned from
it.  Where one report of a round is to be used, it is chosen here, and where there is none, the
server makes one of noise alone: no silo's randomness is used twice, and a journal that has the sum
has everything that the next step needs.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.mechanism import Mechanism
from silomix_core.noise import discrete_gaussian
from silomix_core.report import MalformedReport, decode_report, is_abstention
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import SealKey
from silomix_protocol.onion import UnopenableLayer, open_gated
from silomix_protocol.tokens import TOKEN_BYTES, Token

from silomix_server.spool import Spool
from silomix_server.token_desk import TokenDesk


@dataclass(slots=True)
class Opened:
    """The sum over the accepted reports, and how many were not accepted, by reason.

    `summed` is what the sum is a sum of: the accepted reports, or one of them.
    """

    total: NDArray[np.int64]
    accepted: int = 0
    abstained: int = 0  # silos that said so
    summed: int = 0
    unopenable: int = 0
    injected: int = 0  # without a token of this round: no silo sent them
    repeated: int = 0  # with a token that another report of the batch has, too
    malformed: int = 0

    @property
    def dropped(self) -> int:
        return self.unopenable + self.injected + self.repeated + self.malformed


@dataclass(frozen=True, slots=True)
class OpeningKeys:
    """What a gated report opens with: released keys of every mix (none without a gate) and ours."""

    released: Sequence[SealKey]
    server: SealKey


class Opening:
    """The opening of one batch."""

    def __init__(
        self,
        descriptor: Descriptor,
        keys: OpeningKeys,
        mechanism: Mechanism,
        tokens: TokenDesk | None,
    ) -> None:
        self._descriptor, self._keys = descriptor, keys
        self._mechanism, self._tokens = mechanism, tokens
        self._result = Opened(np.zeros(mechanism.dimension, dtype=np.int64))
        self._places: dict[bytes, list[int]] = {}  # of every token's nonce
        self._accepted: set[int] = set()
        self._abstained: set[int] = set()
        self._check_in = mechanism.phases[mechanism.phase_of(descriptor.round)].check_in

    def open(self, reports: Spool) -> Opened:
        for place, gated in enumerate(reports):
            self._take(place, gated)
        for places in self._places.values():
            if len(places) > 1:
                self._take_back(reports, places)
        result = self._result
        result.summed = result.accepted
        if self._check_in is not None and self._check_in.lone:
            result.total, result.summed = self._lone(reports), 1
        return result

    def _take(self, place: int, gated: bytes) -> None:
        result = self._result
        try:
            token, report = self._payload(gated)
        except UnopenableLayer:
            result.unopenable += 1
            return
        if token is not None and not self._is_first(token, place):
            return
        if self._check_in is not None and is_abstention(report, self._mechanism):
            self._abstained.add(place)
            result.abstained += 1
            return
        try:
            result.total += decode_report(report, self._mechanism)
        except MalformedReport:
            result.malformed += 1
            return
        self._accepted.add(place)
        result.accepted += 1

    def _payload(self, gated: bytes) -> tuple[Token | None, bytes]:
        digest = self._descriptor.digest
        payload = open_gated(gated, self._keys.released, self._keys.server, digest)
        if self._tokens is None:
            return None, payload
        return Token.from_bytes(payload[:TOKEN_BYTES]), payload[TOKEN_BYTES:]

    def _is_first(self, token: Token, place: int) -> bool:
        """Whether this is a token of the round that no report before it had."""
        if self._tokens is None or not self._tokens.valid(self._descriptor.round, token):
            self._result.injected += 1
            return False
        places = self._places.setdefault(token.nonce, [])
        places.append(place)
        if len(places) > 1:
            self._result.repeated += 1
        return len(places) == 1

    def _take_back(self, reports: Spool, places: list[int]) -> None:
        """The first of several reports with one token was added before the others came."""
        first = places[0]
        if first in self._abstained:
            self._abstained.remove(first)
            self._result.abstained -= 1
            self._result.repeated += 1
        if first not in self._accepted:
            return
        self._result.total -= self._values(reports[first])
        self._accepted.remove(first)
        self._result.accepted -= 1
        self._result.repeated += 1

    def _values(self, gated: bytes) -> NDArray[np.int64]:
        """Of a report that was accepted."""
        _, report = self._payload(gated)
        return decode_report(report, self._mechanism)

    def _lone(self, reports: Spool) -> NDArray[np.int64]:
        """One of the accepted reports, all alike; noise alone if there is none."""
        if not self._accepted:
            return discrete_gaussian(self._mechanism.dimension, os.urandom)
        return self._values(reports[secrets.choice(sorted(self._accepted))])
