"""What a test of submission sends, and what it looks for at the mixes."""

from hashlib import sha256

from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.rounds.onion import Onion

from support.mixes import PlayedRound, sealed_reports, state_of, submission

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
Frames = list[mix_pb2.SubmitFrame]
Counts = tuple[int, int, int]


def gated(*onions: Onion) -> set[bytes]:
    """Digests of what must be left of these onions after the last mix."""
    return {onion.trail[-1] for onion in onions}


def digests(reports: tuple[bytes, ...]) -> set[bytes]:
    assert len(set(reports)) == len(reports)
    return {sha256(report).digest() for report in reports}


def counts(statement: round_pb2.HopStatement) -> Counts:
    return statement.received, statement.forwarded, statement.dropped


def bodies(made: Consortium, index: int = 0) -> dict[str, int]:
    """Files in the mix's folder of batches, and their lengths."""
    folder = state_of(made, index) / "batches"
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def of_silo_1(played: PlayedRound, chunk_bytes: int | None = None) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion, chunk_bytes=chunk_bytes)


def signed_by_another_silo(played: PlayedRound) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion, signed_by="silo-2")
