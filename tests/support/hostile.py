"""A real silo process, and everybody around it in one hostile hand that asks what a test says.

The audit's attacker, less honest: it has the true keys and certificates of server and mixes, plays
Flower's Fleet API, keeps the reply to every lease and counts every frame that reaches the first
mix.  The silo is `python -m silomix silo run`; nothing of it is replaced.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
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
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.rounds.round_request import RoundRequest
from silomix_core.study.study import StudyId
from silomix_lab.audit.attacker import Attacker
from silomix_lab.audit.played_fleet import Fleet, serving
from silomix_lab.audit.scratch import running, said
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.connections.tls import ServerContext
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.statements import sign_receipt

from support.echoes import with_echoes
from support.scripted_lease import gated_digest
from support.silos import (
    closed_round,
    committed_list,
    mix_key,
    round_opened,
    stretch_of,
    tokens_for,
    written,
)

Event = channel_pb2.ChannelEvent
Script = Callable[["HostileServer"], AsyncIterator[Event]]
OnDisk = tuple[tuple[list[str], dict[str, bytes]], list[bytes]]
_JOIN_S = 60.0
_LEASE_S = 30.0


# What the server says ----------------------------------------------------------------------------


def opening(
    made: Consortium,
    signed: round_pb2.SignedDescriptor,
    query: bytes,
    size: int | None = None,
    edit: Callable[[channel_pb2.RoundOpened], object] = lambda opened: None,
) -> Script:
    """A round is opened; `size` is what is announced if it is not the query's length."""

    async def script(_server: "HostileServer") -> AsyncIterator[Event]:
        opened = round_opened(made, signed, query)
        if size is not None:
            opened.query_bytes = size
        edit(opened)
        yield Event(opened=opened)
        yield Event(query_chunk=query)

    return script


def saying(*events: Event) -> Script:
    """These events, whatever the silo makes of them."""

    async def script(_server: "HostileServer") -> AsyncIterator[Event]:
        for event in events:
            yield event

    return script


def whole_round(made: Consortium, question: RoundRequest) -> Script:
    """What an honest coordinator does: open the round, wait for the report, commit, close."""
    descriptor = question.descriptor

    def attempt(opened: channel_pb2.RoundOpened) -> None:
        opened.abandoned.extend(question.abandoned)

    async def script(server: "HostileServer") -> AsyncIterator[Event]:
        signed = descriptor.to_wire()
        async for event in opening(made, signed, question.query, edit=attempt)(server):
            yield event
        onion = await server.arrivals.get()
        yield committed(made, descriptor, [gated_digest(made, onion, descriptor)])
        await asyncio.wait_for(server.words.get(), _LEASE_S)
        yield Event(closed=closed_round(made, descriptor))

    return script


def committed(made: Consortium, descriptor: Descriptor, reports: Sequence[bytes]) -> Event:
    return Event(committed=committed_list(made, descriptor.digest, reports))


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
    """Coordinator and first mix: asks by script, takes every report, keeps its bytes.

    Before a script it announces the whole study as one stretch and gives its tokens, unless the
    lease is among the `silent` ones.
    """

    def __init__(self, made: Consortium) -> None:
        super().__init__(made, made.study.mechanism())
        self.known = {made.study.identity: made}
        self.scripts: dict[str, Script] = {}
        self.silent: set[str] = set()
        self.frames = 0  # that reached the first mix
        self.arrivals: asyncio.Queue[bytes] = asyncio.Queue()
        self.words: asyncio.Queue[channel_pb2.SiloFrame] = asyncio.Queue()
        self.said: list[channel_pb2.SiloFrame] = []  # by the silo, in this lease
        self.onions: list[bytes] = []
        self.receipt_place = 0  # of silo-1, for whom the first mix signs

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> AsyncIterator[Event]:
        follow = (await anext(request_iterator)).follow
        script = self.scripts.get(follow.lease)
        if script is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        made = self.known[StudyId(follow.study)]
        if follow.lease not in self.silent:
            yield Event(stretch=stretch_of(made))
            request = (await anext(request_iterator)).tokens
            yield Event(tokens=tokens_for(made.study, request))
        echoes: asyncio.Queue[bytes] = asyncio.Queue()
        listening = asyncio.create_task(self._listen(request_iterator, echoes))
        try:
            async for event in with_echoes(script(self), echoes):
                yield event
            yield Event(ended=channel_pb2.LeaseEnded(reason="all was said"))
            await asyncio.wait({listening}, timeout=_LEASE_S)  # the silo has the last word
        finally:
            listening.cancel()

    async def _listen(
        self, frames: AsyncIterator[channel_pb2.SiloFrame], echoes: asyncio.Queue[bytes]
    ) -> None:
        async for frame in frames:
            if frame.HasField("echo"):
                echoes.put_nowait(frame.echo)
                continue
            self.said.append(frame)
            self.words.put_nowait(frame)

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
        digest = RoundDigest(header.digest)
        report = sha256(onion).digest()
        return sign_receipt(digest, self.receipt_place, report, mix_key(self._made, 0))


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
    """How a lease went: the silo's reply, what it said on the channel after it had its tokens,
    what reached the first mix, what the operator reads."""

    reply: dict[str, str]
    said: list[channel_pb2.SiloFrame]
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

    async def lease(
        self, fields: dict[str, str], script: Script, *, announced: bool = True
    ) -> Outcome:
        """Offer a lease, play the script on its channel and wait for the silo's reply."""
        frames, onions = self.server.frames, len(self.server.onions)
        self.server.arrivals, self.server.words = asyncio.Queue(), asyncio.Queue()
        self.server.said = []
        written_before = self.log.stat().st_size
        identity = fields.get("lease", "")
        self.server.scripts[identity] = script
        if not announced:
            self.server.silent.add(identity)
        self._node.offer(fields)
        try:
            reply = await asyncio.wait_for(self._fleet.replies.get(), _LEASE_S)
        except TimeoutError:
            raise AssertionError(f"no reply to the lease; the silo: {said(self.log)}") from None
        finally:
            del self.server.scripts[identity]
        return Outcome(
            reply=reply,
            said=self.server.said,
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
