"""The Fleet API of a SuperLink, as far as a silo uses it: nodes come, get leases, reply.

Played by the audit itself rather than by Flower, which would cost a database transaction for every
step.  A request for messages is answered when there is one, so a trial starts without a pause.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silomix_core.toml_table import split_address

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import uvicorn
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

_HOLD_S = 10.0  # how long a request for messages may stay open; the silo's client waits 30 s
_PATH = "/v1/fleet/"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Any]
Send = Callable[[MutableMapping[str, Any]], Any]


@dataclass(slots=True)
class Node:
    """A silo process that joined: what waits for it, and whether it replied to its lease."""

    identity: int
    waiting: "asyncio.Queue[PullMessagesResponse]" = field(default_factory=asyncio.Queue)
    objects: dict[str, bytes] = field(default_factory=dict)
    replied: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: bool = False

    def offer(self, fields: dict[str, str]) -> None:
        """Offer the node a lease, packed as Flower's own code packs a message."""
        metadata = Metadata(
            run_id=1,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=self.identity,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=3600.0,
            message_type="query",
        )
        content = RecordDict({"lease": ConfigRecord(dict(fields))})
        message = make_message(metadata, content=content)
        self.replied.clear()
        with no_object_id_recompute():
            announced = message_to_proto(remove_content_from_message(message))
            announced.metadata.message_id = message.object_id
            nested = get_all_nested_objects(message)
            self.objects = {name: each.deflate() for name, each in nested.items()}
            response = PullMessagesResponse(
                messages_list=[announced],
                message_object_trees=[get_object_tree(message)],
            )
        self.waiting.put_nowait(response)


class Fleet:
    """The nodes that joined.  One process is awaited at a time, so it is clear which node it is."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._arrival: asyncio.Future[Node] | None = None

    def expect(self) -> "asyncio.Future[Node]":
        """A future for the next node to join."""
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    async def answer(self, method: str, body: bytes) -> bytes | None:
        """The response to a request; None for a request that is not answered."""
        if method == "activate-node":
            return self._activate()
        if method == "pull-messages":
            return await self._pull(PullMessagesRequest.FromString(body))
        if method == "pull-object":
            return self._object(PullObjectRequest.FromString(body))
        if method == "push-messages":
            return self._reply(PushMessagesRequest.FromString(body))
        fixed = {
            "confirm-message-received": ConfirmMessageReceivedResponse(),
            "push-object": PushObjectResponse(stored=True),
            "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
            "deactivate-node": DeactivateNodeResponse(),
        }
        return fixed[method].SerializeToString() if method in fixed else None

    def _activate(self) -> bytes | None:
        if self._arrival is None or self._arrival.done():
            return None
        node = Node(len(self._nodes) + 1)
        self._nodes[node.identity] = node
        self._arrival.set_result(node)
        return ActivateNodeResponse(node_id=node.identity).SerializeToString()

    async def _pull(self, request: PullMessagesRequest) -> bytes | None:
        node = self._nodes.get(request.node.node_id)
        if node is None:
            return None
        response = PullMessagesResponse()
        if not node.leaving:
            with suppress(TimeoutError):
                response = await asyncio.wait_for(node.waiting.get(), _HOLD_S)
        return response.SerializeToString()

    def _object(self, request: PullObjectRequest) -> bytes | None:
        node = self._nodes.get(request.node.node_id)
        content = node.objects.get(request.object_id) if node else None
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        ).SerializeToString()

    def _reply(self, request: PushMessagesRequest) -> bytes | None:
        node = self._nodes.get(request.node.node_id)
        if node is None:
            return None
        node.replied.set()
        return PushMessagesResponse(session_id="audit").SerializeToString()

    def dismiss(self, node: Node) -> None:
        """Answer what the node still asks, so that it can end."""
        node.leaving = True
        node.waiting.put_nowait(PullMessagesResponse())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as an ASGI application."""
        if scope["type"] != "http":
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
        answer = await self.answer(str(scope["path"]).removeprefix(_PATH), bytes(body))
        headers = [(b"content-type", b"application/protobuf")]
        status = 503 if answer is None else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer or b""})


class _Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(fleet: Fleet, address: str, folder: Path) -> AsyncIterator[None]:
    """Serve the fleet at its address, with the certificate in the server's folder."""
    host, port = split_address(address)
    listener = _Listener(
        uvicorn.Config(
            fleet,
            host=host,
            port=port,
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="critical",
            timeout_graceful_shutdown=1,
            ssl_certfile=folder / "tls.crt",
            ssl_keyfile=folder / "tls.key",
        )
    )
    task = asyncio.create_task(listener.serve())
    try:
        while not listener.started and not task.done():  # noqa: ASYNC110 it tells nobody
            await asyncio.sleep(0.01)
        if task.done():
            raise ConnectionError(f"cannot listen on {address}")
        yield
    finally:
        listener.should_exit = True
        with suppress(SystemExit):  # uvicorn's way to say that it cannot listen
            await task
