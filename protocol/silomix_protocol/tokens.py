"""Tokens: the server counts distinct enrolled senders without learning who they are.

A silo gets one token for every round, in a form that the server cannot recognize when it comes
back inside a report: an oblivious pseudorandom function that can be verified (RFC 9497, mode
VOPRF).  Each round has a key of its own, which the round's descriptor names: a token of another
round is worthless, and a server that gave silos different keys to tell them apart would have to
show them different descriptors.  This is the interface; `ristretto` is what stands behind it.
"""

from dataclasses import dataclass, field
from typing import Protocol

from silomix_core.study import Study, StudyId

TOKEN_BYTES = 32 + 64  # nonce ‖ output


def token_bytes(study: Study) -> int:
    """Length of the token in front of a report; 0 in a study without tokens."""
    return TOKEN_BYTES if study.batching.tokens else 0


def payload_bytes(study: Study, report_bytes: int) -> int:
    """Length of what is sealed: a token, where the study has them, and the report."""
    return token_bytes(study) + report_bytes


class RefusedToken(ValueError):
    """A blinded element, an evaluation or a proof that is not one."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a silo puts into its report; worthless when it was used."""

    nonce: bytes = field(repr=False)
    output: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        return self.nonce + self.output

    @classmethod
    def from_bytes(cls, encoded: bytes) -> "Token":
        if len(encoded) != TOKEN_BYTES:
            raise RefusedToken(f"a token has {TOKEN_BYTES} bytes")
        return cls(encoded[:32], encoded[32:])


class Issuer(Protocol):
    """The coordinator's side: it evaluates what silos blinded, and knows its own work again."""

    def public_key(self, round_number: int) -> bytes: ...

    def evaluate(self, round_number: int, blinded: bytes) -> bytes:
        """Evaluated element and proof, or RefusedToken."""

    def valid(self, round_number: int, token: Token) -> bool: ...


class BlindedToken(Protocol):
    """The silo's side of a token on its way."""

    @property
    def blinded(self) -> bytes: ...

    def finish(self, evaluated: bytes, public_key: bytes) -> Token:
        """The token, if the proof shows that this key made it; otherwise RefusedToken."""


def issuer(seed: bytes, study: StudyId) -> Issuer:
    """The issuer of a study; the 32 bytes of `seed` are its secret."""
    from silomix_protocol.ristretto import RistrettoIssuer

    return RistrettoIssuer(seed, study)


def blind() -> BlindedToken:
    """A fresh nonce, blinded."""
    from silomix_protocol.ristretto import RistrettoToken

    return RistrettoToken()
