from silomix_proto import round_pb2 as _round_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowRequest(_message.Message):
    __slots__ = ("lease", "study")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    lease: str
    study: bytes
    def __init__(self, lease: _Optional[str] = ..., study: _Optional[bytes] = ...) -> None: ...

class ChannelEvent(_message.Message):
    __slots__ = ("opened", "query_chunk", "closed", "ended")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    QUERY_CHUNK_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    opened: RoundOpened
    query_chunk: bytes
    closed: RoundClosed
    ended: LeaseEnded
    def __init__(self, opened: _Optional[_Union[RoundOpened, _Mapping]] = ..., query_chunk: _Optional[bytes] = ..., closed: _Optional[_Union[RoundClosed, _Mapping]] = ..., ended: _Optional[_Union[LeaseEnded, _Mapping]] = ...) -> None: ...

class RoundOpened(_message.Message):
    __slots__ = ("descriptor", "query_bytes")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    QUERY_BYTES_FIELD_NUMBER: _ClassVar[int]
    descriptor: _round_pb2.SignedDescriptor
    query_bytes: int
    def __init__(self, descriptor: _Optional[_Union[_round_pb2.SignedDescriptor, _Mapping]] = ..., query_bytes: _Optional[int] = ...) -> None: ...

class RoundClosed(_message.Message):
    __slots__ = ("digest", "void", "reports", "signature")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    void: bool
    reports: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    def __init__(self, digest: _Optional[bytes] = ..., void: bool = ..., reports: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
