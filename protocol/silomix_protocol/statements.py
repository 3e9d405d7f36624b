"""What parties sign about a round: receipts, what each mix did, confirmations, abandonments.

Each is made by one function and checked by another, against keys that the study file pins.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from silomix_core.study import Mix, Silo, Study
from silomix_proto import channel_pb2, mix_pb2, round_pb2

from silomix_protocol.descriptor import Descriptor, RoundDigest
from silomix_protocol.keys import ForgedSignature, SigningKey, number, verify

DIGEST_BYTES = 32
_LONGEST_REASON = 200  # characters


class BrokenChain(ValueError):
    """Statements of mixes that do not fit together, or not to the round."""


# Receipts: the first mix has a silo's report ------------------------------------------------------


def sign_receipt(
    digest: RoundDigest, place: int, report: bytes, key: SigningKey
) -> mix_pb2.Receipt:
    """The first mix's word that it has the report of the silo at `place` of the roster."""
    return mix_pb2.Receipt(
        digest=digest,
        report=report,
        status=mix_pb2.Receipt.ACCEPTED,
        signature=key.sign("receipt", digest, number(place), report),
    )


def check_receipt(
    receipt: mix_pb2.Receipt, digest: RoundDigest, place: int, report: bytes, study: Study
) -> None:
    signed = digest, number(place), report
    verify(study.mixes[0].sign_key, receipt.signature, "receipt", *signed)


# The chain: what every mix did to the batch -------------------------------------------------------


def sign_hop(
    digest: RoundDigest, statement: round_pb2.HopStatement, key: SigningKey
) -> round_pb2.HopStatement:
    """The statement with its signature."""
    statement.signature = key.sign("batch", *_hop_parts(digest, statement))
    return statement


def input_of(onions: Iterable[bytes]) -> bytes:
    """What the first mix says came in: in an order that tells nothing."""
    return sha256(b"".join(sorted(onions))).digest()


def check_chain(
    chain: Sequence[round_pb2.HopStatement], descriptor: Descriptor, study: Study, hops: int
) -> None:
    """Raise unless these are the statements of the first `hops` mixes, and they fit together."""
    if len(chain) != hops:
        raise BrokenChain(f"{hops} statements are needed, there are {len(chain)}")
    for hop, statement in enumerate(chain):
        mix = study.mixes[hop]
        if statement.hop != hop:
            raise BrokenChain("statements are out of order")
        parts = _hop_parts(descriptor.digest, statement)
        verify(mix.sign_key, statement.signature, "batch", *parts)
        _check_counts(statement, descriptor, mix.name)
        if hop and statement.input != sha256(chain[hop - 1].output).digest():
            raise BrokenChain(f"{mix.name} received another batch than its predecessor forwarded")
        if hop and statement.received != chain[hop - 1].forwarded:
            raise BrokenChain(f"{mix.name} counts other reports than its predecessor forwarded")


def _check_counts(statement: round_pb2.HopStatement, descriptor: Descriptor, mix_name: str) -> None:
    fits = (
        statement.received <= len(descriptor.silos)
        and statement.received == statement.forwarded + statement.dropped
        and len(statement.output) == DIGEST_BYTES * statement.forwarded
        and len(set(digests(statement.output))) == statement.forwarded
        and statement.forwarded >= descriptor.minimum_batch
    )
    if statement.aborted:
        fits = not statement.forwarded and not statement.output
        fits = fits and len(statement.aborted) <= _LONGEST_REASON
    if not fits:
        raise BrokenChain(f"the counts of {mix_name} do not add up")


def digests(joined: bytes) -> list[bytes]:
    """The digests of a list."""
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]


def _hop_parts(digest: RoundDigest, statement: round_pb2.HopStatement) -> tuple[bytes, ...]:
    counts = statement.hop, statement.received, statement.forwarded, statement.dropped
    return (
        digest,
        *map(number, counts),
        statement.input,
        sha256(statement.output).digest(),
        statement.aborted.encode("utf-8"),
    )


# Committed lists and confirmations ----------------------------------------------------------------


def sign_commitment(digest: RoundDigest, list_hash: bytes, key: SigningKey) -> bytes:
    """A mix's word that it stands by the list with this hash, and by no other of D."""
    return key.sign("commitment", digest, list_hash)


def check_commitment(signature: bytes, digest: RoundDigest, list_hash: bytes, mix: Mix) -> None:
    verify(mix.sign_key, signature, "commitment", digest, list_hash)


def check_committed(committed: channel_pb2.RoundCommitted, study: Study) -> None:
    """Raise unless every mix stands by this list of digests."""
    if len(committed.list) % DIGEST_BYTES:
        raise BrokenChain("a committed list is made of digests")
    if len(committed.signatures) != len(study.mixes):
        raise BrokenChain("a committed list has a signature of every mix")
    list_hash = sha256(committed.list).digest()
    for mix, signature in zip(study.mixes, committed.signatures, strict=True):
        check_commitment(signature, RoundDigest(committed.digest), list_hash, mix)


def sign_confirmation(
    digest: RoundDigest, joined: bytes, place: int, key: SigningKey
) -> round_pb2.Confirmation:
    """What the silo at `place` of the roster says when its report is in the list."""
    signature = key.sign("confirmation", digest, sha256(joined).digest())
    return round_pb2.Confirmation(silo=place, signature=signature)


def check_confirmation(
    confirmation: round_pb2.Confirmation, digest: RoundDigest, list_hash: bytes, study: Study
) -> str:
    """The silo that confirmed the list with this hash; ForgedSignature if it is none."""
    if confirmation.silo >= len(study.silos):
        raise ForgedSignature("no silo of the study has that place")
    silo = study.silos[confirmation.silo]
    verify(silo.sign_key, confirmation.signature, "confirmation", digest, list_hash)
    return silo.name


# Requests for tokens ------------------------------------------------------------------------------


def sign_token_request(
    first_round: int, blinded: Sequence[bytes], study: Study, key: SigningKey
) -> channel_pb2.TokenRequest:
    """A silo's own request: whoever has its certificate alone gets none of its tokens."""
    signature = key.sign("tokens", study.identity, number(first_round), *blinded)
    return channel_pb2.TokenRequest(first_round=first_round, blinded=blinded, signature=signature)


def check_token_request(request: channel_pb2.TokenRequest, study: Study, silo: Silo) -> None:
    parts = number(request.first_round), *request.blinded
    verify(silo.sign_key, request.signature, "tokens", study.identity, *parts)


# Abandonments: nothing was forwarded, nothing will be ---------------------------------------------


def sign_abandonment(digest: RoundDigest, reason: str, key: SigningKey) -> round_pb2.Abandonment:
    reason = reason[:_LONGEST_REASON]
    signature = key.sign("abandonment", digest, reason.encode("utf-8"))
    return round_pb2.Abandonment(digest=digest, reason=reason, signature=signature)


def check_abandoned(
    statements: Iterable[round_pb2.Abandonment], digest: RoundDigest, study: Study
) -> None:
    """Raise unless every mix of the study is among those who abandoned `digest`, in order."""
    mine = [each for each in statements if each.digest == digest]
    if len(mine) != len(study.mixes):
        raise BrokenChain("not every mix said that it abandoned the earlier attempt")
    for mix, each in zip(study.mixes, mine, strict=True):
        reason = each.reason.encode("utf-8")
        verify(mix.sign_key, each.signature, "abandonment", digest, reason)
