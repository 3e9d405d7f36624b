"""The silo as a Flower node: enrolled by key, takes leases, executes nothing that the server sends.

The only module of the silo that touches flwr.  It speaks the Fleet API through flwr's own HTTP
client (an internal of flwr, hence the exact pin and tests/system/test_flower_contract.py).  The
app bundle that a run carries is never fetched, let alone imported.
"""

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)
from flwr.supercore.runtime_version_compatibility import (
    RuntimeVersionMetadata,
    get_runtime_version_incompatibility_exit_message,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from silomix_protocol.connections.route import DIRECT, Route
from silomix_protocol.host import logs
from silomix_protocol.host.durable import write_durably

from silomix_client.network.bounded_http import bounded_client
from silomix_client.network.outbound import sentence

RECORD = "lease"
_HALF_SENT_S = 10.0  # how long to wait for the rest of a message
_MOST_OBJECTS = 8  # of a message; a lease has three, and each may be as large as an answer


class FleetUnreachable(ConnectionError):
    """The SuperLink does not answer; try again later."""


class FleetRefused(PermissionError):
    """The SuperLink answers, but refuses this node."""


class FleetVersion(FleetRefused):
    """The SuperLink runs a release of Flower that does not go with this one."""


@dataclass(frozen=True, slots=True)
class FleetMessage:
    """A message for this node; `fields` is its one record."""

    fields: dict[str, str]
    _message: Message


class FleetNode:
    """An activated node: `receive` leases, `reply` to each."""

    def __init__(self, client: FleetHttpClient, node_id: int) -> None:
        self._client = client
        self._node = Node(node_id=node_id)

    def receive(self) -> FleetMessage | None:
        """The next message, or None if there is none now."""
        with _translated():
            response = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not response.messages_list:
                return None
            message = message_from_proto(response.messages_list[0])
            run_id, message_id = message.metadata.run_id, message.metadata.message_id
            tree = response.message_object_trees[0]
            objects = list(islice(iterate_object_tree(tree), _MOST_OBJECTS + 1))
            if len(objects) > _MOST_OBJECTS:
                raise FleetUnreachable("the server sent a message of more parts than a lease has")
            contents = pull_objects(
                [entry.object_id for entry in objects],
                make_pull_object_fn_protobuf(self._client.PullObject, self._node, run_id),
                max_time=_HALF_SENT_S,
                initial_backoff=0.05,
            )
            confirm = make_confirm_message_received_fn_protobuf(
                self._client.ConfirmMessageReceived, self._node, run_id
            )
            confirm(message_id)
            inflated = inflate_object_from_contents(message_id, contents)
            if not isinstance(inflated, Message):
                raise FleetUnreachable("the server sent something that is not a message")
            inflated.metadata.__dict__["_message_id"] = message_id
            return FleetMessage(_fields(inflated), inflated)

    def reply(self, message: FleetMessage, fields: dict[str, str]) -> None:
        content = RecordDict({RECORD: ConfigRecord(dict(fields))})
        with _translated(), no_object_id_recompute():
            reply = Message(content, reply_to=message._message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            response = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject,
                self._node,
                reply.metadata.run_id,
                response.session_id,
            )
            push_objects(objects, push, object_ids_to_push=set(response.objects_to_push))

    def heartbeat(self) -> None:
        with _translated():
            self._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(
                    node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )


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
    interceptors: list[ProtobufClientInterceptor] = [
        _VersionHeaders(),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with _client(address, authority, interceptors, route) as client:
        node_id = _activate(client, public_key_to_bytes(key.public_key()), memory)
        write_durably(memory, str(node_id).encode("ascii"))
        node = FleetNode(client, node_id)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(node, stop), daemon=True)
        beat.start()
        try:
            yield node
        finally:
            stop.set()
            beat.join(timeout=5.0)
            try:
                with _translated():
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
            except (FleetUnreachable, FleetRefused):
                logs.paced("server_gone")  # it ended first: nothing is left to deactivate


def _client(
    address: str,
    authority: bytes,
    interceptors: list[ProtobufClientInterceptor],
    route: Route,
) -> FleetHttpClient:
    """flwr's client, with a connection that takes our way out and knows no other."""
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=(authority + b"\n" + route.authorities).decode("ascii"))
    client = FleetHttpClient(f"https://{address}", interceptors=interceptors, verify=trusted)
    client._client.close()
    client._client = bounded_client(trusted, route)
    return client


class _VersionHeaders:
    """An interceptor that says which Flower this is; flwr's own ends the process on a mismatch."""

    def __init__(self) -> None:
        self._headers = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, self._headers)
        response = call_next(context)
        if response.is_error:
            told = get_runtime_version_incompatibility_exit_message(response.text)
            if told:
                raise FleetVersion(logs.foreign(" ".join(told.split())))
        return response


def _activate(client: FleetHttpClient, public_key: bytes, memory: Path) -> int:
    request = ActivateNodeRequest(
        public_key=public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
    )
    try:
        with _translated():
            return int(client.ActivateNode(request).node_id)
    except FleetVersion:
        raise
    except FleetRefused:
        former = _former_id(memory)
        if former is None:
            raise
    with _translated():
        client.DeactivateNode(DeactivateNodeRequest(node_id=former))
        return int(client.ActivateNode(request).node_id)


def _former_id(memory: Path) -> int | None:
    try:
        return int(memory.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _beat(node: FleetNode, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_DEFAULT_INTERVAL / 3):
        try:
            node.heartbeat()
        except (FleetUnreachable, FleetRefused) as error:
            logs.warning("heartbeat_failed", reason=error)


def _fields(message: Message) -> dict[str, str]:
    """The fields of the message's lease record; none if it has no such record."""
    record = message.content.get(RECORD) if message.has_content() else None
    if not isinstance(record, ConfigRecord):
        return {}
    return {key: value for key, value in record.items() if isinstance(value, str)}


_UNKNOWN_KEY = "Failed to activate SuperNode"  # the words of Flower


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, told = error.response.status_code, FlowerError.from_json(error.response.text)
        said = f"the server answered {status}" + (f": {logs.foreign(told.message)}" if told else "")
        if told and told.message.startswith(_UNKNOWN_KEY):
            said += " It does not know this silo's node.key: it is starting, or has another study"
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise FleetRefused(said) from error
        raise FleetUnreachable(said) from error
    except (FleetRefused, FleetUnreachable):
        raise
    except httpx.ProxyError as error:
        raise FleetUnreachable(f"the proxy answered {logs.foreign(error)}") from error
    except Exception as error:  # whatever a server sends, only this connection may end
        raise FleetUnreachable(sentence(error)) from error
