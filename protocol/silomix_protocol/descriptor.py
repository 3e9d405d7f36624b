"""The round descriptor: what one round is, signed by the coordinator, hashed by everybody.

D, the SHA-256 of its serialized bytes, is bound into every layer of every onion and under every
signature of the round.  Each party checks a descriptor against the study that its own operator
pinned; nothing in it can widen that study.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import NewType

from google.protobuf.message import DecodeError
from silomix_core.study import Study, StudyId
from silomix_proto import round_pb2

from silomix_protocol.keys import ForgedSignature, SigningKey, fingerprint, verify

VERSION = 1
SUITE = "MLKEM768-X25519/HKDF-SHA256/AES-128-GCM"

RoundDigest = NewType("RoundDigest", bytes)  # D


class RefusedDescriptor(ValueError):
    """A descriptor that does not belong to the study, or was not signed by its coordinator."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor that was checked against a study, with the bytes that it came in."""

    study: StudyId
    round: int
    silos: tuple[str, ...]
    query: bytes
    deadline_s: float
    minimum_batch: int
    encoded: bytes
    signature: bytes

    @property
    def digest(self) -> RoundDigest:
        return RoundDigest(sha256(self.encoded).digest())

    def to_wire(self) -> round_pb2.SignedDescriptor:
        return round_pb2.SignedDescriptor(descriptor=self.encoded, signature=self.signature)


def issue(
    study: Study, round_number: int, silos: tuple[str, ...], query: bytes, key: SigningKey
) -> Descriptor:
    """The signed descriptor of a round that waits for `silos` and asks `query`."""
    message = round_pb2.RoundDescriptor(
        version=VERSION,
        suite=SUITE,
        study=study.identity,
        round=round_number,
        attempt=1,
        dimension=study.task.dimension,
        minimum_batch=study.batching.minimum,
        deadline_ms=round(1000 * study.batching.deadline_s),
        silos=sorted(silos),
        query=sha256(query).digest(),
        server_key=fingerprint(study.server.seal_key),
        mix_keys=[fingerprint(mix.seal_key) for mix in study.mixes],
    )
    encoded = message.SerializeToString(deterministic=True)
    signed = round_pb2.SignedDescriptor(
        descriptor=encoded, signature=key.sign("descriptor", encoded)
    )
    return check(signed, study)


def study_of(signed: round_pb2.SignedDescriptor) -> StudyId:
    """Which study a descriptor claims to belong to (nothing is verified yet)."""
    return StudyId(_parse(signed.descriptor).study)


def check(signed: round_pb2.SignedDescriptor, study: Study) -> Descriptor:
    """The descriptor, if the coordinator signed it and every field agrees with the study."""
    try:
        verify(study.server.sign_key, signed.signature, "descriptor", signed.descriptor)
    except ForgedSignature as error:
        raise RefusedDescriptor(str(error)) from error
    message = _parse(signed.descriptor)
    message.DiscardUnknownFields()  # then the encoding differs: what nobody defined is refused
    roster = {silo.name for silo in study.silos}
    expected = {
        "encoding": message.SerializeToString(deterministic=True) == signed.descriptor,
        "version": message.version == VERSION,
        "suite": message.suite == SUITE,
        "study": message.study == study.identity,
        "round": 1 <= message.round <= study.rounds,
        "attempt": message.attempt == 1,
        "dimension": message.dimension == study.task.dimension,
        "minimum_batch": message.minimum_batch == study.batching.minimum,
        "deadline_ms": message.deadline_ms == round(1000 * study.batching.deadline_s),
        "silos": list(message.silos) == sorted(set(message.silos)) and roster >= set(message.silos),
        "enough silos": len(message.silos) >= study.batching.minimum,
        "query": len(message.query) == 32,
        "server_key": message.server_key == fingerprint(study.server.seal_key),
        "mix_keys": list(message.mix_keys) == [fingerprint(mix.seal_key) for mix in study.mixes],
    }
    wrong = [name for name, agrees in expected.items() if not agrees]
    if wrong:
        raise RefusedDescriptor(f"the descriptor disagrees with the study: {', '.join(wrong)}")
    return Descriptor(
        study=study.identity,
        round=message.round,
        silos=tuple(message.silos),
        query=message.query,
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
