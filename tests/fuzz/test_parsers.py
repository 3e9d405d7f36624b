"""No bytes from the network raise anything but the declared errors: Hypothesis, all targets."""

from typing import Any

import pytest
from fuzz.targets import TARGETS, Target
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_proto import channel_pb2, introduction_pb2, mix_pb2, round_pb2

NAMES = pytest.mark.parametrize("name", TARGETS)
BOUNDED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@NAMES
def test_every_target_takes_what_is_valid(name: str) -> None:
    """Otherwise its mutations would stop at the first check."""
    target = TARGETS[name]
    assert target.valid
    assert all(target(valid) for valid in target.valid)


@NAMES
def test_every_target_refuses_noise(name: str) -> None:
    assert not TARGETS[name](b"\xff" * 50)


@NAMES
@BOUNDED
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """Something valid with a few pieces replaced, inserted, repeated or cut out."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 40)))
        piece = draw(
            st.binary(max_size=8)
            | st.just(bytes(content[start:end]) * 2)
            | st.sampled_from([b"\xff" * (end - start), bytes(end - start), b"\x80" * 9])
        )
        content[start:end] = piece
    return bytes(content)


@NAMES
@BOUNDED
@given(data=st.data())
def test_valid_messages_with_changes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    TARGETS[name](data.draw(mutated(data.draw(st.sampled_from(target.valid)))))


@NAMES
@BOUNDED
@given(data=st.data())
def test_valid_messages_cut_short_or_run_on(name: str, data: st.DataObject) -> None:
    valid = data.draw(st.sampled_from(TARGETS[name].valid))
    TARGETS[name](valid[: data.draw(st.integers(0, len(valid)))])
    TARGETS[name](valid + data.draw(st.binary(max_size=20)))


KINDS: dict[str, type[Message]] = {
    "descriptor": round_pb2.SignedDescriptor,
    "descriptor_of_coordinator": round_pb2.RoundDescriptor,
    "introduction": introduction_pb2.Signed,
    "introduction_of_silo": introduction_pb2.Introduction,
    "key_lists_forged": channel_pb2.StretchOpened,
    "key_lists_of_mixes": channel_pb2.StretchOpened,
    "round_keys": channel_pb2.RoundOpened,
    "sealing_keys": channel_pb2.RoundOpened,
    "abandonments": channel_pb2.RoundOpened,
    "released_key": mix_pb2.ReleasedKey,
    "chain": mix_pb2.BatchHeader,
    "chain_of_mixes": mix_pb2.BatchHeader,
    "receipt": mix_pb2.Receipt,
    "committed": channel_pb2.RoundCommitted,
    "committed_by_mixes": channel_pb2.RoundCommitted,
    "confirmation": round_pb2.Confirmation,
    "complaint": channel_pb2.Complaint,
    "complaint_of_silo": channel_pb2.Complaint,
}
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 64, 65, 2**31, 2**32 - 1])
LENGTHS = st.sampled_from([0, 1, 31, 32, 33, 64, 96, 128, 160, 1216])
BYTES = LENGTHS.flatmap(lambda size: st.sampled_from([bytes(size), b"\xff" * size])) | st.binary()


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BYTES
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.text(max_size=5) | st.just("x" * 201)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.integers(0, 5)
    return NUMBERS


def edit(draw: st.DrawFn, message: Message) -> None:
    """Change one field, here or in a message inside; lists lose, repeat or swap an element."""
    field: Any = draw(st.sampled_from(list[Any](message.DESCRIPTOR.fields)))
    content = getattr(message, field.name)
    inside = field.type == FieldDescriptor.TYPE_MESSAGE
    if not field.is_repeated:
        if inside:
            edit(draw, content)
        else:
            setattr(message, field.name, draw(values(field)))
        return
    how = draw(st.sampled_from(["drop", "repeat", "reverse", "edit"]))
    kept = list(content)
    if how == "drop":
        kept = kept[1:]
    elif how == "repeat":
        kept = kept + kept[:1]
    elif how == "reverse":
        kept = kept[::-1]
    elif kept and inside:
        edit(draw, kept[draw(st.integers(0, len(kept) - 1))])
    elif not inside:
        kept = [*kept[1:], draw(values(field))]
    message.ClearField(field.name)
    getattr(message, field.name).extend(kept)


@st.composite
def edited(draw: st.DrawFn, kind: type[Message], valid: bytes) -> bytes:
    message = kind.FromString(valid)
    for _ in range(draw(st.integers(1, 3))):
        edit(draw, message)
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", KINDS)
@settings(BOUNDED, max_examples=100)
@given(data=st.data())
def test_messages_with_other_values_in_their_fields(name: str, data: st.DataObject) -> None:
    """Well-formed on the wire, so that the checks behind the decoder are met."""
    TARGETS[name](data.draw(edited(KINDS[name], TARGETS[name].valid[0])))


@NAMES
@settings(deadline=None, max_examples=20)
@given(other=st.sampled_from([valid for target in TARGETS.values() for valid in target.valid]))
def test_valid_messages_in_the_wrong_place(name: str, other: bytes) -> None:
    TARGETS[name](other)


def test_an_error_that_is_not_declared_comes_out() -> None:
    def broken(data: bytes) -> None:
        raise KeyError("planted") if data else ValueError("declared")

    target = Target(broken, (ValueError,), ())
    assert not target(b"")
    with pytest.raises(KeyError, match="planted"):
        target(b"x")
