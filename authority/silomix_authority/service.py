"""The authority on the network: the RPC edge of the desk."""

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

import grpc
from silomix_proto import authority_pb2, authority_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.certificates import common_name, parse_certificate
from silomix_protocol.tls import ServerContext

from silomix_authority.desk import Desk
from silomix_authority.errors import Refused

_FRESH = timedelta(seconds=1)  # how long a signed list is given out again: signing costs more

Result = TypeVar("Result")


class AuthorityService(authority_pb2_grpc.AuthorityServicer):
    def __init__(self, desk: Desk, clock: Callable[[], datetime]) -> None:
        self._desk, self._clock = desk, clock
        self._list: tuple[datetime, bytes] | None = None

    async def Join(  # noqa: N802
        self, request: authority_pb2.JoinRequest, context: ServerContext
    ) -> authority_pb2.Membership:
        answer = await _answered(context, lambda: self._desk.join(request, self._clock()))
        logs.event("party_joined", party=common_name(parse_certificate(answer.certificate)))
        return answer

    async def Renew(  # noqa: N802
        self, request: authority_pb2.RenewRequest, context: ServerContext
    ) -> authority_pb2.Membership:
        answer = await _answered(context, lambda: self._desk.renew(request, self._clock()))
        logs.event("certificate_renewed", party=request.name)
        return answer

    async def List(  # noqa: N802
        self, _request: authority_pb2.ListRequest, context: ServerContext
    ) -> authority_pb2.RevocationList:
        return await _answered(context, self._current_list)

    def _current_list(self) -> authority_pb2.RevocationList:
        now = self._clock()
        if self._list is None or not timedelta() <= now - self._list[0] < _FRESH:
            self._list = now, self._desk.revocation_list(now)
        return authority_pb2.RevocationList(list=self._list[1])


async def _answered(context: ServerContext, decide: Callable[[], Result]) -> Result:
    """What was decided; our own refusals go back with their sentence, anything else without."""
    try:
        return decide()
    except Refused as refusal:
        logs.warning("request_refused", kind=type(refusal).__name__, reason=refusal)
        code, reason = grpc.StatusCode.PERMISSION_DENIED, str(refusal)
    except (sqlite3.Error, OSError) as error:
        logs.warning("register_unusable", reason=error)
        code, reason = grpc.StatusCode.UNAVAILABLE, "the authority cannot use its register"
    except Exception as error:
        logs.warning("request_failed", error=type(error).__name__)
        code, reason = grpc.StatusCode.INTERNAL, "internal error"
    await context.abort(code, reason)
    raise AssertionError("abort returned")
