"""A round request at a silo: what came over the round channel, once all of it was checked.

Descriptor, keys and statements come from the server; each is held against the study that the
silo's own operator approved, and against what the mixes signed.
"""

from dataclasses import dataclass
from hashlib import sha256

from silomix_core.study.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SEAL_PUBLIC_BYTES
from silomix_protocol.rounds.descriptor import MOST_ATTEMPTS, Descriptor, check
from silomix_protocol.rounds.round_keys import KeyBook

from silomix_client.errors import RefusedQuery


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """One attempt of a round: its query, the public keys to seal to, and who abandoned what."""

    descriptor: Descriptor
    query: bytes
    server_key: bytes
    mix_keys: tuple[round_pb2.RoundKeys, ...]
    abandoned: tuple[round_pb2.Abandonment, ...] = ()


def read_round_request(
    opened: channel_pb2.RoundOpened, query: bytes, study: Study, book: KeyBook
) -> RoundRequest:
    """Read a round request, or refuse it.

    The descriptor must hold and name these keys, and every mix must have vouched for its own.
    """
    most = MOST_ATTEMPTS * len(study.mixes)  # of statements; there are fewer keys
    if max(len(opened.lists), len(opened.abandoned), len(opened.mix_keys)) > most:
        raise RefusedQuery("the round comes with more keys and statements than mixes can give")
    descriptor = check(opened.descriptor, study)
    if descriptor.attempt == 1 and (opened.lists or opened.abandoned):
        raise RefusedQuery("a first attempt has no earlier one")
    if descriptor.attempt > 1:
        _add_lists(opened, descriptor, book)
    if sha256(opened.server_key).digest() != descriptor.server_key:
        raise RefusedQuery("the server's key is not the one that the descriptor names")
    if len(opened.server_key) != SEAL_PUBLIC_BYTES:
        raise RefusedQuery("the server's key is not a sealing key")
    mix_keys = list(opened.mix_keys)
    book.check(descriptor, mix_keys)
    return RoundRequest(
        descriptor=descriptor,
        query=query,
        server_key=opened.server_key,
        mix_keys=tuple(mix_keys),
        abandoned=tuple(opened.abandoned),
    )


def _add_lists(opened: channel_pb2.RoundOpened, descriptor: Descriptor, book: KeyBook) -> None:
    """Add the key lists that a later attempt brings, for this one round only."""
    for each in opened.lists:
        if (each.attempt, each.first_round, len(each.keys)) != (
            descriptor.attempt,
            descriptor.round,
            1,
        ):
            raise RefusedQuery("the key lists are not for this attempt")
    book.add(list(opened.lists))
