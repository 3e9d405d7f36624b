"""The round descriptor: what one attempt of a round is, signed by the coordinator, hashed by all.

D, the SHA-256 of its serialized bytes, is bound into every layer of every onion and under every
signature of the round.  Each party checks a descriptor against the study that its own operator
pinned; nothing in it can widen that study.  Whom a round asks is not the coordinator's choice: the
descriptor names the silos that the study prescribes, and a silo that is away does not report.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NewType

from google.protobuf.message import DecodeError
from silomix_core.study.study import Study, StudyId
from silomix_proto import round_pb2

from silomix_protocol.keys import ForgedSignature, SigningKey, verify

VERSION = 1
SUITE = "MLKEM768-X25519/HKDF-SHA256/AES-128-GCM"
MOST_ATTEMPTS = 8

RoundDigest = NewType("RoundDigest", bytes)  # D


class RefusedDescriptor(ValueError):
    """The descriptor does not belong to the study, or the study's coordinator did not sign it."""


@dataclass(frozen=True)
class Descriptor:
    """A descriptor that was checked against a study, with the bytes that it came in."""

    study: StudyId
    round: int
    attempt: int
    silos: tuple[str, ...]
    query: bytes
    server_key: bytes
    mix_keys: tuple[bytes, ...]
    token_key: bytes
    deadline_s: float
    minimum_batch: int
    encoded: bytes
    signature: bytes

    @cached_property
    def digest(self) -> RoundDigest:
        return RoundDigest(sha256(self.encoded).digest())

    def to_wire(self) -> round_pb2.SignedDescriptor:
        return round_pb2.SignedDescriptor(descriptor=self.encoded, signature=self.signature)


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """An attempt's keys: the server key's hash, the mixes' fingerprints, the public token key."""

    server: bytes
    mixes: tuple[bytes, ...]
    token: bytes = b""


def issue(
    study: Study,
    round_number: int,
    attempt: int,
    query: bytes,
    keys: AttemptKeys,
    sign_key: SigningKey,
) -> Descriptor:
    """The signed descriptor of an attempt; it names the silos that the study prescribes."""
    message = round_pb2.RoundDescriptor(
        version=VERSION,
        suite=SUITE,
        study=study.identity,
        round=round_number,
        attempt=attempt,
        dimension=study.task.dimension,
        minimum_batch=study.batching.minimum,
        deadline_ms=round(1000 * study.batching.deadline_s),
        silos=_bits(study, round_number),
        query=sha256(query).digest(),
        server_key=keys.server,
        mix_keys=keys.mixes,
        token_key=keys.token,
    )
    encoded = message.SerializeToString(deterministic=True)
    signed = round_pb2.SignedDescriptor(
        descriptor=encoded, signature=sign_key.sign("descriptor", encoded)
    )
    return check(signed, study)


def study_of(signed: round_pb2.SignedDescriptor) -> StudyId:
    """The study that a descriptor claims to belong to (nothing is verified yet)."""
    return StudyId(_parse(signed.descriptor).study)


def check(signed: round_pb2.SignedDescriptor, study: Study) -> Descriptor:
    """The descriptor, if the coordinator signed it and every field agrees with the study."""
    try:
        verify(study.server.sign_key, signed.signature, "descriptor", signed.descriptor)
    except ForgedSignature as error:
        raise RefusedDescriptor(str(error)) from error
    message = _parse(signed.descriptor)
    message.DiscardUnknownFields()  # so an undefined field changes the encoding: refused
    in_study = 1 <= message.round <= study.rounds
    expected = {
        "encoding": message.SerializeToString(deterministic=True) == signed.descriptor,
        "version": message.version == VERSION,
        "suite": message.suite == SUITE,
        "study": message.study == study.identity,
        "round": in_study,
        "attempt": 1 <= message.attempt <= MOST_ATTEMPTS,
        "dimension": message.dimension == study.task.dimension,
        "minimum_batch": message.minimum_batch == study.batching.minimum,
        "deadline_ms": message.deadline_ms == round(1000 * study.batching.deadline_s),
        "silos": in_study and message.silos == _bits(study, message.round),
        "query": len(message.query) == 32,
        "server_key": len(message.server_key) == 32,
        "mix_keys": [len(key) for key in message.mix_keys] == [32] * len(study.mixes),
        "token_key": len(message.token_key) == (32 if study.batching.tokens else 0),
    }
    wrong = [name for name, agrees in expected.items() if not agrees]
    if wrong:
        raise RefusedDescriptor(f"the descriptor disagrees with the study: {', '.join(wrong)}")
    return Descriptor(
        study=study.identity,
        round=message.round,
        attempt=message.attempt,
        silos=study.asked(message.round),
        query=message.query,
        server_key=message.server_key,
        mix_keys=tuple(message.mix_keys),
        token_key=message.token_key,
        deadline_s=study.batching.deadline_s,
        minimum_batch=message.minimum_batch,
        encoded=signed.descriptor,
        signature=signed.signature,
    )


def _parse(encoded: bytes) -> round_pb2.RoundDescriptor:
    try:
        return round_pb2.RoundDescriptor.FromString(encoded)
    except DecodeError as error:
        raise RefusedDescriptor("not a round descriptor") from error


def _bits(study: Study, round_number: int) -> bytes:
    """The silos that a round of the study asks, as bits over the roster."""
    bits = sum(1 << study.places[name] for name in study.asked(round_number))
    return bits.to_bytes((len(study.silos) + 7) // 8, "little")
