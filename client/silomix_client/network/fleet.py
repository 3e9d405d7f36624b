"""The silo as a Flower node: enrolled by key, takes leases, executes nothing that the server sends.

The app bundle that a run carries is never fetched, and nothing of Flower is loaded here.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from silomix_proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    Node,
    PullMessagesRequest,
    PullMessagesResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
    PushObjectResponse,
    SendNodeHeartbeatRequest,
    SendNodeHeartbeatResponse,
)
from silomix_protocol.connections.route import DIRECT, Route
from silomix_protocol.host import logs
from silomix_protocol.host.backoff import pause_s
from silomix_protocol.host.durable import write_durably

from silomix_client.network.fleet_calls import (
    FleetCalls,
    FleetRefused,
    FleetUnreachable,
    FleetVersion,
    translated,
)
from silomix_client.network.fleet_objects import FleetMessage, FleetObject, read_message, reply_to

_HEARTBEAT_S, _BEAT_ANSWER_S = 30.0, 5.0  # Flower's own
_HALF_SENT_S = 10.0  # how long to wait for the rest of a message
_LONGEST_PAUSE_S = 1.0  # between two looks for it


class FleetNode:
    """An activated node: `receive` leases, `reply` to each."""

    def __init__(self, calls: FleetCalls, node_id: int) -> None:
        self._calls = calls
        self._node = Node(node_id=node_id)

    def receive(self) -> FleetMessage | None:
        """The next message, or None if there is none now."""
        question = PullMessagesRequest(node=self._node)
        response = self._calls.ask("pull-messages", question, PullMessagesResponse)
        if not response.messages_list:
            return None
        metadata, end = response.messages_list[0].metadata, time.monotonic() + _HALF_SENT_S
        with translated():
            message = read_message(metadata, lambda part: self._pull(metadata.run_id, part, end))
        confirmation = ConfirmMessageReceivedRequest(
            node=self._node, run_id=metadata.run_id, message_object_id=metadata.message_id
        )
        self._calls.ask("confirm-message-received", confirmation, ConfirmMessageReceivedResponse)
        return message

    def _pull(self, run_id: int, part: str, end: float) -> bytes:
        """A part of a message, which may come a little after the message itself."""
        question = PullObjectRequest(node=self._node, run_id=run_id, object_id=part)
        tries = 0
        while True:
            response = self._calls.ask("pull-object", question, PullObjectResponse)
            if response.object_found and response.object_available:
                return response.object_content
            if not response.object_found or time.monotonic() > end:
                raise FleetUnreachable("the server lacks a part of its message")
            tries += 1
            time.sleep(pause_s(tries, _LONGEST_PAUSE_S))

    def reply(self, message: FleetMessage, fields: dict[str, str]) -> None:
        reply = reply_to(message.metadata, fields)
        announcement = PushMessagesRequest(
            node=self._node,
            messages_list=[reply.message],
            message_object_trees=[reply.tree],
            clientapp_runtime_list=[0.0],
        )
        response = self._calls.ask("push-messages", announcement, PushMessagesResponse)
        for part in reply.objects:
            if part.identity in response.objects_to_push:
                self._push(message.metadata.run_id, part, response.session_id)

    def _push(self, run_id: int, part: FleetObject, session: str) -> None:
        request = PushObjectRequest(
            node=self._node,
            run_id=run_id,
            object_id=part.identity,
            object_content=part.content,
            session_id=session,
        )
        if not self._calls.ask("push-object", request, PushObjectResponse).stored:
            raise FleetUnreachable("the server did not keep the reply")

    def heartbeat(self) -> None:
        beat = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT_S)
        self._calls.ask("send-node-heartbeat", beat, SendNodeHeartbeatResponse, _BEAT_ANSWER_S)


@contextmanager
def join_fleet(
    address: str,
    authority: bytes,
    key: ec.EllipticCurvePrivateKey,
    memory: Path,
    route: Route = DIRECT,
) -> Iterator[FleetNode]:
    """Activate this node at the SuperLink and keep it alive.

    Raises FleetRefused for a key that nobody registered, FleetVersion for another Flower.
    `memory` is a file that keeps the node's id: a process that was killed is still active for
    Flower (about a minute), and only with that id can its successor end the old activation.
    """
    with closing(FleetCalls(address, authority, key, route)) as calls:
        node_id = _activate(calls, memory)
        write_durably(memory, str(node_id).encode("ascii"))
        try:
            with _beating(FleetNode(calls, node_id)) as node:
                yield node
        finally:
            _leave(calls, node_id)


def _activate(calls: FleetCalls, memory: Path) -> int:
    request = ActivateNodeRequest(public_key=calls.public_key, heartbeat_interval=_HEARTBEAT_S)
    try:
        return calls.ask("activate-node", request, ActivateNodeResponse).node_id
    except FleetVersion:
        raise
    except FleetRefused:
        former = _former_id(memory)
        if former is None:
            raise
    _deactivate(calls, former)
    return calls.ask("activate-node", request, ActivateNodeResponse).node_id


def _deactivate(calls: FleetCalls, node_id: int) -> None:
    calls.ask("deactivate-node", DeactivateNodeRequest(node_id=node_id), DeactivateNodeResponse)


def _leave(calls: FleetCalls, node_id: int) -> None:
    try:
        _deactivate(calls, node_id)
    except (FleetUnreachable, FleetRefused):
        logs.paced("server_gone")  # it ended first: nothing is left to deactivate


def _former_id(memory: Path) -> int | None:
    try:
        return int(memory.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


@contextmanager
def _beating(node: FleetNode) -> Iterator[FleetNode]:
    """Tell the SuperLink now and then that this node is alive."""
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(node, stop), daemon=True)
    beat.start()
    try:
        yield node
    finally:
        stop.set()
        beat.join(timeout=5.0)


def _beat(node: FleetNode, stop: threading.Event) -> None:
    while not stop.wait(_HEARTBEAT_S / 3):
        try:
            node.heartbeat()
        except (FleetUnreachable, FleetRefused) as error:
            logs.warning("heartbeat_failed", reason=error)
