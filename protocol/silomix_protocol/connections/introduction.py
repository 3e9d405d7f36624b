"""A silo proves who it is by a signature, where its certificate does not get through.

A proxy that looks into TLS ends the silo's connection and begins another, without the silo's
certificate.  There the silo introduces itself in the call's metadata: signed with the key that the
study pins, for one listener and one study, with a nonce that is used once, the time, and its
certificate, which must be as good as if TLS had shown it: an expired one lets nobody in.  In the
round channel every message of either side is then signed too, in order, under that introduction, so
that the proxy can read, delay and break, but not change, add, repeat or leave out.  (Reports,
receipts and confirmations are signed anyway.)

A listener believes introductions only if its operator says so, at an address of its own.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from time import time

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID
from silomix_core.study.study import Study, StudyId
from silomix_proto import channel_pb2, introduction_pb2

from silomix_protocol.connections.tls import Identity, ServerContext, UnknownPeer, certified_name
from silomix_protocol.connections.version import check_user_agent, check_version, release
from silomix_protocol.grpc_calls.introduction_header import (
    HEADER,
    UnreadableIntroduction,
    introduction_of,
)
from silomix_protocol.keys import ForgedSignature, SigningKey, number, verify
from silomix_protocol.rounds.descriptor import VERSION
from silomix_protocol.rounds.heights import Height

TOLERANCE_S = 300.0  # by which clocks may differ
_NONCE_BYTES = 16
_MOST_REMEMBERED = 2_000  # nonces of one silo
_NAME = NameOID.COMMON_NAME
_SILO, _SERVER = "silo-frame", "channel-event"


@dataclass(slots=True)
class Speaker:
    """Signs what one side says in an introduced stream."""

    _purpose: str
    _stream: bytes
    _key: SigningKey
    _said: int = 0

    def signed(self, content: bytes) -> introduction_pb2.Signed:
        signature = self._key.sign(self._purpose, self._stream, number(self._said), content)
        self._said += 1
        return introduction_pb2.Signed(content=content, signature=signature)


@dataclass(slots=True)
class Listener:
    """Checks what the other side says in an introduced stream."""

    _purpose: str
    _stream: bytes
    _key: bytes
    _heard: int = 0

    def content(self, message: introduction_pb2.Signed) -> bytes:
        """The content of the next message; ForgedSignature if it is any other message."""
        parts = self._stream, number(self._heard), message.content
        verify(self._key, message.signature, self._purpose, *parts)
        self._heard += 1
        return message.content


@dataclass(frozen=True, slots=True)
class Introduced:
    """A silo's side of an introduced call: metadata, and the signer and checker of the stream."""

    metadata: tuple[tuple[str, bytes], ...]
    speaker: Speaker
    listener: Listener


def introduce(
    own: Identity, party: str, study: Study, sign_key: SigningKey, now: float | None = None
) -> Introduced:
    """Introduce a silo to `party` (a mix or the server of the study) for one call."""
    nonce = os.urandom(_NONCE_BYTES)
    content = introduction_pb2.Introduction(
        version=VERSION,
        release=release(),
        study=study.identity,
        silo=own.name,
        listener=party,
        nonce=nonce,
        time_ms=round(1000 * (time() if now is None else now)),
        certificate=own.shown,
    ).SerializeToString()
    signed = introduction_pb2.Signed(
        content=content, signature=sign_key.sign("introduction", content)
    )
    stream = sha256(content).digest()
    return Introduced(
        ((HEADER, signed.SerializeToString()),),
        Speaker(_SILO, stream, sign_key),
        Listener(_SERVER, stream, study.server.sign_key),
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller; if it introduced itself, with the stream and key to check its messages by."""

    name: str
    stream: bytes = b""  # SHA-256 of its introduction: no other caller's messages fit in
    sign_key: bytes = b""

    def frames(
        self, source: AsyncIterator[channel_pb2.SiloFrame]
    ) -> AsyncIterator[channel_pb2.SiloFrame]:
        """The caller's messages: as they come, or, if introduced, only signed and in order."""
        if not self.stream:
            return source
        return _checked(source, Listener(_SILO, self.stream, self.sign_key))

    def speaker(self, sign_key: SigningKey | None) -> Speaker | None:
        """The signer of what this caller is told, if it introduced itself."""
        return Speaker(_SERVER, self.stream, sign_key) if self.stream and sign_key else None


async def _checked(
    source: AsyncIterator[channel_pb2.SiloFrame], listener: Listener
) -> AsyncIterator[channel_pb2.SiloFrame]:
    async for frame in source:
        yield channel_pb2.SiloFrame.FromString(listener.content(frame.signed))


@dataclass(slots=True)
class Door:
    """Decides who may come in: whoever has a certificate, and silos that introduce themselves.

    Introductions count at `party` only, for `studies` only, and with a certificate of `authority`;
    none counts unless the listener's operator allows it.  Revoked callers do not get this far
    (revocation.py).
    """

    party: str = ""
    authority: bytes = b""
    studies: Iterable[Study] = ()
    now: Callable[[], float] = time
    _met: dict[str, dict[bytes, float]] = field(default_factory=dict)  # nonces, the oldest first

    def caller(self, context: ServerContext) -> Caller:
        """The caller; UnknownPeer if nobody vouches for it, WrongVersion if its version differs."""
        name = certified_name(context)
        if name is not None:
            metadata = dict(context.invocation_metadata() or ())
            check_user_agent(str(metadata.get("user-agent", "")))
            return Caller(name)
        try:
            introduction = introduction_of(context)
        except UnreadableIntroduction as error:
            raise UnknownPeer(str(error)) from error
        if introduction is None:
            raise UnknownPeer("you have neither a certificate nor an introduction")
        return self._introduced(*introduction)

    def _introduced(
        self, signed: introduction_pb2.Signed, said: introduction_pb2.Introduction
    ) -> Caller:
        check_version(said.version, said.release)
        key = self._key(StudyId(said.study), said.silo)
        try:
            verify(key, signed.signature, "introduction", signed.content)
        except ForgedSignature as error:
            raise UnknownPeer(str(error)) from error
        if said.listener != self.party:
            raise UnknownPeer(f"this is {self.party}, not {said.listener}")
        self._check_new(said)
        self._check_certificate(said)
        return Caller(said.silo, sha256(signed.content).digest(), key)

    def _key(self, study: StudyId, silo: str) -> bytes:
        """The silo's signing key: one in all studies that name it, as a name stands for a party."""
        enrolled = [(each.identity, each.silo(silo)) for each in self.studies]
        keys = {found.sign_key for _, found in enrolled if found is not None}
        if (study, None) in enrolled or study not in dict(enrolled):
            raise UnknownPeer("this study does not enrol you here, or takes no introductions")
        if len(keys) != 1:
            raise UnknownPeer("the studies here have different keys under your name")
        return keys.pop()

    def _check_certificate(self, said: introduction_pb2.Introduction) -> None:
        try:
            shown = x509.load_pem_x509_certificate(said.certificate)
            shown.verify_directly_issued_by(x509.load_pem_x509_certificate(self.authority))
            names = [each.value for each in shown.subject.get_attributes_for_oid(_NAME)]
        except (ValueError, TypeError, InvalidSignature) as error:
            raise UnknownPeer("your certificate is not one of the consortium's") from error
        if names != [said.silo]:
            raise UnknownPeer("your certificate is somebody else's")
        now = datetime.fromtimestamp(self.now(), UTC)
        if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
            raise UnknownPeer("your certificate has expired, or is not valid yet: renew it")

    def _check_new(self, said: introduction_pb2.Introduction) -> None:
        now = self.now()
        ahead = said.time_ms / 1000 - now
        if abs(ahead) > TOLERANCE_S:
            raise UnknownPeer(
                f"your clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} "
                f"that of {self.party}; set it by a time server"
            )
        met = self._met.setdefault(said.silo, {})
        while met and next(iter(met.values())) < now - 3 * TOLERANCE_S:
            del met[next(iter(met))]
        if len(said.nonce) != _NONCE_BYTES or said.nonce in met:
            raise UnknownPeer("this introduction was used before")
        if len(met) >= _MOST_REMEMBERED:
            raise UnknownPeer("too many introductions; try again in some minutes")
        met[said.nonce] = now


def welcome(height: Height | None = None) -> introduction_pb2.Welcome:
    """A party's answer to a greeting, with the height that it holds of the caller's ledger."""
    return introduction_pb2.Welcome(
        version=VERSION,
        release=release(),
        time_ms=round(1000 * time()),
        height=None if height is None else height.to_wire(),
    )
