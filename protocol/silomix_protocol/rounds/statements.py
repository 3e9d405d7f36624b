"""What parties sign about a round: receipts, what each mix did, confirmations, how it ended.

Each is signed by one function and checked by another, against keys that the study file pins.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from silomix_core.study.study import Mix, Silo, Study
from silomix_proto import channel_pb2, mix_pb2, round_pb2

from silomix_protocol.keys import ForgedSignature, SigningKey, number, verify
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

DIGEST_BYTES = 32
_LONGEST_REASON = 200  # characters
_LARGEST_STATEMENT = 1200  # bytes of a mix's statement, beside its output
LARGEST_DISCLOSURE = 3 * 2**18  # bytes: one message has room for it and the mix's statement


class BrokenChain(ValueError):
    """The mixes' statements do not fit together, or do not fit the round."""


# Receipts: the first mix has a silo's report ------------------------------------------------------


def sign_receipt(
    digest: RoundDigest, place: int, report: bytes, key: SigningKey
) -> mix_pb2.Receipt:
    """The first mix's signed receipt for the report of the silo at `place` of the roster."""
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
    """Sign a mix's statement about a batch, and return it."""
    statement.signature = key.sign("batch", *_hop_parts(digest, statement))
    return statement


def input_of(onions: Iterable[bytes]) -> bytes:
    """The hash of what came in at the first mix, sorted: the order tells nothing."""
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
        _check_size(statement, mix, reason=statement.aborted, beside=len(statement.output))
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
    if not fits:
        raise BrokenChain(f"the counts of {mix_name} do not add up")


def _check_size(
    statement: round_pb2.HopStatement | round_pb2.Abandonment | round_pb2.Voided,
    mix: Mix,
    *,
    reason: str,
    beside: int = 0,
) -> None:
    """Raise if a statement is too long: those of all mixes go to every silo in one message.

    All its bytes count: fields that nobody knows and no signature covers are handed on, too.
    """
    if len(reason) > _LONGEST_REASON or statement.ByteSize() > _LARGEST_STATEMENT + beside:
        raise BrokenChain(f"{mix.name} states more than fits")


def digests(joined: bytes) -> list[bytes]:
    """The digests that a joined list consists of, in order."""
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
    """A mix's signature that it stands by the list with this hash, and by no other for D."""
    return key.sign("commitment", digest, list_hash)


def check_commitment(signature: bytes, digest: RoundDigest, list_hash: bytes, mix: Mix) -> None:
    verify(mix.sign_key, signature, "commitment", digest, list_hash)


def check_committed(committed: channel_pb2.RoundCommitted, study: Study) -> None:
    """Raise unless every mix signed that it stands by this committed list."""
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
    """The signed word of the silo at `place` of the roster that its report is in the list."""
    signature = key.sign("confirmation", digest, sha256(joined).digest())
    return round_pb2.Confirmation(silo=place, signature=signature)


def check_confirmation(
    confirmation: round_pb2.Confirmation, digest: RoundDigest, list_hash: bytes, study: Study
) -> str:
    """The name of the silo that confirmed the list with this hash; ForgedSignature if none did."""
    if confirmation.silo >= len(study.silos):
        raise ForgedSignature("no silo of the study has that place")
    silo = study.silos[confirmation.silo]
    verify(silo.sign_key, confirmation.signature, "confirmation", digest, list_hash)
    return silo.name


# Requests for tokens ------------------------------------------------------------------------------


def sign_token_request(
    first_round: int, blinded: Sequence[bytes], study: Study, key: SigningKey
) -> channel_pb2.TokenRequest:
    """Sign a silo's token request: whoever has only its certificate gets none of its tokens."""
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
    """Raise unless every mix of the study, in order, signed that it abandoned `digest`."""
    mine = [each for each in statements if each.digest == digest]
    if len(mine) != len(study.mixes):
        raise BrokenChain("not every mix said that it abandoned the earlier attempt")
    for mix, each in zip(study.mixes, mine, strict=True):
        check_abandonment(each, digest, mix)


def check_abandonment(abandoned: round_pb2.Abandonment, digest: RoundDigest, mix: Mix) -> None:
    _check_size(abandoned, mix, reason=abandoned.reason)
    reason = abandoned.reason.encode("utf-8")
    verify(mix.sign_key, abandoned.signature, "abandonment", digest, reason)


# Endings: a batch left, but nothing of it will ever be opened -------------------------------------


def sign_voided(
    digest: RoundDigest,
    reason: str,
    disclosure: bytes,
    key: SigningKey,
    *,
    uncertain: bool = False,
) -> round_pb2.Ending:
    """A mix's signed word that its release key for D is destroyed, with its disclosure, if any.

    `uncertain`: the mix cannot know whether it gave the key away before.
    """
    voided = round_pb2.Voided(
        digest=digest,
        reason=reason[:_LONGEST_REASON],
        disclosed=sha256(disclosure).digest() if disclosure else b"",
        uncertain=uncertain,
    )
    voided.signature = key.sign("void", *_void_parts(digest, voided))
    return round_pb2.Ending(voided=voided, disclosure=disclosure)


def _void_parts(digest: RoundDigest, voided: round_pb2.Voided) -> tuple[bytes, ...]:
    doubt = (b"uncertain",) if voided.uncertain else ()
    return digest, voided.reason.encode("utf-8"), voided.disclosed, *doubt


def check_ending(ending: round_pb2.Ending, digest: RoundDigest, mix: Mix) -> None:
    """Raise unless `mix` signed that nothing of D was forwarded, or that nothing will be opened."""
    kind = ending.WhichOneof("statement")
    if kind is None or getattr(ending, kind).digest != digest:
        raise BrokenChain(f"no statement of {mix.name} that the round is void")
    if kind == "abandoned":
        check_abandonment(ending.abandoned, digest, mix)
        return
    voided = ending.voided
    _check_size(voided, mix, reason=voided.reason)
    if ending.ByteSize() > LARGEST_DISCLOSURE + 2 * _LARGEST_STATEMENT:
        raise BrokenChain(f"{mix.name} discloses more than fits")
    verify(mix.sign_key, voided.signature, "void", *_void_parts(digest, voided))
    if ending.disclosure and sha256(ending.disclosure).digest() != voided.disclosed:
        raise BrokenChain(f"{mix.name} disclosed something else than it stated")


def is_ended(endings: Sequence[round_pb2.Ending], digest: RoundDigest, study: Study) -> bool:
    """Return whether every mix, in order, signed that nothing of D will ever be opened.

    Without a gate only abandonments count: reports that were forwarded could be opened at once.
    The word of an uncertain mix counts as none: that mix may be the only honest one.
    """
    if not endings:
        return False
    if len(endings) != len(study.mixes):
        raise BrokenChain("a void round has a statement of every mix, or none")
    for mix, ending in zip(study.mixes, endings, strict=True):
        check_ending(ending, digest, mix)
    if not study.batching.gate:
        return all(each.HasField("abandoned") for each in endings)
    return not any(each.voided.uncertain for each in endings)


# Closings: whether the coordinator used a round ---------------------------------------------------


def sign_closing(
    digest: RoundDigest, endings: Iterable[round_pb2.Ending], key: SigningKey, *, void: bool
) -> channel_pb2.RoundClosed:
    """The coordinator's signed word whether it used the reports of D, with the mixes' endings."""
    signature = key.sign("closing", digest, number(int(void)))
    return channel_pb2.RoundClosed(
        digest=digest, void=void, signature=signature, endings=map(_without_disclosure, endings)
    )


def check_closing(closed: channel_pb2.RoundClosed, study: Study) -> None:
    parts = closed.digest, number(int(closed.void))
    verify(study.server.sign_key, closed.signature, "closing", *parts)


def _without_disclosure(ending: round_pb2.Ending) -> round_pb2.Ending:
    if ending.HasField("abandoned"):
        return round_pb2.Ending(abandoned=ending.abandoned)
    return round_pb2.Ending(voided=ending.voided)
