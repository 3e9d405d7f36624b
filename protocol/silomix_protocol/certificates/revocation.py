"""Revocation: the authority's list of who is no longer to be trusted, consulted at every call.

`revoked.crl` in a party's folder is replaced by whoever keeps the party enrolled (renewal.py);
every process of the party notices.  A list that is too old is as good as none: calls are refused
until there is a fresh one, since otherwise cutting off the authority would undo every revocation.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from silomix_protocol.certificates.certificates import (
    RefusedCertificate,
    RevocationList,
    common_name,
    dialled_name,
    names_of,
    parse_certificate,
    read_list,
    shown,
)
from silomix_protocol.grpc_calls.call_limits import RefusedCall
from silomix_protocol.grpc_calls.introduction_header import UnreadableIntroduction, introduction_of
from silomix_protocol.host import logs
from silomix_protocol.host.durable import write_durably

FILE = "revoked.crl"
_ON_THE_WAY = timedelta(minutes=1)  # an answer takes at most this long
_CLOCKS = timedelta(minutes=10)  # clocks differ by less, or the authority does not renew


class UnknownPeer(PermissionError):
    """The caller's certificate does not name a party that may make this call."""


class Revoked(UnknownPeer):
    """The caller's certificate, or its party, is no longer to be trusted."""


@dataclass(frozen=True, slots=True)
class CertifiedCaller:
    name: str
    serial: int
    expires: datetime
    names: frozenset[str] = frozenset()  # all DNS names in its certificate


class Revocations:
    """The revocation list in a party's folder, as it is now."""

    def __init__(self, folder: Path, authority: bytes) -> None:
        self._path, self._authority = folder / FILE, authority
        self._name = str(self._path)  # looked at for every message
        self._version: tuple[int, int] | None = None
        self._list: RevocationList | None = None

    @property
    def current(self) -> RevocationList | None:
        """The list in the folder; None if there is none, or one that somebody else signed."""
        try:
            found = os.stat(self._name)
        except OSError:
            self._version = self._list = None
            return None
        version = found.st_ino, found.st_mtime_ns
        if version != self._version:
            self._version, self._list = version, self._read()
        return self._list

    def _read(self) -> RevocationList | None:
        try:
            return read_list(self._path.read_bytes(), self._authority)
        except (OSError, RefusedCertificate) as error:
            logs.warning("revocation_list_unusable", file=self._path, reason=error)
            return None

    def take(self, content: bytes) -> RevocationList:
        """Keep a list that the authority gave; refuse one that cannot come after our own."""
        given, own = read_list(content, self._authority), self.current
        if own is not None and not _may_follow(own, given):
            another = ", with other parties" if given.number >= own.number else ""
            raise RefusedCertificate(
                f"the authority gave revocation list {given.number}, and {own.number} is known"
                f"{another}: was it put back to an earlier state?"
            )
        if own is not None and _is_later(own, given, datetime.now(UTC)):
            if own.issued - given.issued > _ON_THE_WAY:
                raise RefusedCertificate(
                    f"the authority gave the revocation list of {shown(given.issued)}, and that of "
                    f"{shown(own.issued)} is known: was its clock put back?"
                )
            return own  # two lists were asked for, and the earlier came later
        write_durably(self._path, content)
        return given

    def bars(self, name: str) -> bool:
        """Whether the authority revoked this party."""
        return (current := self.current) is not None and name in current.barred

    def dialled(self, name: str) -> str:
        """The DNS name that this party's certificates carry if they are not revoked."""
        current = self.current
        return dialled_name(name, 0 if current is None else current.changes[name])

    def check(self, caller: CertifiedCaller) -> None:
        """Raise Revoked if the list, whatever its age, bars this caller or its certificate."""
        current = self.current
        if current is None:
            return
        if caller.name in current.barred:
            raise Revoked(f"the authority revoked {caller.name}")
        if caller.serial in current.serials:
            raise Revoked("the authority revoked this certificate")
        # an authority that was put back to an earlier state may have forgotten a serial
        changes = current.changes[caller.name]
        if changes and dialled_name(caller.name, changes) not in caller.names:
            raise Revoked("this certificate is older than a revocation of its party")

    def admit(self, caller: CertifiedCaller, now: datetime) -> None:
        """Raise Revoked unless this caller may begin a call now."""
        self.check(caller)
        current = self.current
        if current is None or now >= current.expires:
            raise Revoked("no valid revocation list here: the authority cannot be reached")
        if now >= caller.expires:  # its connection was made before that
            raise Revoked("your certificate has expired: renew it")


def _may_follow(own: RevocationList, given: RevocationList) -> bool:
    """Return whether an authority that made `own` can have made `given` too: it forgets no
    revocation and no return of a party, and under one number certificates only expire."""
    if given.number < own.number or not own.changes <= given.changes:
        return False
    expired = given.serials <= own.serials or given.serials >= own.serials  # either is later
    return given.number > own.number or (given.barred == own.barred and expired)


def _is_later(own: RevocationList, given: RevocationList, now: datetime) -> bool:
    """Return whether `own` is the fresher of two lists that say the same: an old one, repeated by
    somebody on the way, would run out early.  An own list from the future is the mistake of a
    clock, and keeps no list out."""
    return given.number == own.number and given.issued < own.issued <= now + _CLOCKS


def caller_of(context: Any) -> CertifiedCaller | None:
    """The caller, by the certificate of the connection or of the introduction; None without one.

    An introduction is not verified here, but where its silo is let in (introduction.py).
    """
    certificates = list(context.auth_context().get("x509_pem_cert", []))
    if not certificates:
        introduction = introduction_of(context)
        if introduction is None:
            return None
        certificates = [introduction[1].certificate]
    return _named_in(certificates[0])


@lru_cache(maxsize=1024)  # one connection makes many calls
def _named_in(content: bytes) -> CertifiedCaller:
    certificate = parse_certificate(content)
    return CertifiedCaller(
        common_name(certificate),
        certificate.serial_number,
        certificate.not_valid_after_utc,
        names_of(certificate),
    )


class Guard(grpc.aio.ServerInterceptor):
    """Lets no revoked caller begin a call, and ends the calls of a caller revoked meanwhile."""

    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        serve = handler.unary_unary or handler.stream_unary
        if serve is not None:
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            guarded: Any = self._answering(serve, handler.request_streaming)
        else:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            serve = handler.stream_stream or handler.unary_stream
            guarded = self._streaming(serve, handler.request_streaming)
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _answering(self, serve: Callable[..., Awaitable[Any]], takes_stream: bool) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            caller = self._admit(context)
            if takes_stream:
                request = _Checked(request, caller, self._revocations)
            return await serve(request, context)

        return guarded

    def _streaming(self, serve: Callable[..., Any], takes_stream: bool) -> Any:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = self._admit(context)
            if takes_stream:
                request = _Checked(request, caller, self._revocations)
            async with aclosing(serve(request, context)) as answers:
                async for answer in answers:
                    self._check(caller)
                    yield answer

        return guarded

    def _admit(self, context: Any) -> CertifiedCaller | None:
        try:
            caller = caller_of(context)
            if caller is not None:
                self._revocations.admit(caller, datetime.now(UTC))
        except (Revoked, RefusedCertificate, UnreadableIntroduction) as refusal:
            raise _refused(refusal) from refusal
        return caller

    def _check(self, caller: CertifiedCaller | None) -> None:
        try:
            if caller is not None:
                self._revocations.check(caller)
        except Revoked as refusal:
            raise _refused(refusal) from refusal


class _Checked:
    """The messages of a caller for as long as it is not revoked; no message is held on to."""

    def __init__(
        self, messages: AsyncIterator[Any], caller: CertifiedCaller | None, revocations: Revocations
    ) -> None:
        self._messages, self._caller, self._revocations = messages, caller, revocations

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        message = await anext(self._messages)
        if self._caller is not None:
            self._revocations.check(self._caller)
        return message


def _refused(refusal: Exception) -> RefusedCall:
    logs.warning("caller_refused", reason=refusal)
    return RefusedCall(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
