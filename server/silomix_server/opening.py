"""From gated reports to one integer sum, a report at a time.

In two steps.  `unwrap`, while the gate is still closed: take off the server's layer and read the
tokens.  A report without a token that a silo was given for this round is dropped; so are all that
share one, since nobody knows which of them is the silo's own.  `add_up`, with the mixes' release
keys: open the rest and add its values.  A report that is not one of the mechanism's is dropped
whole, never repaired.

In a phase with check-ins silos may say that they abstain: how many do is all that is learned from
it.  Where one report of a round is to be used, it is chosen here, and where there is none, the
server makes one of noise alone: no silo's randomness is used twice, and a journal that has the sum
has everything that the next step needs.
"""

import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.mechanism import Mechanism
from silomix_core.noise import discrete_gaussian
from silomix_core.report import MalformedReport, decode_report, is_abstention
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import SealKey
from silomix_protocol.onion import UnopenableLayer, open_at_server, open_gates
from silomix_protocol.tokens import TOKEN_BYTES, Token

from silomix_server.spool import IN_MEMORY, Spool
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
class _Wrapped:
    """A report of the batch behind its gates; a large one is taken out of the batch once more.

    What is without the server's layer is kept in memory only: the batch's file stays as it came.
    """

    place: int
    nonce: bytes  # of its token
    closed: bytes | None


class Opening:
    """The opening of one batch."""

    def __init__(
        self,
        descriptor: Descriptor,
        server_key: SealKey,
        mechanism: Mechanism,
        tokens: TokenDesk | None,
    ) -> None:
        self._descriptor, self._server_key = descriptor, server_key
        self._mechanism, self._tokens = mechanism, tokens
        self.result = Opened(np.zeros(mechanism.dimension, dtype=np.int64))
        self._wrapped: list[_Wrapped] = []
        self._room = IN_MEMORY
        self._given_up = False
        self._check_in = mechanism.phases[mechanism.phase_of(descriptor.round)].check_in

    def give_up(self) -> None:
        """Unwrapping, in whatever thread it is, ends after the report at hand."""
        self._given_up = True

    def unwrap(self, reports: Spool) -> None:
        """Read every token; forget the reports that are dropped."""
        for _ in self.unwrapping(reports):
            pass

    def unwrapping(self, reports: Spool) -> Iterator[None]:
        """The same, a report at a time."""
        for place, gated in enumerate(reports):
            if self._given_up:
                return
            self._unwrap(place, gated)
            yield
        if self._tokens is not None:
            self._drop_repeated()

    def _unwrap(self, place: int, gated: bytes) -> None:
        try:
            token, closed = self._at_server(gated)
        except UnopenableLayer:
            self.result.unopenable += 1
            return
        if token is not None and not self._is_ours(token):
            self.result.injected += 1
            return
        self._room -= len(closed)
        nonce = token.nonce if token is not None else b""
        self._wrapped.append(_Wrapped(place, nonce, closed if self._room >= 0 else None))

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

    def add_up(self, reports: Spool, released: Sequence[SealKey]) -> Opened:
        """The sum of what was unwrapped; `released` has every mix's key, none without a gate."""
        result, used = self.result, []
        for each in self._wrapped:
            try:
                values = self._values(each, reports, released)
            except UnopenableLayer:
                result.unopenable += 1
            except MalformedReport:
                result.malformed += 1
            else:
                if values is None:
                    result.abstained += 1
                    continue
                result.total += values
                result.accepted += 1
                used.append(each)
        result.summed = result.accepted
        if self._check_in is not None and self._check_in.lone:
            result.total, result.summed = self._lone(used, reports, released), 1
        return result

    def _values(
        self, wrapped: _Wrapped, reports: Spool, released: Sequence[SealKey]
    ) -> NDArray[np.int64] | None:
        """What a report says; None if it says that its silo abstains."""
        closed = wrapped.closed or self._at_server(reports[wrapped.place])[1]
        report = open_gates(closed, released, self._descriptor.digest)
        if self._check_in is not None and is_abstention(report, self._mechanism):
            return None
        return decode_report(report, self._mechanism)

    def _lone(
        self, used: Sequence[_Wrapped], reports: Spool, released: Sequence[SealKey]
    ) -> NDArray[np.int64]:
        """One of the accepted reports, all alike; noise alone if there is none."""
        if used:
            values = self._values(secrets.choice(used), reports, released)
            if values is not None:
                return values
        return discrete_gaussian(self._mechanism.dimension, os.urandom)
