from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActivateNodeRequest(_message.Message):
    __slots__ = ("public_key", "heartbeat_interval")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    heartbeat_interval: float
    def __init__(self, public_key: _Optional[bytes] = ..., heartbeat_interval: _Optional[float] = ...) -> None: ...

class ActivateNodeResponse(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class DeactivateNodeRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class DeactivateNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class SendNodeHeartbeatRequest(_message.Message):
    __slots__ = ("node", "heartbeat_interval")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    node: Node
    heartbeat_interval: float
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., heartbeat_interval: _Optional[float] = ...) -> None: ...

class SendNodeHeartbeatResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Message(_message.Message):
    __slots__ = ("metadata", "content")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    metadata: Metadata
    content: RecordDict
    def __init__(self, metadata: _Optional[_Union[Metadata, _Mapping]] = ..., content: _Optional[_Union[RecordDict, _Mapping]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "ttl", "message_type", "created_at", "src_task_id", "dst_task_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SRC_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DST_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SRC_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DST_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    message_id: str
    src_node_id: int
    dst_node_id: int
    reply_to_message_id: str
    group_id: str
    ttl: float
    message_type: str
    created_at: float
    src_task_id: int
    dst_task_id: int
    def __init__(self, run_id: _Optional[int] = ..., message_id: _Optional[str] = ..., src_node_id: _Optional[int] = ..., dst_node_id: _Optional[int] = ..., reply_to_message_id: _Optional[str] = ..., group_id: _Optional[str] = ..., ttl: _Optional[float] = ..., message_type: _Optional[str] = ..., created_at: _Optional[float] = ..., src_task_id: _Optional[int] = ..., dst_task_id: _Optional[int] = ...) -> None: ...

class RecordDict(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigRecord(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigRecordValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigRecordValue, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ConfigRecord.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[ConfigRecord.Item, _Mapping]]] = ...) -> None: ...

class ConfigRecordValue(_message.Message):
    __slots__ = ("string",)
    STRING_FIELD_NUMBER: _ClassVar[int]
    string: str
    def __init__(self, string: _Optional[str] = ...) -> None: ...

class ObjectTree(_message.Message):
    __slots__ = ("object_id", "children")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    children: _containers.RepeatedCompositeFieldContainer[ObjectTree]
    def __init__(self, object_id: _Optional[str] = ..., children: _Optional[_Iterable[_Union[ObjectTree, _Mapping]]] = ...) -> None: ...

class PullMessagesRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class PullMessagesResponse(_message.Message):
    __slots__ = ("messages_list",)
    MESSAGES_LIST_FIELD_NUMBER: _ClassVar[int]
    messages_list: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages_list: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class PullObjectRequest(_message.Message):
    __slots__ = ("node", "run_id", "object_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    node: Node
    run_id: int
    object_id: str
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., run_id: _Optional[int] = ..., object_id: _Optional[str] = ...) -> None: ...

class PullObjectResponse(_message.Message):
    __slots__ = ("object_found", "object_available", "object_content")
    OBJECT_FOUND_FIELD_NUMBER: _ClassVar[int]
    OBJECT_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_CONTENT_FIELD_NUMBER: _ClassVar[int]
    object_found: bool
    object_available: bool
    object_content: bytes
    def __init__(self, object_found: bool = ..., object_available: bool = ..., object_content: _Optional[bytes] = ...) -> None: ...

class ConfirmMessageReceivedRequest(_message.Message):
    __slots__ = ("node", "run_id", "message_object_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    node: Node
    run_id: int
    message_object_id: str
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., run_id: _Optional[int] = ..., message_object_id: _Optional[str] = ...) -> None: ...

class ConfirmMessageReceivedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PushMessagesRequest(_message.Message):
    __slots__ = ("node", "messages_list", "message_object_trees", "clientapp_runtime_list")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_LIST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_OBJECT_TREES_FIELD_NUMBER: _ClassVar[int]
    CLIENTAPP_RUNTIME_LIST_FIELD_NUMBER: _ClassVar[int]
    node: Node
    messages_list: _containers.RepeatedCompositeFieldContainer[Message]
    message_object_trees: _containers.RepeatedCompositeFieldContainer[ObjectTree]
    clientapp_runtime_list: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., messages_list: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., message_object_trees: _Optional[_Iterable[_Union[ObjectTree, _Mapping]]] = ..., clientapp_runtime_list: _Optional[_Iterable[float]] = ...) -> None: ...

class PushMessagesResponse(_message.Message):
    __slots__ = ("objects_to_push", "session_id")
    OBJECTS_TO_PUSH_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    objects_to_push: _containers.RepeatedScalarFieldContainer[str]
    session_id: str
    def __init__(self, objects_to_push: _Optional[_Iterable[str]] = ..., session_id: _Optional[str] = ...) -> None: ...

class PushObjectRequest(_message.Message):
    __slots__ = ("node", "run_id", "object_id", "object_content", "session_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_CONTENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    node: Node
    run_id: int
    object_id: str
    object_content: bytes
    session_id: str
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., run_id: _Optional[int] = ..., object_id: _Optional[str] = ..., object_content: _Optional[bytes] = ..., session_id: _Optional[str] = ...) -> None: ...

class PushObjectResponse(_message.Message):
    __slots__ = ("stored",)
    STORED_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    def __init__(self, stored: bool = ...) -> None: ...
