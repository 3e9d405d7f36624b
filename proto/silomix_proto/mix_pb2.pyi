from silomix_proto import introduction_pb2 as _introduction_pb2
from silomix_proto import ledger_pb2 as _ledger_pb2
from silomix_proto import round_pb2 as _round_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareRequest(_message.Message):
    __slots__ = ("study", "attempt", "first_round", "rounds")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    study: bytes
    attempt: int
    first_round: int
    rounds: int
    def __init__(self, study: _Optional[bytes] = ..., attempt: _Optional[int] = ..., first_round: _Optional[int] = ..., rounds: _Optional[int] = ...) -> None: ...

class PreparedRounds(_message.Message):
    __slots__ = ("list", "keys")
    LIST_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    list: _round_pb2.KeyList
    keys: _containers.RepeatedCompositeFieldContainer[_round_pb2.RoundKeys]
    def __init__(self, list: _Optional[_Union[_round_pb2.KeyList, _Mapping]] = ..., keys: _Optional[_Iterable[_Union[_round_pb2.RoundKeys, _Mapping]]] = ...) -> None: ...

class RoundIsOpen(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitFrame(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SubmitHeader(_message.Message):
    __slots__ = ("digest", "bytes", "signature", "height")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    bytes: int
    signature: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, digest: _Optional[bytes] = ..., bytes: _Optional[int] = ..., signature: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("digest", "report", "status", "reason", "signature", "height")
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
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    report: bytes
    status: Receipt.Status
    reason: str
    signature: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, digest: _Optional[bytes] = ..., report: _Optional[bytes] = ..., status: _Optional[_Union[Receipt.Status, str]] = ..., reason: _Optional[str] = ..., signature: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class BatchFrame(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("digest", "chain", "commitment")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    chain: _containers.RepeatedCompositeFieldContainer[_round_pb2.HopStatement]
    commitment: bytes
    def __init__(self, digest: _Optional[bytes] = ..., chain: _Optional[_Iterable[_Union[_round_pb2.HopStatement, _Mapping]]] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class ForwardReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("digest", "list")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    list: bytes
    def __init__(self, digest: _Optional[bytes] = ..., list: _Optional[bytes] = ...) -> None: ...

class Commitment(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("digest", "list", "confirmations")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    list: bytes
    confirmations: _containers.RepeatedCompositeFieldContainer[_round_pb2.Confirmation]
    def __init__(self, digest: _Optional[bytes] = ..., list: _Optional[bytes] = ..., confirmations: _Optional[_Iterable[_Union[_round_pb2.Confirmation, _Mapping]]] = ...) -> None: ...

class ReleasedKey(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...
