from silomix_proto import introduction_pb2 as _introduction_pb2
from silomix_proto import ledger_pb2 as _ledger_pb2
from silomix_proto import mix_pb2 as _mix_pb2
from silomix_proto import round_pb2 as _round_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SiloFrame(_message.Message):
    __slots__ = ("follow", "tokens", "answer", "inspect", "signed", "echo")
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    follow: FollowRequest
    tokens: TokenRequest
    answer: CommittedAnswer
    inspect: bytes
    signed: _introduction_pb2.Signed
    echo: bytes
    def __init__(self, follow: _Optional[_Union[FollowRequest, _Mapping]] = ..., tokens: _Optional[_Union[TokenRequest, _Mapping]] = ..., answer: _Optional[_Union[CommittedAnswer, _Mapping]] = ..., inspect: _Optional[bytes] = ..., signed: _Optional[_Union[_introduction_pb2.Signed, _Mapping]] = ..., echo: _Optional[bytes] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("lease", "study", "unsettled", "height")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    lease: str
    study: bytes
    unsettled: bytes
    height: _ledger_pb2.LedgerHeight
    def __init__(self, lease: _Optional[str] = ..., study: _Optional[bytes] = ..., unsettled: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ...) -> None: ...

class TokenRequest(_message.Message):
    __slots__ = ("first_round", "blinded", "signature")
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    BLINDED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    first_round: int
    blinded: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    def __init__(self, first_round: _Optional[int] = ..., blinded: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CommittedAnswer(_message.Message):
    __slots__ = ("digest", "confirmation", "complaint")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    confirmation: _round_pb2.Confirmation
    complaint: Complaint
    def __init__(self, digest: _Optional[bytes] = ..., confirmation: _Optional[_Union[_round_pb2.Confirmation, _Mapping]] = ..., complaint: _Optional[_Union[Complaint, _Mapping]] = ...) -> None: ...

class ChannelEvent(_message.Message):
    __slots__ = ("stretch", "tokens", "opened", "query_chunk", "committed", "closed", "passage", "ended", "signed", "echo", "height", "more")
    STRETCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    QUERY_CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    stretch: StretchOpened
    tokens: TokenReply
    opened: RoundOpened
    query_chunk: bytes
    committed: RoundCommitted
    closed: RoundClosed
    passage: Passage
    ended: LeaseEnded
    signed: _introduction_pb2.Signed
    echo: bytes
    height: _ledger_pb2.LedgerHeight
    more: _containers.RepeatedCompositeFieldContainer[ChannelEvent]
    def __init__(self, stretch: _Optional[_Union[StretchOpened, _Mapping]] = ..., tokens: _Optional[_Union[TokenReply, _Mapping]] = ..., opened: _Optional[_Union[RoundOpened, _Mapping]] = ..., query_chunk: _Optional[bytes] = ..., committed: _Optional[_Union[RoundCommitted, _Mapping]] = ..., closed: _Optional[_Union[RoundClosed, _Mapping]] = ..., passage: _Optional[_Union[Passage, _Mapping]] = ..., ended: _Optional[_Union[LeaseEnded, _Mapping]] = ..., signed: _Optional[_Union[_introduction_pb2.Signed, _Mapping]] = ..., echo: _Optional[bytes] = ..., height: _Optional[_Union[_ledger_pb2.LedgerHeight, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ChannelEvent, _Mapping]]] = ...) -> None: ...

class StretchOpened(_message.Message):
    __slots__ = ("first_round", "lists", "token_keys")
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KEYS_FIELD_NUMBER: _ClassVar[int]
    first_round: int
    lists: _containers.RepeatedCompositeFieldContainer[_round_pb2.KeyList]
    token_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_round: _Optional[int] = ..., lists: _Optional[_Iterable[_Union[_round_pb2.KeyList, _Mapping]]] = ..., token_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TokenReply(_message.Message):
    __slots__ = ("first_round", "evaluated")
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    first_round: int
    evaluated: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_round: _Optional[int] = ..., evaluated: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RoundOpened(_message.Message):
    __slots__ = ("descriptor", "query_bytes", "server_key", "mix_keys", "lists", "abandoned")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    QUERY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    MIX_KEYS_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    descriptor: _round_pb2.SignedDescriptor
    query_bytes: int
    server_key: bytes
    mix_keys: _containers.RepeatedCompositeFieldContainer[_round_pb2.RoundKeys]
    lists: _containers.RepeatedCompositeFieldContainer[_round_pb2.KeyList]
    abandoned: _containers.RepeatedCompositeFieldContainer[_round_pb2.Abandonment]
    def __init__(self, descriptor: _Optional[_Union[_round_pb2.SignedDescriptor, _Mapping]] = ..., query_bytes: _Optional[int] = ..., server_key: _Optional[bytes] = ..., mix_keys: _Optional[_Iterable[_Union[_round_pb2.RoundKeys, _Mapping]]] = ..., lists: _Optional[_Iterable[_Union[_round_pb2.KeyList, _Mapping]]] = ..., abandoned: _Optional[_Iterable[_Union[_round_pb2.Abandonment, _Mapping]]] = ...) -> None: ...

class RoundCommitted(_message.Message):
    __slots__ = ("digest", "list", "signatures")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    list: bytes
    signatures: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digest: _Optional[bytes] = ..., list: _Optional[bytes] = ..., signatures: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RoundClosed(_message.Message):
    __slots__ = ("digest", "void", "signature", "endings", "traced")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ENDINGS_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    void: bool
    signature: bytes
    endings: _containers.RepeatedCompositeFieldContainer[_round_pb2.Ending]
    traced: bool
    def __init__(self, digest: _Optional[bytes] = ..., void: bool = ..., signature: _Optional[bytes] = ..., endings: _Optional[_Iterable[_Union[_round_pb2.Ending, _Mapping]]] = ..., traced: bool = ...) -> None: ...

class Passage(_message.Message):
    __slots__ = ("digest", "statement", "ending")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    statement: _round_pb2.HopStatement
    ending: _round_pb2.Ending
    def __init__(self, digest: _Optional[bytes] = ..., statement: _Optional[_Union[_round_pb2.HopStatement, _Mapping]] = ..., ending: _Optional[_Union[_round_pb2.Ending, _Mapping]] = ...) -> None: ...

class Complaint(_message.Message):
    __slots__ = ("descriptor", "silo", "receipt", "committed", "signature", "trail", "chain", "endings", "onion")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TRAIL_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    ENDINGS_FIELD_NUMBER: _ClassVar[int]
    ONION_FIELD_NUMBER: _ClassVar[int]
    descriptor: _round_pb2.SignedDescriptor
    silo: int
    receipt: _mix_pb2.Receipt
    committed: RoundCommitted
    signature: bytes
    trail: _containers.RepeatedScalarFieldContainer[bytes]
    chain: _containers.RepeatedCompositeFieldContainer[_round_pb2.HopStatement]
    endings: _containers.RepeatedCompositeFieldContainer[_round_pb2.Ending]
    onion: bytes
    def __init__(self, descriptor: _Optional[_Union[_round_pb2.SignedDescriptor, _Mapping]] = ..., silo: _Optional[int] = ..., receipt: _Optional[_Union[_mix_pb2.Receipt, _Mapping]] = ..., committed: _Optional[_Union[RoundCommitted, _Mapping]] = ..., signature: _Optional[bytes] = ..., trail: _Optional[_Iterable[bytes]] = ..., chain: _Optional[_Iterable[_Union[_round_pb2.HopStatement, _Mapping]]] = ..., endings: _Optional[_Iterable[_Union[_round_pb2.Ending, _Mapping]]] = ..., onion: _Optional[bytes] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
