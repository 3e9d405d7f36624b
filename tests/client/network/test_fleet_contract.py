"""What a silo says of Flower's Fleet API, held against the Flower that is installed.

A silo speaks it from proto/fleet.proto, without loading Flower; a release that changes any of it
fails here.  Against a real SuperLink: tests/system/test_flower_contract.py.
"""

import json
import time
from datetime import UTC, datetime

import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import heartbeat_pb2, message_pb2, node_pb2, recorddict_pb2
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from silomix_client.network import fleet as node
from silomix_client.network.fleet_calls import (
    FleetCalls,
    FleetRefused,
    FleetUnreachable,
    FleetVersion,
    _refusal,
)
from silomix_client.network.fleet_objects import FleetReply, read_message, reply_to
from silomix_proto import fleet_pb2
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.connections.route import DIRECT
from silomix_protocol.keys import generate_node_key

FLOWER = (fleet, heartbeat_pb2, message_pb2, node_pb2, recorddict_pb2)
OURS = dict(fleet_pb2.DESCRIPTOR.message_types_by_name)
AUTHORITY = Authority.create("consortium", datetime.now(UTC))
FIELDS = {"lease": "l-1", "study": "ab" * 32, "deadline_s": "30.0"}


def flowers(name: str) -> Descriptor:
    (found,) = (
        module.DESCRIPTOR.message_types_by_name[name]
        for module in FLOWER
        if name in module.DESCRIPTOR.message_types_by_name
    )
    return found


def form(field: FieldDescriptor) -> tuple[object, ...]:
    kind = None if field.message_type is None else field.message_type.name
    return field.name, field.type, field.is_repeated, field.has_presence, kind


@pytest.mark.parametrize("name", OURS)
def test_every_field_that_a_silo_speaks_is_one_of_flowers(name: str) -> None:
    pairs = [(OURS[name], flowers(name))]
    pairs += [
        (each, flowers(name).nested_types_by_name[each.name]) for each in OURS[name].nested_types
    ]
    for ours, theirs in pairs:
        for number, field in ours.fields_by_number.items():
            assert form(field) == form(theirs.fields_by_number[number])


def lease(content: RecordDict | None = None) -> Message:
    """A message that Flower's own code made."""
    metadata = Metadata(
        run_id=7,
        message_id="",
        src_node_id=1,
        dst_node_id=2,
        reply_to_message_id="",
        group_id="g",
        created_at=time.time() - 10.0,
        ttl=60.0,
        message_type="query",
        src_task_id=5,
    )
    if content is None:
        content = RecordDict({"lease": ConfigRecord(dict(FIELDS))})
    return make_message(metadata, content=content)


def packed(message: Message) -> tuple[fleet_pb2.Metadata, dict[str, bytes]]:
    """What a silo gets of a message: its metadata, and the objects that it may pull."""
    objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    proto = message_to_proto(message).metadata
    proto.message_id = message.object_id
    return fleet_pb2.Metadata.FromString(proto.SerializeToString()), objects


def test_a_lease_that_flower_packed_is_read() -> None:
    metadata, objects = packed(lease())
    assert read_message(metadata, objects.__getitem__).fields == FIELDS


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"another": ConfigRecord(dict(FIELDS))}),
        RecordDict({"lease": ConfigRecord({"lease": 1, "study": b"x", "deadline_s": [1.0]})}),
    ],
    ids=["empty", "another-record", "no-texts"],
)
def test_a_message_that_is_no_lease_has_no_fields(content: RecordDict) -> None:
    metadata, objects = packed(lease(content))
    assert read_message(metadata, objects.__getitem__).fields == {}


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"RecordDict  0\0", b"Message x 1 2\0", b"\xff \0"]
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"not|unpack"):
        read_message(fleet_pb2.Metadata(message_id="m"), lambda _: content)


def replied(reply: FleetReply) -> Message:
    """The reply as Flower's own code reads it."""
    contents = {part.identity: part.content for part in reply.objects}
    inflated = inflate_object_from_contents(
        reply.tree.object_id, contents, keep_object_contents=True
    )
    assert isinstance(inflated, Message)
    return inflated


def test_flower_reads_a_reply_as_it_would_its_own() -> None:
    metadata, _ = packed(lease())
    reply = reply_to(metadata, {"silo": "silo-1", "ending": "done"})
    received, original = replied(reply), lease()
    original.metadata.__dict__["_message_id"] = metadata.message_id
    own = Message(RecordDict(), reply_to=original)
    assert dict(received.content["lease"]) == {"silo": "silo-1", "ending": "done"}
    for name in (
        *("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id"),
        *("message_type", "src_task_id", "dst_task_id"),
    ):
        assert getattr(received.metadata, name) == getattr(own.metadata, name), name
    assert received.metadata.ttl == pytest.approx(own.metadata.ttl, abs=1.0)
    assert received.metadata.created_at == pytest.approx(own.metadata.created_at, abs=1.0)


def test_a_reply_is_announced_as_flower_announces_one() -> None:
    metadata, _ = packed(lease())
    reply = reply_to(metadata, {"silo": "silo-1"})
    received = replied(reply)
    assert reply.tree.SerializeToString() == get_object_tree(received).SerializeToString()
    announced = message_pb2.Message.FromString(reply.message.SerializeToString())
    assert announced.metadata.message_id == received.object_id == reply.tree.object_id
    assert announced.HasField("content")
    assert message_from_proto(announced).metadata.run_id == 7


def test_a_silo_says_which_flower_it_goes_with_as_flower_does() -> None:
    calls = FleetCalls("127.0.0.1:1", AUTHORITY.pem, generate_node_key(), DIRECT)
    said, problem = RuntimeVersionMetadata.from_metadata(list(calls._headers.items()))
    assert problem is None
    assert said == RuntimeVersionMetadata.from_local_component("SuperNode")
    assert (node._HEARTBEAT_S, node._BEAT_ANSWER_S) == (
        HEARTBEAT_DEFAULT_INTERVAL,
        HEARTBEAT_CALL_TIMEOUT,
    )


def test_flowers_errors_are_understood() -> None:
    wrong = FlowerError(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE, "", "take 1.41\nnot 1.40")
    body = json.dumps(wrong.to_json("Incompatible.")).encode()
    version = _refusal(412, body)
    assert isinstance(version, FleetVersion)
    assert str(version) == "Incompatible. take 1.41 not 1.40"
    other = _refusal(412, json.dumps(FlowerError(5, "").to_json("No.")).encode())
    assert isinstance(other, FleetRefused)
    assert str(other) == "the server answered 412: No."
    for body in (b"", b"\xff", b"[1]", b'{"code": null, "detail": 5}', b"{}"):
        assert str(_refusal(404, body)) == "the server answered 404"
        assert isinstance(_refusal(503, body), FleetUnreachable)
