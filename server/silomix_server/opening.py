"""From gated reports to one integer sum, a report at a time.

In two steps.  `unwrap`, while the gate is still closed: take off the server's layer and read the
tokens.  A report without a token that a silo was given for this round is dropped; so are all that
share one, since nobody knows which of them is the silo's own.  `add_up`, with the mixes' release
keys: open the rest and add its values.  A report that is not one of the mechanism's is dropped
whole, never repaired.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.mechanism import Mechanism
from silomix_core.report import MalformedReport, decode_report
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import SealKey
from silomix_protocol.onion import UnopenableLayer, open_at_server, open_gates
from silomix_protocol.tokens import TOKEN_BYTES, Token

from silomix_server.spool import Spool
from silomix_server.token_desk import TokenDesk


@dataclass(slots=True)
class Opened:
    """The sum over the accepted reports, and how many were not accepted, by reason."""

    total: NDArray[np.int64]
    accepted: int = 0
    unopenable: int = 0
    injected: int = 0  # without a token of this round: no silo sent them
    repeated: int = 0  # with a token that another report of the batch has, too
    malformed: int = 0

    @property
    def dropped(self) -> int:
        return self.unopenable + self.injected + self.repeated + self.malformed


class Opening:
    """The opening of one batch."""

    def __init__(
        self, descriptor: Descriptor, mechanism: Mechanism, tokens: TokenDesk | None
    ) -> None:
        self._descriptor, self._mechanism, self._tokens = descriptor, mechanism, tokens
        self._result = Opened(np.zeros(mechanism.dimension, dtype=np.int64))
        self._closed: list[tuple[bytes, int]] = []  # nonce of its token, place of the report
        self._closed_bytes = 0

    def unwrap(self, reports: Spool, server_key: SealKey) -> None:
        """Keep, in place of each gated report, what its gates close; forget those to be dropped."""
        for place, gated in enumerate(reports):
            try:
                content = open_at_server(gated, server_key, self._descriptor.digest)
            except UnopenableLayer:
                self._result.unopenable += 1
                continue
            nonce, closed = b"", content
            if self._tokens is not None:
                token, closed = Token.from_bytes(content[:TOKEN_BYTES]), content[TOKEN_BYTES:]
                if not self._tokens.valid(self._descriptor.round, token):
                    self._result.injected += 1
                    continue
                nonce = token.nonce
            reports.replace(place, closed)
            self._closed_bytes = len(closed)
            self._closed.append((nonce, place))
        self._drop_repeated()

    def _drop_repeated(self) -> None:
        if self._tokens is None:
            return
        times = Counter(nonce for nonce, _ in self._closed)
        self._result.repeated = sum(count for count in times.values() if count > 1)
        self._closed = [each for each in self._closed if times[each[0]] == 1]

    def add_up(self, reports: Spool, released: Sequence[SealKey]) -> Opened:
        """The sum of what was unwrapped; `released` has every mix's key, none without a gate."""
        result = self._result
        for _, place in self._closed:
            try:
                closed = reports[place][: self._closed_bytes]
                report = open_gates(closed, released, self._descriptor.digest)
                result.total += decode_report(report, self._mechanism)
            except UnopenableLayer:
                result.unopenable += 1
            except MalformedReport:
                result.malformed += 1
            else:
                result.accepted += 1
        return result
