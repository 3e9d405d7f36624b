from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerHeight(_message.Message):
    __slots__ = ("restored_ms", "entries", "mark", "signature")
    RESTORED_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    restored_ms: int
    entries: int
    mark: bytes
    signature: bytes
    def __init__(self, restored_ms: _Optional[int] = ..., entries: _Optional[int] = ..., mark: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
