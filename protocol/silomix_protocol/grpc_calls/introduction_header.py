"""Where an introduction stands in a call: one piece of metadata, read before it is believed.

Who may come in is decided by introduction.py, who is revoked by revocation.py; both read it here.
"""

from typing import Any

from google.protobuf.message import DecodeError
from silomix_proto import introduction_pb2

HEADER = "silomix-introduction-bin"


class UnreadableIntroduction(ValueError):
    """The introduction in a call's metadata cannot be read."""


def introduction_of(
    context: Any,
) -> tuple[introduction_pb2.Signed, introduction_pb2.Introduction] | None:
    """What the call's introduction says, unverified, with its signature; None without one."""
    header = dict(context.invocation_metadata() or ()).get(HEADER)
    if header is None:
        return None
    try:
        signed = introduction_pb2.Signed.FromString(
            header if isinstance(header, bytes) else header.encode("ascii")
        )
        return signed, introduction_pb2.Introduction.FromString(signed.content)
    except (DecodeError, UnicodeEncodeError) as error:
        raise UnreadableIntroduction("the introduction cannot be read") from error
