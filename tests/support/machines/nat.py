"""A hospital's router: everything may go out, behind one address; nothing that was not asked for
comes in.

Said to the kernel's nftables over netlink, because neither `nft` nor `iptables` is everywhere.
In the words of `nft`, for a router with the interfaces inside and outside:

    table ip silomix {
        chain input   { type filter hook input priority 0; policy drop; … }
        chain forward { type filter hook forward priority 0; policy drop;
                        iifname "inside" accept; ct state established,related accept; }
        chain leaving { type nat hook postrouting priority 100; oifname "outside" masquerade; }
    }
"""

import os
import socket
import struct

from support.machines.namespaces import Namespace

INSIDE, OUTSIDE = "inside", "outside"

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10  # nftables
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_ERROR = 2
_REQUEST, _ACKNOWLEDGE, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_IPV4 = 2
_INPUT, _FORWARD, _POSTROUTING = 1, 2, 4  # hooks
_DROP, _ACCEPT = 0, 1
_IIFNAME, _OIFNAME = 6, 7  # keys of meta
_VERDICT, _REGISTER = 0, 1
_ESTABLISHED_OR_RELATED = struct.pack("=I", 0b110)

_TABLE = "silomix"


def make_router(namespace: Namespace) -> None:
    """Let the namespace forward from `inside` to `outside`, and masquerade it."""
    from_inside = _named(_IIFNAME, INSIDE) + _verdict(_ACCEPT)
    answers = _answers() + _verdict(_ACCEPT)
    to_outside = _named(_OIFNAME, OUTSIDE) + _expression("masq", b"")
    messages = [
        (_NEW_TABLE, _text(1, _TABLE)),
        (_NEW_CHAIN, _chain("input", "filter", _INPUT, 0, _DROP)),
        (_NEW_CHAIN, _chain("forward", "filter", _FORWARD, 0, _DROP)),
        (_NEW_CHAIN, _chain("leaving", "nat", _POSTROUTING, 100, _ACCEPT)),
        *((_NEW_RULE, _rule(chain, from_inside)) for chain in ("input", "forward")),
        *((_NEW_RULE, _rule(chain, answers)) for chain in ("input", "forward")),
        (_NEW_RULE, _rule("leaving", to_outside)),
    ]
    with namespace.entered():
        _commit(messages)
    namespace.set("net/ipv4/ip_forward", "1")


def _commit(messages: list[tuple[int, bytes]]) -> None:
    """All messages as one transaction; OSError with the kernel's reason if it refuses one."""
    kind_of_new = _REQUEST | _ACKNOWLEDGE | _CREATE | _APPEND
    batch = _message(_BATCH_BEGIN, _REQUEST, 0, 0, _SUBSYSTEM)
    for number, (kind, attributes) in enumerate(messages, start=1):
        batch += _message(_SUBSYSTEM << 8 | kind, kind_of_new, number, _IPV4, 0, attributes)
    batch += _message(_BATCH_END, _REQUEST, len(messages) + 1, 0, _SUBSYSTEM)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(10.0)
        kernel.send(batch)
        acknowledged = 0
        while acknowledged < len(messages):
            answer = kernel.recv(65536)
            while answer:
                size, kind, _, number, _, code = struct.unpack_from("=IHHIIi", answer)
                if kind == _ERROR and code:
                    raise OSError(-code, f"nftables, message {number}: {os.strerror(-code)}")
                acknowledged += 1
                answer = answer[_aligned(size) :]


def _message(
    kind: int, flags: int, number: int, family: int, resource: int, attributes: bytes = b""
) -> bytes:
    content = struct.pack("!BBH", family, 0, resource) + attributes
    return struct.pack("=IHHII", 16 + len(content), kind, flags, number, 0) + content


def _chain(name: str, kind: str, hook: int, priority: int, policy: int) -> bytes:
    place = _attribute(4, _number(1, hook) + _number(2, priority), nested=True)
    return _text(1, _TABLE) + _text(3, name) + place + _number(5, policy) + _text(7, kind)


def _rule(chain: str, expressions: bytes) -> bytes:
    return _text(1, _TABLE) + _text(2, chain) + _attribute(4, expressions, nested=True)


def _named(key: int, interface: str) -> bytes:
    """Go on only for packets whose interface has this name."""
    name = interface.encode("ascii").ljust(16, b"\0")
    return _expression("meta", _number(1, _REGISTER) + _number(2, key)) + _compare(0, name)


def _answers() -> bytes:
    """Go on only for packets of connections that began inside."""
    mask = _value(4, _ESTABLISHED_OR_RELATED) + _value(5, bytes(4))
    registers = _number(1, _REGISTER) + _number(2, _REGISTER) + _number(3, 4)
    state = _expression("ct", _number(1, _REGISTER) + _number(2, 0))
    return state + _expression("bitwise", registers + mask) + _compare(1, bytes(4))


def _compare(operation: int, value: bytes) -> bytes:
    """0: equal, 1: not equal."""
    return _expression("cmp", _number(1, _REGISTER) + _number(2, operation) + _value(3, value))


def _verdict(code: int) -> bytes:
    verdict = _attribute(2, _number(1, code), nested=True)
    return _expression("immediate", _number(1, _VERDICT) + _attribute(2, verdict, nested=True))


def _expression(name: str, content: bytes) -> bytes:
    return _attribute(1, _text(1, name) + _attribute(2, content, nested=True), nested=True)


def _value(kind: int, value: bytes) -> bytes:
    return _attribute(kind, _attribute(1, value), nested=True)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode("ascii") + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("!I", number))


def _attribute(kind: int, content: bytes, *, nested: bool = False) -> bytes:
    header = struct.pack("=HH", 4 + len(content), kind | (0x8000 if nested else 0))
    return (header + content).ljust(_aligned(4 + len(content)), b"\0")


def _aligned(size: int) -> int:
    return -(-size // 4) * 4
