"""Descriptors for tests of parts that never look at a signature."""

from silomix_core.study.study import StudyId
from silomix_protocol.rounds.descriptor import Descriptor


def plain_descriptor(
    round_number: int = 1,
    attempt: int = 1,
    *,
    query: bytes = b"query",
    study: bytes = b"s" * 32,
    silos: tuple[str, ...] = ("silo-1", "silo-2", "silo-3", "silo-4"),
    minimum: int = 2,
) -> Descriptor:
    """One of a study that exists nowhere; another query makes another descriptor."""
    return Descriptor(
        study=StudyId(study),
        round=round_number,
        attempt=attempt,
        silos=silos,
        query=query,
        server_key=bytes(32),
        mix_keys=(bytes(32),),
        token_key=b"",
        deadline_s=5.0,
        minimum_batch=minimum,
        encoded=b"%b %d %d %b" % (study, round_number, attempt, query),
        signature=b"signature",
    )
