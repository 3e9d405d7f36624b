"""A real mix, and everybody else in one hostile hand.

`real_mix` is `silomix mix run` as a process; nothing of it is replaced.  A `HostileRound` is a
round whose other mixes, coordinator and (if a test says so) silos are the attacker's: it has their
true keys and certificates, sees every byte outside the honest mix and sends what it likes.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import grpc
import grpc.aio
import tomli_w
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import channel_pb2, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.tls import ServerContext
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.onion import (
    Onion,
    UnopenableLayer,
    onion_bytes,
    open_layer,
    seal,
)
from silomix_protocol.rounds.statements import (
    check_chain,
    digests,
    input_of,
    sign_commitment,
    sign_hop,
)
from support.mixes import (
    RPC_S,
    PlayedRound,
    calling,
    collect,
    commit_at,
    described,
    forward,
    identity,
    open_at,
    payload_length,
    release_at,
    signer,
)
from support.rounds import open_gated

_START_S = 30.0

Chain = tuple[round_pb2.HopStatement, ...]


# The real mix ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealMix:
    """A running mix process: its place in the chain, its log file, its metrics."""

    made: Consortium
    hop: int
    process: "subprocess.Popen[bytes]"
    log_path: Path
    metrics_address: str

    @property
    def name(self) -> str:
        return self.made.study.mixes[self.hop].name

    @property
    def state(self) -> Path:
        return self.made.mixes[self.hop].parent / "state"

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    @property
    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=5) as reply:
            return str(reply.read().decode("utf-8"))

    def count(self, name: str, label: str) -> int:
        """A counter, e.g. count("refused", "wrong_round"): how many since the start."""
        start = f"silomix_mix_{name}_total{{"
        for line in self.metrics.splitlines():
            if line.startswith(start) and f'"{label}"' in line:
                return int(float(line.rsplit(" ", 1)[1]))
        return 0

    def refused(self, reason: str) -> int:
        return self.count("refused", reason)

    @property
    def memory_mb(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1000

    def stop(self) -> int:
        """End it as an operator does."""
        self.process.terminate()
        return self.process.wait(10)


@contextmanager
def real_mix(
    made: Consortium, hop: int = 0, *, grace_s: float = 3600.0, **limits: float
) -> Iterator[RealMix]:
    """The mix at this place, ready; gone when this is left, whatever happens."""
    config = made.mixes[hop]
    (port,) = free_ports(1)
    metrics_address = f"127.0.0.1:{port}"
    tree = tomllib.loads(config.read_text(encoding="utf-8"))
    tree |= {"metrics_listen": metrics_address, "grace_s": grace_s, "limits": limits}
    config.write_text(tomli_w.dumps(tree), encoding="utf-8")
    log_path = config.parent / "mix.log"
    with log_path.open("ab") as log:
        written = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "silomix", "mix", "run", str(config)], stderr=log
        )
    try:
        mix = RealMix(made, hop, process, log_path, metrics_address)
        _wait_until_ready(mix, written)
        yield mix
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(mix: RealMix, written: int) -> None:
    end = time.monotonic() + _START_S
    while b" mix_ready " not in mix.log_path.read_bytes()[written:]:
        assert mix.process.poll() is None, f"{mix.name} ended: {mix.log}"
        assert time.monotonic() < end, f"{mix.name} is not ready: {mix.log}"
        time.sleep(0.02)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder for many rounds: in memory where there is such a place, so that no disk is waited
    for hundreds of times."""
    shared = Path("/dev/shm")  # noqa: S108
    quick = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="silomix-", dir=quick) as folder:
        yield Path(folder)


async def until(holds: Callable[[], bool], what: str, limit_s: float = 10.0) -> None:
    """Poll a condition; a clear failure when it does not come true in time."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        await asyncio.sleep(0.02)


# Rounds in hostile hands -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostileRound:
    """A round with one honest mix; the keys of all others are the attacker's."""

    played: PlayedRound
    honest: int
    seal_keys: dict[int, SealKey] = field(repr=False)
    release_keys: dict[int, SealKey] = field(repr=False)

    @property
    def made(self) -> Consortium:
        return self.played.made

    @property
    def mix(self) -> str:
        return self.made.study.mixes[self.honest].name

    @property
    def last(self) -> bool:
        return self.honest == len(self.made.study.mixes) - 1

    def length(self, hop: int) -> int:
        return onion_bytes(payload_length(self.made), self.made.study, hop)

    def onion(self, payload: bytes) -> Onion:
        """What a silo seals, or a fake that no mix can tell from one."""
        wanted = payload.ljust(payload_length(self.made), b"\0")
        played = self.played
        return seal(wanted, played.server_key.public, played.mix_keys, played.descriptor.digest)

    def fake_at(self, hop: int) -> bytes:
        """A well-formed report as it arrives at `hop`, never seen by the mixes before."""
        own, keys = SealKey.generate(), list(self.played.mix_keys)
        if self.honest < hop:  # a layer that nobody will look at: sealed to ourselves
            keys[self.honest] = round_pb2.RoundKeys(
                seal=own.public, release=keys[self.honest].release
            )
        played, payload = self.played, b"fake".ljust(payload_length(self.made), b"\0")
        layer = seal(payload, played.server_key.public, keys, played.descriptor.digest).sealed
        for before in range(hop):
            key = self.seal_keys.get(before, own)
            layer = open_layer(layer, key, before, played.descriptor.digest)
        return layer

    def statement(
        self, hop: int, came: bytes, reports: Sequence[bytes], *, dropped: int = 0
    ) -> round_pb2.HopStatement:
        """What the attacker's mix at `hop` signs about these reports."""
        statement = round_pb2.HopStatement(
            hop=hop,
            received=len(reports) + dropped,
            forwarded=len(reports),
            dropped=dropped,
            input=came,
            output=joined(reports),
        )
        key = signer(self.made, self.made.study.mixes[hop].name)
        return sign_hop(self.played.descriptor.digest, statement, key)

    def opened(self, hop: int, layers: Iterable[bytes]) -> list[bytes]:
        """The layers of an attacker's mix opened, in their order."""
        digest = self.played.descriptor.digest
        return [open_layer(each, self.seal_keys[hop], hop, digest) for each in layers]

    def before(self, onions: Sequence[bytes]) -> tuple[Chain, list[bytes]]:
        """What the attacker's mixes before the honest one make of the onions, order kept."""
        came, reports = input_of(sha256(each).digest() for each in onions), list(onions)
        chain: Chain = ()
        for hop in range(self.honest):
            reports = self.opened(hop, reports)
            chain = (*chain, self.statement(hop, came, reports))
            came = sha256(chain[-1].output).digest()
        return chain, reports

    def after(self, chain: Chain, reports: Sequence[bytes]) -> tuple[Chain, list[bytes]]:
        """What the attacker's mixes behind the honest one make of its batch, order kept."""
        reports = list(reports)
        for hop in range(self.honest + 1, len(self.made.study.mixes)):
            reports = self.opened(hop, reports)
            came = sha256(chain[-1].output).digest()
            chain = (*chain, self.statement(hop, came, reports))
        return chain, reports

    def opens_with(self, gated: bytes, candidates: Iterable[SealKey]) -> bytes | None:
        """The payload, if one of these keys passes for the honest mix's release key."""
        for candidate in candidates:
            keys = self.release_keys | {self.honest: candidate}
            released = [keys[hop] for hop in range(len(self.made.study.mixes))]
            try:
                return self.opens(gated, released)
            except UnopenableLayer:
                continue
        return None

    def opens(self, gated: bytes, released: Sequence[SealKey]) -> bytes:
        played = self.played
        return open_gated(gated, released, played.server_key, played.descriptor.digest)

    async def committed(self, joined_list: bytes) -> channel_pb2.RoundCommitted:
        """The list with every mix's word for it; the honest one's may be refused."""
        digest, hashed = self.played.descriptor.digest, sha256(joined_list).digest()
        honest = await commit_at(self.played, self.mix, joined_list)
        signatures = [
            honest
            if mix.name == self.mix
            else sign_commitment(digest, hashed, signer(self.made, mix.name))
            for mix in self.made.study.mixes
        ]
        return channel_pb2.RoundCommitted(digest=digest, list=joined_list, signatures=signatures)

    async def released(
        self, joined_list: bytes, confirmed: list[round_pb2.Confirmation]
    ) -> list[SealKey]:
        """Every release key, the honest mix's against these confirmations of the list."""
        await commit_at(self.played, self.mix, joined_list)
        honest = await release_at(self.played, self.mix, joined_list, confirmed)
        keys = self.release_keys | {self.honest: honest}
        return [keys[hop] for hop in range(len(self.made.study.mixes))]


async def hostile_round(
    made: Consortium,
    honest: int,
    number: int,
    *,
    attempt: int = 1,
    opened: bool = True,
) -> HostileRound:
    """A round that the honest mix has opened, with the attacker's keys for all other mixes."""
    study = made.study
    others = [hop for hop in range(len(study.mixes)) if hop != honest]
    seal_keys = {hop: SealKey.generate() for hop in others}
    gate = study.batching.gate
    release_keys = {hop: SealKey.generate() for hop in others} if gate else {}
    keys = {
        hop: round_pb2.RoundKeys(
            seal=seal_keys[hop].public, release=release_keys[hop].public if gate else b""
        )
        for hop in others
    }
    keys[honest] = (await prepared(made, honest, number, attempt=attempt)).keys[0]
    in_order = [keys[hop] for hop in range(len(study.mixes))]
    played = described(made, in_order, number, attempt=attempt)
    if opened:
        await open_at(made, played.descriptor, study.mixes[honest].name)
    return HostileRound(played, honest, seal_keys, release_keys)


async def prepared(
    made: Consortium, hop: int, first: int, *, rounds: int = 1, attempt: int = 1
) -> mix_pb2.PreparedRounds:
    """The keys of one mix for these rounds."""
    request = mix_pb2.PrepareRequest(
        study=made.study.identity, attempt=attempt, first_round=first, rounds=rounds
    )
    async with calling(made, "server", made.study.mixes[hop].name) as stub:
        answer = await stub.Prepare(request, timeout=RPC_S, wait_for_ready=True)
    assert isinstance(answer, mix_pb2.PreparedRounds)
    return answer


async def feed(round_: HostileRound, chain: Chain, reports: Sequence[bytes]) -> None:
    """A batch from the attacker's mix before the honest one."""
    batch = frames(round_.played.descriptor.digest, chain, reports)
    before = round_.made.study.mixes[round_.honest - 1].name
    await forward(round_.made, before, batch, mix=round_.mix)


def joined(reports: Iterable[bytes]) -> bytes:
    return b"".join(sha256(each).digest() for each in reports)


def honest_confirmers(onions: dict[str, Onion], joined_list: bytes) -> list[str]:
    """The silos that confirm this list: those whose report is in it."""
    listed = set(digests(joined_list))
    return [silo for silo, onion in onions.items() if onion.trail[-1] in listed]


# What comes out of the honest mix --------------------------------------------------------------


class Successor(mix_pb2_grpc.MixServicer):
    """The attacker's mix behind the honest one: takes every batch and keeps what it saw."""

    def __init__(self) -> None:
        self.batches: dict[bytes, list[tuple[Chain, bytes]]] = {}
        self._came = asyncio.Condition()

    async def Forward(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.BatchFrame], context: ServerContext
    ) -> mix_pb2.ForwardReceipt:
        received = [frame async for frame in request_iterator]
        header, body = received[0].header, b"".join(frame.chunk for frame in received[1:])
        async with self._came:
            self.batches.setdefault(header.digest, []).append((tuple(header.chain), body))
            self._came.notify_all()
        return mix_pb2.ForwardReceipt()

    async def batch(self, round_: HostileRound) -> tuple[Chain, list[bytes]]:
        digest = round_.played.descriptor.digest
        async with asyncio.timeout(RPC_S), self._came:
            await self._came.wait_for(lambda: digest in self.batches)
        ((chain, body),) = self.batches[digest]
        length = round_.length(round_.honest + 1)
        reports = [body[at : at + length] for at in range(0, len(body), length)]
        check_chain(chain, round_.played.descriptor, round_.made.study, round_.honest + 1)
        assert joined(reports) == chain[-1].output
        return chain, reports


@asynccontextmanager
async def successor(made: Consortium, honest: int) -> AsyncIterator[Successor]:
    """The party that the honest mix hands its batches to; for the last mix it only collects."""
    taker = Successor()
    if honest + 1 == len(made.study.mixes):
        yield taker
        return
    place = made.study.mixes[honest + 1]
    server = identity(made, place.name).server(place.address)
    mix_pb2_grpc.add_MixServicer_to_server(taker, server)
    await server.start()
    try:
        yield taker
    finally:
        await server.stop(None)


async def output(round_: HostileRound, taker: Successor) -> tuple[Chain, list[bytes]]:
    """The honest mix's batch: its statements so far, and the reports in the order they came."""
    if round_.last:
        collected = await collect(round_.played)
        return collected.chain, list(collected.reports)
    return await taker.batch(round_)


async def refusal(work: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """The code and the sentence that a call is refused with."""
    try:
        await work
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("not refused")
