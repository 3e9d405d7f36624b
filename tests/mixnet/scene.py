"""A real mix with fresh rounds, and what it stored of them."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc
import grpc.aio
from mixnet.real_mix import RealMix
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from support.mixes import PlayedRound, opened_round

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

COLUMNS = 600_000  # a report of 2.4 MB: cut into chunks, kept in a file while it comes
REPORT_S = 0.6


@dataclass(frozen=True, slots=True)
class Scene:
    """A mix that is first and last, and numbers for rounds that nobody used yet."""

    mix: RealMix
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def made(self) -> Consortium:
        return self.mix.made

    async def round(self) -> PlayedRound:
        return await opened_round(self.made, next(self.numbers))

    def stored(self, played: PlayedRound) -> int:
        """Reports of the round in the mix's database, and bytes of their bodies."""
        digest = played.descriptor.digest
        database = sqlite3.connect(f"file:{self.mix.state}/mix.sqlite?mode=ro", uri=True)
        try:
            found = database.execute("SELECT COUNT(*) FROM reports WHERE digest = ?", (digest,))
            (rows,) = found.fetchone()
        finally:
            database.close()
        body = self.mix.state / "batches" / digest.hex()
        return int(rows) + (body.stat().st_size if body.exists() else 0)


async def answered(
    call: "grpc.aio.StreamStreamCall[Any, Any]", frames_: Iterable[mix_pb2.SubmitFrame]
) -> object:
    """What comes back when these messages were sent."""
    for frame in frames_:
        await call.write(frame)
    return await call.read()
