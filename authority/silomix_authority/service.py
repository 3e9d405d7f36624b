"""The authority on the network: the RPC edge of the desk."""

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

import grpc
from silomix_proto import authority_pb2, authority_pb2_grpc
from silomix_protocol.certificates.certificates import common_name, parse_certificate
from silomix_protocol.connections.tls import ServerContext
from silomix_protocol.grpc_calls.call_limits import RefusedCall
from silomix_protocol.host import logs

from silomix_authority.desk import Desk
from silomix_authority.errors import NotGranted

_FRESH = timedelta(seconds=1)  # how long a signed list is given out again: signing costs more

Result = TypeVar("Result")


class AuthorityService(authority_pb2_grpc.AuthorityServicer):
    def __init__(self, desk: Desk, clock: Callable[[], datetime]) -> None:
        self._desk, self._clock = desk, clock
        self._list: tuple[datetime, bytes] | None = None

    async def Join(  # noqa: N802
        self, request: authority_pb2.JoinRequest, _context: ServerContext
    ) -> authority_pb2.Membership:
        answer = _answered(lambda: self._desk.join(request, self._clock()))
        logs.paced("party_joined", party=common_name(parse_certificate(answer.certificate)))
        return answer

    async def Renew(  # noqa: N802
        self, request: authority_pb2.RenewRequest, _context: ServerContext
    ) -> authority_pb2.Membership:
        answer = _answered(lambda: self._desk.renew(request, self._clock()))
        logs.paced("certificate_renewed", party=request.name)
        return answer

    async def List(  # noqa: N802
        self, request: authority_pb2.ListRequest, _context: ServerContext
    ) -> authority_pb2.RevocationList:
        return _answered(lambda: self._current_list(request))

    def _current_list(self, request: authority_pb2.ListRequest) -> authority_pb2.RevocationList:
        now = self._clock()
        if self._list is None or not timedelta() <= now - self._list[0] < _FRESH:
            self._list = now, self._desk.revocation_list(now)
        earlier = self._desk.witnessed(request.name, request.height)
        return authority_pb2.RevocationList(
            list=self._list[1], height=None if earlier is None else earlier.to_wire()
        )


def _answered(decide: Callable[[], Result]) -> Result:
    """The decision; our own refusals go back with their sentence, other errors without."""
    try:
        return decide()
    except NotGranted as refusal:
        logs.warning("request_refused", kind=type(refusal).__name__, reason=refusal)
        code, reason = grpc.StatusCode.PERMISSION_DENIED, str(refusal)
    except (sqlite3.Error, OSError) as error:
        logs.warning("register_unusable", reason=error)
        code, reason = grpc.StatusCode.UNAVAILABLE, "the authority cannot use its register"
    except Exception as error:
        logs.warning("request_failed", error=type(error).__name__)
        code, reason = grpc.StatusCode.INTERNAL, "internal error"
    raise RefusedCall(code, reason)
