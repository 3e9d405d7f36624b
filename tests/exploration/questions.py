"""What the server of a small world may ask: rounds, their attempts, and two variants of each.

D is named (round, attempt, variant).  Every round and every variant has a query of its own; the
variants of an attempt name the same keys, as a server would that asks two silos different things.
"""

from hashlib import shake_256
from itertools import count

import numpy as np
from silomix_client.rounds.round_request import RoundRequest
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import SEAL_KEY_BYTES, SealKey
from support.rounds import Round, make_round
from support.silos import mix_key, query_at, server_key, silo_key

Name = tuple[int, int, int]  # round, attempt, variant


class Questions:
    """The descriptors of one consortium, each made once."""

    def __init__(self, made: Consortium) -> None:
        self.made, self.study = made, made.study
        self.mix_keys = [mix_key(made, hop) for hop in range(len(made.study.mixes))]
        self.silo_keys = [silo_key(made, place) for place in range(len(made.study.silos))]
        self.server_key = server_key(made)
        self._secrets: dict[Name, tuple[Round, bytes]] = {}
        self._names: dict[bytes, Name] = {}

    def secrets(self, name: Name) -> Round:
        return self._made(name)[0]

    def digest(self, name: Name) -> bytes:
        return self._made(name)[0].digest

    def name(self, digest: bytes) -> Name:
        return self._names[digest]

    def asked(self, name: Name) -> RoundRequest:
        attempt, query = self._made(name)
        keys = tuple(attempt.mix_keys)
        return RoundRequest(attempt.descriptor, query, attempt.server.public, keys)

    def _made(self, name: Name) -> tuple[Round, bytes]:
        if name not in self._secrets:
            number, attempt, variant = name
            point = np.full(self.study.task.dimension, 0.01 * number + 0.1 * variant)
            control = np.zeros_like(point) if self.study.has_control else None
            query = query_at(point, control)
            made = make_round(
                self.study,
                self.server_key,
                number,
                attempt,
                query=query,
                make_key=_keys_of(f"{number}/{attempt}"),
            )
            self._secrets[name] = made, query
            self._names[made.digest] = name
        return self._secrets[name]


def _keys_of(attempt: str):
    places = count()

    def make_key() -> SealKey:
        stream = shake_256(f"{attempt}/{next(places)}".encode())
        return SealKey.from_raw(stream.digest(SEAL_KEY_BYTES))

    return make_key
