from silomix_proto import round_pb2 as _round_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitFrame(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SubmitHeader(_message.Message):
    __slots__ = ("descriptor", "bytes", "signature")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    descriptor: _round_pb2.SignedDescriptor
    bytes: int
    signature: bytes
    def __init__(self, descriptor: _Optional[_Union[_round_pb2.SignedDescriptor, _Mapping]] = ..., bytes: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("digest", "report", "status", "reason", "signature")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[Receipt.Status]
        ACCEPTED: _ClassVar[Receipt.Status]
        REFUSED: _ClassVar[Receipt.Status]
    STATUS_UNSPECIFIED: Receipt.Status
    ACCEPTED: Receipt.Status
    REFUSED: Receipt.Status
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    report: bytes
    status: Receipt.Status
    reason: str
    signature: bytes
    def __init__(self, digest: _Optional[bytes] = ..., report: _Optional[bytes] = ..., status: _Optional[_Union[Receipt.Status, str]] = ..., reason: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class BatchFrame(_message.Message):
    __slots__ = ("header", "chunk", "trailer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    chunk: bytes
    trailer: BatchTrailer
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., trailer: _Optional[_Union[BatchTrailer, _Mapping]] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("descriptor", "reports")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    descriptor: _round_pb2.SignedDescriptor
    reports: int
    def __init__(self, descriptor: _Optional[_Union[_round_pb2.SignedDescriptor, _Mapping]] = ..., reports: _Optional[int] = ...) -> None: ...

class BatchTrailer(_message.Message):
    __slots__ = ("received", "forwarded", "dropped", "reports", "signature", "aborted")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    received: int
    forwarded: int
    dropped: int
    reports: bytes
    signature: bytes
    aborted: str
    def __init__(self, received: _Optional[int] = ..., forwarded: _Optional[int] = ..., dropped: _Optional[int] = ..., reports: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., aborted: _Optional[str] = ...) -> None: ...

class ForwardReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
