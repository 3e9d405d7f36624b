"""What a mix tells about a void batch: its seal key, and where every report that left came from.

Nobody is given away by it: the release key is destroyed, so no report of the batch can be opened.
It shows who is to blame if one was dropped (`silomix_protocol.rounds.blame`).
"""

from collections.abc import Sequence

from silomix_proto import round_pb2
from silomix_protocol.rounds.statements import LARGEST_DISCLOSURE

from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.store import KeptReport


def disclosure(current: Round, reports: Sequence[KeptReport]) -> bytes:
    """The serialized Disclosure of a round; `reports` are those that the first mix took.

    Empty if a report may have been opened (without a gate, or if the mix cannot know), and if it
    does not fit into a message (beyond 7000 silos).
    """
    seal, release = current.seal_key, current.release_key
    if not current.batch.discloses or seal is None or release is None:
        return b""
    keys = round_pb2.RoundKeys(seal=seal.public, release=release.public)
    told = round_pb2.Disclosure(keys=keys, seal=seal.raw)
    if current.hop:
        told.origins.extend(current.sequence)
    else:
        _tell_senders(told, current, reports)
    encoded: bytes = told.SerializeToString(deterministic=True)
    return encoded if len(encoded) <= LARGEST_DISCLOSURE else b""


def _tell_senders(
    told: round_pb2.Disclosure, current: Round, reports: Sequence[KeptReport]
) -> None:
    """Add who sent what, in an order that tells nothing more: by the digests of the reports."""
    places = current.study.places
    ordered = sorted(reports, key=lambda kept: (kept.onion, places[kept.silo]))
    told.senders.extend(
        round_pb2.Sender(silo=places[kept.silo], report=kept.onion, signature=kept.signature)
        for kept in ordered
    )
    by_slot = {kept.slot: place for place, kept in enumerate(ordered)}
    told.origins.extend(by_slot[slot] for slot in current.sequence)
