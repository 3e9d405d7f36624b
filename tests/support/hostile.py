"""A real silo process, and everybody around it in one hostile hand that asks what a test says.

The audit's attacker, less honest: it has the true keys and certificates of server and mixes, plays
Flower's Fleet API, keeps the reply to every lease and counts every frame that reaches the first
mix.  The silo is `python -m silomix silo run`; nothing of it is replaced.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import grpc
from flwr.app import Message
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from silomix.audit.attacker import Attacker
from silomix.audit.fleet import Fleet, serving
from silomix.audit.scratch import running, said
from silomix.consortium import Consortium
from silomix_client.config import SiloConfig, load
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.tls import ServerContext

from support.silos import written

Event = channel_pb2.ChannelEvent
Script = Callable[["HostileServer"], AsyncIterator[Event]]
OnDisk = tuple[tuple[list[str], dict[str, bytes]], list[bytes]]
_JOIN_S = 60.0
_LEASE_S = 30.0


# What the server says ----------------------------------------------------------------------------


def opening(signed: round_pb2.SignedDescriptor, query: bytes, size: int | None = None) -> Script:
    """A round is opened; `size` is what is announced if it is not the query's length."""

    async def script(_server: "HostileServer") -> AsyncIterator[Event]:
        announced = len(query) if size is None else size
        yield Event(opened=channel_pb2.RoundOpened(descriptor=signed, query_bytes=announced))
        yield Event(query_chunk=query)

    return script


def whole_round(descriptor: Descriptor, query: bytes) -> Script:
    """What an honest coordinator does: open the round, wait for the report, confirm it."""

    async def script(server: "HostileServer") -> AsyncIterator[Event]:
        async for event in opening(descriptor.to_wire(), query)(server):
            yield event
        yield server.confirmed(descriptor, await server.arrivals.get())

    return script


def in_turn(first: Script, then: Script, between: Callable[[], None] = lambda: None) -> Script:
    """Two scripts in one lease; `between` them something is done elsewhere, in a thread."""

    async def script(server: "HostileServer") -> AsyncIterator[Event]:
        async for event in first(server):
            yield event
        await asyncio.to_thread(between)
        async for event in then(server):
            yield event

    return script


class HostileServer(Attacker):
    """Coordinator and first mix: asks by script, takes every report, keeps its bytes."""

    def __init__(self, made: Consortium) -> None:
        super().__init__(made, made.study.mechanism())
        self.scripts: dict[str, Script] = {}
        self.frames = 0
        self.arrivals: asyncio.Queue[bytes] = asyncio.Queue()
        self.onions: list[bytes] = []

    def confirmed(self, descriptor: Descriptor, onion: bytes) -> Event:
        return self._closed(descriptor, self._open(onion, descriptor.digest)[1])

    async def Follow(  # noqa: N802
        self, request: channel_pb2.FollowRequest, context: ServerContext
    ) -> AsyncIterator[Event]:
        script = self.scripts.get(request.lease)
        if script is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        else:
            async for event in script(self):
                yield event
            yield Event(ended=channel_pb2.LeaseEnded(reason="all was said"))

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.SubmitFrame], context: ServerContext
    ) -> AsyncIterator[mix_pb2.Receipt]:
        async for receipt in super().Submit(self._counted(request_iterator), context):
            yield receipt

    async def _counted(
        self, frames: AsyncIterator[mix_pb2.SubmitFrame]
    ) -> AsyncIterator[mix_pb2.SubmitFrame]:
        async for frame in frames:
            self.frames += 1
            yield frame

    def _receive(self, silo: str, header: mix_pb2.SubmitHeader, onion: bytes) -> mix_pb2.Receipt:
        """Whatever round it is of: a report that should not have been sent is kept as well."""
        self.onions.append(onion)
        self.arrivals.put_nowait(onion)
        digest = sha256(header.descriptor.descriptor).digest()
        signature = self._mix_sign_key.sign("receipt", digest, sha256(onion).digest())
        return mix_pb2.Receipt(status=mix_pb2.Receipt.ACCEPTED, signature=signature)


class ListeningFleet(Fleet):
    """Asks for the content of every reply, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._message, self._wanted = "", set[str]()
        self._contents: dict[str, bytes] = {}

    async def answer(self, method: str, body: bytes) -> bytes | None:
        if method == "push-messages":
            return self._announced(PushMessagesRequest.FromString(body))
        if method == "push-object":
            self._take(PushObjectRequest.FromString(body))
        return await super().answer(method, body)

    def _announced(self, request: PushMessagesRequest) -> bytes:
        self._message = request.messages_list[0].metadata.message_id
        tree = request.message_object_trees[0]
        self._wanted = {entry.object_id for entry in iterate_object_tree(tree)}
        self._contents = {}
        return PushMessagesResponse(
            session_id="siege", objects_to_push=self._wanted
        ).SerializeToString()

    def _take(self, request: PushObjectRequest) -> None:
        self._contents[request.object_id] = request.object_content
        if self._contents.keys() == self._wanted:
            message = inflate_object_from_contents(self._message, self._contents)
            assert isinstance(message, Message)
            self.replies.put_nowait({**message.content["lease"]})


# The silo ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a lease went: the silo's reply, what reached the first mix, what the operator reads."""

    reply: dict[str, str]
    frames: int
    onions: list[bytes]
    log: str


class Siege:
    """The silo process and the leases that it is offered, one at a time."""

    def __init__(self, made: Consortium, fleet: ListeningFleet, server: HostileServer) -> None:
        self.made, self.server = made, server
        self.config: SiloConfig = load(made.silos[0])
        self.log: Path = made.folder / "silo.log"
        self._fleet = fleet
        self._process = AsyncExitStack()

    async def start(self) -> None:
        arguments = [sys.executable, "-m", "silomix", "silo", "run", str(self.made.silos[0])]
        arriving = self._fleet.expect()
        self._child = await self._process.enter_async_context(running(arguments, self.log))
        try:
            self._node = await asyncio.wait_for(arriving, _JOIN_S)
        except TimeoutError:
            raise AssertionError(f"the silo did not join: {said(self.log)}") from None
        self._process.callback(self._fleet.dismiss, self._node)

    async def stop(self) -> None:
        await self._process.aclose()

    async def kill(self) -> None:
        self._child.kill()
        await self.stop()

    async def lease(self, fields: dict[str, str], script: Script) -> Outcome:
        """Offer a lease, play the script on its channel and wait for the silo's reply."""
        frames, onions = self.server.frames, len(self.server.onions)
        self.server.arrivals = asyncio.Queue()
        written_before = self.log.stat().st_size
        identity = fields.get("lease", "")
        self.server.scripts[identity] = script
        self._node.offer(fields)
        try:
            reply = await asyncio.wait_for(self._fleet.replies.get(), _LEASE_S)
        except TimeoutError:
            raise AssertionError(f"no reply to the lease; the silo: {said(self.log)}") from None
        finally:
            del self.server.scripts[identity]
        return Outcome(
            reply=reply,
            frames=self.server.frames - frames,
            onions=self.server.onions[onions:],
            log=self.log.read_bytes()[written_before:].decode(),
        )

    def on_disk(self) -> OnDisk:
        """Everything that the silo keeps: rows and files, and the database's own bytes."""
        state = self.config.folder / "state"
        rows = written(self.config)
        return rows, [(state / f"ledger.sqlite{suffix}").read_bytes() for suffix in ("", "-wal")]


def lease_of(made: Consortium, **fields: str) -> dict[str, str]:
    """A lease of that consortium's study, with some fields replaced."""
    honest = {
        "lease": secrets.token_hex(8),
        "study": made.study.identity.hex(),
        "deadline_s": str(_LEASE_S),
    }
    return honest | fields


@asynccontextmanager
async def besieged(made: Consortium) -> AsyncIterator[Siege]:
    """The approved first silo of a consortium, joined and waiting; gone when this is left."""
    fleet, server = ListeningFleet(), HostileServer(made)
    address = made.study.server.fleet_address
    async with serving(fleet, address, made.server.parent), server.serving():
        siege = Siege(made, fleet, server)
        try:
            await siege.start()
            yield siege
        finally:
            await siege.stop()
