"""How a message of Flower travels: as objects, named by the SHA-256 of their content.

A message, its record dict and each record are objects.  The content of one is a head (its kind, the
identities of the objects in it, the length of its body), a zero byte and the body.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from silomix_proto.fleet_pb2 import (
    ConfigRecord,
    ConfigRecordValue,
    Message,
    Metadata,
    ObjectTree,
    RecordDict,
)

RECORD = "lease"
_MESSAGE, _CONTENT, _RECORD = "Message", "RecordDict", "ConfigRecord"


@dataclass(frozen=True, slots=True)
class FleetObject:
    """An object as it travels."""

    kind: str
    children: tuple[str, ...]
    body: bytes

    @property
    def content(self) -> bytes:
        head = f"{self.kind} {','.join(self.children)} {len(self.body)}"
        return head.encode("ascii") + b"\0" + self.body

    @property
    def identity(self) -> str:
        return sha256(self.content).hexdigest()

    @classmethod
    def parse(cls, content: bytes) -> "FleetObject":
        head, _, body = content.partition(b"\0")
        kind, children, _ = head.decode("ascii").split(" ")
        return cls(kind, tuple(filter(None, children.split(","))), body)


@dataclass(frozen=True, slots=True)
class FleetMessage:
    """A message for this node; `fields` are the texts in its lease record, if it has one."""

    fields: dict[str, str]
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class FleetReply:
    """A reply: the message without its content, and the objects that it consists of."""

    message: Message
    tree: ObjectTree
    objects: tuple[FleetObject, ...]


def read_message(metadata: Metadata, pull: Callable[[str], bytes]) -> FleetMessage:
    """Read the lease in a message by pulling its three objects; an error has no fields."""
    message = FleetObject.parse(pull(metadata.message_id))
    if message.kind != _MESSAGE:
        raise ValueError("the server sent something that is not a message")
    if not message.children:
        return FleetMessage({}, metadata)
    content = FleetObject.parse(pull(message.children[0]))
    records = json.loads(content.body)
    if content.kind != _CONTENT or RECORD not in records:
        return FleetMessage({}, metadata)
    record = FleetObject.parse(pull(records[RECORD]))
    return FleetMessage(_texts(record), metadata)


def _texts(record: FleetObject) -> dict[str, str]:
    if record.kind != _RECORD:
        return {}
    items = ConfigRecord.FromString(record.body).items
    return {item.key: item.value.string for item in items if item.value.HasField("string")}


def reply_to(message: Metadata, fields: dict[str, str]) -> FleetReply:
    """Make the reply to a message, with one record."""
    items = [
        ConfigRecord.Item(key=key, value=ConfigRecordValue(string=text))
        for key, text in fields.items()
    ]
    record = FleetObject(_RECORD, (), ConfigRecord(items=items).SerializeToString())
    records = json.dumps({RECORD: record.identity}).encode("ascii")
    content = FleetObject(_CONTENT, (record.identity,), records)
    metadata = _reply_metadata(message)
    body = Message(metadata=metadata).SerializeToString()
    whole = FleetObject(_MESSAGE, (content.identity,), body)
    metadata.message_id = whole.identity
    leaf = ObjectTree(object_id=record.identity)
    branch = ObjectTree(object_id=content.identity, children=[leaf])
    return FleetReply(
        Message(metadata=metadata, content=RecordDict()),
        ObjectTree(object_id=whole.identity, children=[branch]),
        (record, content, whole),
    )


def _reply_metadata(message: Metadata) -> Metadata:
    """Metadata of a reply, which lives no longer than the message would have."""
    now = time.time()
    metadata = Metadata(
        run_id=message.run_id,
        src_node_id=message.dst_node_id,
        dst_node_id=message.src_node_id,
        reply_to_message_id=message.message_id,
        group_id=message.group_id,
        ttl=message.ttl - (now - message.created_at),
        message_type=message.message_type,
        created_at=now,
    )
    if message.HasField("dst_task_id"):
        metadata.src_task_id = message.dst_task_id
    if message.HasField("src_task_id"):
        metadata.dst_task_id = message.src_task_id
    return metadata
