"""Tokens: the server counts distinct enrolled senders without learning who they are.

A silo gets one token for every round, in a form that the server cannot recognize when it comes
back inside a report: the output of a verifiable oblivious pseudorandom function (RFC 9497, mode
VOPRF).  Each round has a key of its own, which the round's descriptor names: a token of another
round is worthless, and a server that gave silos different keys to tell them apart would have to
show them different descriptors.  This is the interface; `ristretto` implements it.
"""

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from silomix_core.study.study import Study, StudyId

NONCE_BYTES = 32
TOKEN_BYTES = NONCE_BYTES + 64  # nonce ‖ output
COIN_BYTES = NONCE_BYTES + 64  # nonce ‖ what becomes the blinding scalar


def token_bytes(study: Study) -> int:
    """The length of the token in front of a report; 0 in a study without tokens."""
    return TOKEN_BYTES if study.batching.tokens else 0


def payload_bytes(study: Study, report_bytes: int) -> int:
    """The length of what is sealed: a token, where the study has tokens, and the report."""
    return token_bytes(study) + report_bytes


class RefusedToken(ValueError):
    """What should be a token, a blinded element, an evaluation or a proof is not one."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a silo puts in front of its report; worthless once it was used."""

    nonce: bytes = field(repr=False)
    output: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        return self.nonce + self.output

    @classmethod
    def from_bytes(cls, encoded: bytes) -> "Token":
        if len(encoded) != TOKEN_BYTES:
            raise RefusedToken(f"a token has {TOKEN_BYTES} bytes")
        return cls(encoded[:NONCE_BYTES], encoded[NONCE_BYTES:])


class Issuer(Protocol):
    """The coordinator's side: it evaluates what silos blinded, and recognizes its own work."""

    def public_key(self, round_number: int) -> bytes: ...

    def evaluate(self, round_number: int, blinded: bytes) -> bytes:
        """The evaluated element and its proof; RefusedToken if `blinded` is no element."""

    def valid(self, round_number: int, token: Token) -> bool: ...


class BlindedToken(Protocol):
    """The silo's side: a token that the coordinator has yet to evaluate."""

    @property
    def blinded(self) -> bytes: ...

    def finish(self, evaluated: bytes, public_key: bytes) -> Token:
        """The token, if the proof shows that this key made it; otherwise RefusedToken."""


def issuer(seed: bytes, study: StudyId) -> Issuer:
    """The issuer of a study; the 32 bytes of `seed` are its secret."""
    from silomix_protocol.rounds.ristretto import RistrettoIssuer

    return RistrettoIssuer(seed, study)


def blind(coins: bytes | None = None) -> BlindedToken:
    """A blinded nonce; nonce and blinding are made of these uniform bytes, or of fresh ones.

    Bytes that were used for another round or another token key would show that both requests come
    from one silo.
    """
    from silomix_protocol.rounds.ristretto import RistrettoToken

    return RistrettoToken(secrets.token_bytes(COIN_BYTES) if coins is None else coins)
