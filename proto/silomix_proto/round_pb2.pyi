from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RoundDescriptor(_message.Message):
    __slots__ = ("version", "suite", "study", "round", "attempt", "dimension", "minimum_batch", "deadline_ms", "silos", "query", "server_key", "mix_keys")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_BATCH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    MIX_KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    suite: str
    study: bytes
    round: int
    attempt: int
    dimension: int
    minimum_batch: int
    deadline_ms: int
    silos: _containers.RepeatedScalarFieldContainer[str]
    query: bytes
    server_key: bytes
    mix_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, version: _Optional[int] = ..., suite: _Optional[str] = ..., study: _Optional[bytes] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., dimension: _Optional[int] = ..., minimum_batch: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., silos: _Optional[_Iterable[str]] = ..., query: _Optional[bytes] = ..., server_key: _Optional[bytes] = ..., mix_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SignedDescriptor(_message.Message):
    __slots__ = ("descriptor", "signature")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    descriptor: bytes
    signature: bytes
    def __init__(self, descriptor: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("point",)
    POINT_FIELD_NUMBER: _ClassVar[int]
    point: bytes
    def __init__(self, point: _Optional[bytes] = ...) -> None: ...
