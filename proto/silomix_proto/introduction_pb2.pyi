from silomix_proto import ledger_pb2 as _ledger_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Introduction(_message.Message):
    __slots__ = ("version", "release", "study", "silo", "listener", "nonce", "time_ms", "certificate")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    version: int
    release: str
    study: bytes
    silo: str
    listener: str
    nonce: bytes
    time_ms: int
    certificate: bytes
    def __init__(self, version: _Optional[int] = ..., release: _Optional[str] = ..., study: _Optional[bytes] = ..., silo: _Optional[str] = ..., listener: _Optional[str] = ..., nonce: _Optional[bytes] = ..., time_ms: _Optional[int] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("content", "signature")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    signature: bytes
    def __init__(self, content: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("study",)
    STUDY_FIELD_NUMBER: _ClassVar[int]
    study: bytes
    def __init__(self, study: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "release", "time_ms", "height")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    version: int
    release: str
    time_ms: int
    height: _ledger_pb2.LedgerHeight
    def __init__(self, version: _Optional[int] = ..., release: _Optional[str] = ..., time_ms: _Optional[int] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...
