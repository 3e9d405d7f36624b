from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RoundDescriptor(_message.Message):
    __slots__ = ("version", "suite", "study", "round", "attempt", "dimension", "minimum_batch", "deadline_ms", "silos", "query", "server_key", "mix_keys", "token_key")
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
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    version: int
    suite: str
    study: bytes
    round: int
    attempt: int
    dimension: int
    minimum_batch: int
    deadline_ms: int
    silos: bytes
    query: bytes
    server_key: bytes
    mix_keys: _containers.RepeatedScalarFieldContainer[bytes]
    token_key: bytes
    def __init__(self, version: _Optional[int] = ..., suite: _Optional[str] = ..., study: _Optional[bytes] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., dimension: _Optional[int] = ..., minimum_batch: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., silos: _Optional[bytes] = ..., query: _Optional[bytes] = ..., server_key: _Optional[bytes] = ..., mix_keys: _Optional[_Iterable[bytes]] = ..., token_key: _Optional[bytes] = ...) -> None: ...

class SignedDescriptor(_message.Message):
    __slots__ = ("descriptor", "signature")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    descriptor: bytes
    signature: bytes
    def __init__(self, descriptor: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("point", "control")
    POINT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    point: bytes
    control: bytes
    def __init__(self, point: _Optional[bytes] = ..., control: _Optional[bytes] = ...) -> None: ...

class RoundKeys(_message.Message):
    __slots__ = ("seal", "release")
    SEAL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    seal: bytes
    release: bytes
    def __init__(self, seal: _Optional[bytes] = ..., release: _Optional[bytes] = ...) -> None: ...

class KeyList(_message.Message):
    __slots__ = ("attempt", "first_round", "keys", "signature")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    first_round: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    def __init__(self, attempt: _Optional[int] = ..., first_round: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Abandonment(_message.Message):
    __slots__ = ("digest", "reason", "signature")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    reason: str
    signature: bytes
    def __init__(self, digest: _Optional[bytes] = ..., reason: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Voided(_message.Message):
    __slots__ = ("digest", "reason", "disclosed", "signature", "uncertain")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DISCLOSED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    reason: str
    disclosed: bytes
    signature: bytes
    uncertain: bool
    def __init__(self, digest: _Optional[bytes] = ..., reason: _Optional[str] = ..., disclosed: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., uncertain: bool = ...) -> None: ...

class Disclosure(_message.Message):
    __slots__ = ("keys", "seal", "senders", "origins")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    keys: RoundKeys
    seal: bytes
    senders: _containers.RepeatedCompositeFieldContainer[Sender]
    origins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[_Union[RoundKeys, _Mapping]] = ..., seal: _Optional[bytes] = ..., senders: _Optional[_Iterable[_Union[Sender, _Mapping]]] = ..., origins: _Optional[_Iterable[int]] = ...) -> None: ...

class Sender(_message.Message):
    __slots__ = ("silo", "report", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: int
    report: bytes
    signature: bytes
    def __init__(self, silo: _Optional[int] = ..., report: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("abandoned", "voided", "disclosure")
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    VOIDED_FIELD_NUMBER: _ClassVar[int]
    DISCLOSURE_FIELD_NUMBER: _ClassVar[int]
    abandoned: Abandonment
    voided: Voided
    disclosure: bytes
    def __init__(self, abandoned: _Optional[_Union[Abandonment, _Mapping]] = ..., voided: _Optional[_Union[Voided, _Mapping]] = ..., disclosure: _Optional[bytes] = ...) -> None: ...

class Confirmation(_message.Message):
    __slots__ = ("silo", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: int
    signature: bytes
    def __init__(self, silo: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class HopStatement(_message.Message):
    __slots__ = ("hop", "received", "forwarded", "dropped", "input", "output", "aborted", "signature")
    HOP_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hop: int
    received: int
    forwarded: int
    dropped: int
    input: bytes
    output: bytes
    aborted: str
    signature: bytes
    def __init__(self, hop: _Optional[int] = ..., received: _Optional[int] = ..., forwarded: _Optional[int] = ..., dropped: _Optional[int] = ..., input: _Optional[bytes] = ..., output: _Optional[bytes] = ..., aborted: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...
