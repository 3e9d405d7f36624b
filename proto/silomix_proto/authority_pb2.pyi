from silomix_proto import ledger_pb2 as _ledger_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("version", "invitation", "csr", "sign_key", "node_key", "statement", "signature", "node_proof")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    SIGN_KEY_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    NODE_PROOF_FIELD_NUMBER: _ClassVar[int]
    version: int
    invitation: bytes
    csr: bytes
    sign_key: bytes
    node_key: bytes
    statement: bytes
    signature: bytes
    node_proof: bytes
    def __init__(self, version: _Optional[int] = ..., invitation: _Optional[bytes] = ..., csr: _Optional[bytes] = ..., sign_key: _Optional[bytes] = ..., node_key: _Optional[bytes] = ..., statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., node_proof: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("version", "name", "csr", "time_s", "signature", "height")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    csr: bytes
    time_s: int
    signature: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., csr: _Optional[bytes] = ..., time_s: _Optional[int] = ..., signature: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("certificate", "list", "height")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    list: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, certificate: _Optional[bytes] = ..., list: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("version", "name", "height")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    height: _ledger_pb2.LedgerHeight
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class RevocationList(_message.Message):
    __slots__ = ("list", "height")
    LIST_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    list: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, list: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...
