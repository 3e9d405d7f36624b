"""What takes bytes from the network, as functions of bytes: each raises its declared errors only.

A parser is met twice where a signature stands before it: with the bytes as they are, and with
everything in them signed by the party that ought to have signed it, as if that party were the
attacker.  All keys are the same in every run; sealing and blinding stay random.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from google.protobuf.message import DecodeError
from silomix_core.mechanism.report_format import MalformedReport, decode_report, encode_report
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from silomix_proto import channel_pb2, introduction_pb2, ledger_pb2, mix_pb2, round_pb2
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.certificates.revocation import caller_of
from silomix_protocol.connections.introduction import Door, introduce
from silomix_protocol.connections.tls import Identity, UnknownPeer
from silomix_protocol.connections.version import WrongVersion
from silomix_protocol.grpc_calls.introduction_header import HEADER as HEADER_NAME
from silomix_protocol.keys import ForgedSignature, SealKey, UnusableKey
from silomix_protocol.rounds import batches, blame, complaints, heights, onion, statements
from silomix_protocol.rounds import round_keys as roundkeys
from silomix_protocol.rounds.batches import BrokenBatch
from silomix_protocol.rounds.descriptor import RefusedDescriptor, RoundDigest, check, study_of
from silomix_protocol.rounds.onion import UnopenableLayer
from silomix_protocol.rounds.round_keys import RefusedKeys
from silomix_protocol.rounds.statements import BrokenChain
from silomix_protocol.rounds.tokens import RefusedToken, Token, blind
from support.rounds import (
    committed_list,
    fixed_keys,
    key_lists,
    make_parties,
    make_round,
    mixed,
    open_gated,
    receipt,
)

Errors = tuple[type[Exception], ...]

PARTIES = make_parties()
STUDY, SERVER = PARTIES.study, PARTIES.keys["server"]
ROUND = make_round(STUDY, SERVER, make_key=fixed_keys("fuzz"))
D = ROUND.digest
MECHANISM = STUDY.mechanism()
ONIONS = [ROUND.seal(ROUND.payload(bytes([place]) * 40)) for place in range(4)]
SEALED = [each.sealed for each in ONIONS]
MIXED = mixed(PARTIES, ROUND, SEALED)
LISTS = key_lists(PARTIES, [ROUND])
LOST = ROUND.seal(ROUND.payload(b"lost" * 10))  # silo-0's, which the first mix dropped
RECEIPT = receipt(PARTIES, ROUND, LOST.sealed)
BLINDED = blind()
GATED_BYTES = len(MIXED.gated[0])
assert ROUND.issuer
ISSUER = ROUND.issuer


@dataclass(frozen=True, slots=True)
class Target:
    """A function of bytes, what it may raise, and inputs that it takes without raising anything."""

    run: Callable[[bytes], object]
    errors: Errors
    valid: tuple[bytes, ...]

    def __call__(self, data: bytes) -> bool:
        """Whether the bytes were taken; any error that is not declared comes out."""
        try:
            self.run(data)
        except self.errors:
            return False
        return True


# Rounds and keys ---------------------------------------------------------------------------------


def descriptor(data: bytes) -> None:
    signed = round_pb2.SignedDescriptor.FromString(data)
    study_of(signed)
    check(signed, STUDY)


def descriptor_of_coordinator(data: bytes) -> None:
    signature = SERVER.sign("descriptor", data)
    found = check(round_pb2.SignedDescriptor(descriptor=data, signature=signature), STUDY)
    assert found.encoded == data
    assert found.digest == sha256(data).digest()
    assert len(found.silos) >= STUDY.batching.minimum


def key_lists_forged(data: bytes) -> None:
    roundkeys.KeyBook(STUDY).add(list(channel_pb2.StretchOpened.FromString(data).lists))


def key_lists_of_mixes(data: bytes) -> None:
    lists = list(channel_pb2.StretchOpened.FromString(data).lists)
    for place, listed in enumerate(lists[: len(STUDY.mixes)]):
        parts = roundkeys._parts(STUDY, listed)
        listed.signature = PARTIES.mix_key(place).sign("key-list", *parts)
    roundkeys.KeyBook(STUDY).add(lists)


def round_keys(data: bytes) -> None:
    opened = channel_pb2.RoundOpened.FromString(data)
    book = roundkeys.KeyBook(STUDY)
    book.add(LISTS)
    book.check(ROUND.descriptor, list(opened.mix_keys))
    onion.seal(b"payload", opened.server_key, list(opened.mix_keys), D)


def sealing_keys(data: bytes) -> None:
    """Keys that a mix did vouch for, whatever they are."""
    opened = channel_pb2.RoundOpened.FromString(data)
    roundkeys.check_lengths(list(opened.mix_keys), STUDY)
    onion.seal(b"payload", opened.server_key, list(opened.mix_keys), D)


def released_key(data: bytes) -> None:
    key = SealKey.from_raw(mix_pb2.ReleasedKey.FromString(data).key)
    assert len(key.public) == 1216


# Introductions -----------------------------------------------------------------------------------

_TIME = 1_800_000_000.0
_SILO = STUDY.silos[0].name
_AUTHORITY = Authority.create("consortium", datetime.fromtimestamp(_TIME, UTC))
_CERTIFIED = _AUTHORITY.issue(_SILO, (), datetime.fromtimestamp(_TIME, UTC), serves=False)
_OWN = Identity(_SILO, _AUTHORITY.pem, _CERTIFIED.certificate, _CERTIFIED.key)
(_INTRODUCED,) = introduce(_OWN, "server", STUDY, PARTIES.keys[_SILO], _TIME).metadata


class _Call:
    """A call with this introduction, over a connection without a certificate."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((HEADER_NAME, self._header),)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}


def introduction(data: bytes) -> None:
    call: Any = _Call(data)
    caller = Door("server", _AUTHORITY.pem, (STUDY,), now=lambda: _TIME).caller(call)
    assert caller.name == _SILO
    guarded = caller_of(call)
    assert guarded is not None
    assert guarded.name == _SILO, "who is let in must be who is looked for among the revoked"


def introduction_of_silo(data: bytes) -> None:
    signature = PARTIES.keys[_SILO].sign("introduction", data)
    introduction(introduction_pb2.Signed(content=data, signature=signature).SerializeToString())


# Statements --------------------------------------------------------------------------------------


def chain(data: bytes) -> None:
    header = mix_pb2.BatchHeader.FromString(data)
    statements.check_chain(header.chain, ROUND.descriptor, STUDY, len(STUDY.mixes))


def chain_of_mixes(data: bytes) -> None:
    header = mix_pb2.BatchHeader.FromString(data)
    signed = _signed_by_mixes(list(header.chain))
    statements.check_chain(signed, ROUND.descriptor, STUDY, len(STUDY.mixes))
    for statement in signed:
        assert statement.forwarded <= len(ROUND.descriptor.silos)
        assert len(statement.output) == 32 * statement.forwarded
        assert bool(statement.aborted) == (not statement.output)


def _signed_by_mixes(chain: list[round_pb2.HopStatement]) -> list[round_pb2.HopStatement]:
    known = len(STUDY.mixes)
    signed = [
        statements.sign_hop(D, each, PARTIES.mix_key(i)) for i, each in enumerate(chain[:known])
    ]
    return signed + chain[known:]


def receipts(data: bytes) -> None:
    found = mix_pb2.Receipt.FromString(data)
    statements.check_receipt(found, D, 0, found.report, STUDY)


def committed(data: bytes) -> None:
    found = channel_pb2.RoundCommitted.FromString(data)
    statements.check_committed(found, STUDY)


def committed_by_mixes(data: bytes) -> None:
    found = channel_pb2.RoundCommitted.FromString(data)
    signed = committed_list(PARTIES, RoundDigest(found.digest), found.list)
    statements.check_committed(signed, STUDY)
    assert all(len(each) == 32 for each in statements.digests(found.list))
    complaints.lost_at(ONIONS[0].trail, MIXED.chain, found.list)


def height(data: bytes) -> None:
    found = ledger_pb2.LedgerHeight.FromString(data)
    heights.check_height(found, "silo-0", PARTIES.keys["silo-0"].public)


def height_of_silo(data: bytes) -> None:
    """The silo signs what stands in it; whoever keeps heights compares it with another."""
    found = ledger_pb2.LedgerHeight.FromString(data)
    key, place = PARTIES.keys["silo-0"], (found.restored_ms, found.entries)
    try:
        signed = heights.sign_height("silo-0", place, found.mark, key)
    except ValueError as error:
        raise ForgedSignature(str(error)) from error
    assert heights.check_height(signed.to_wire(), "silo-0", key.public) == signed
    heights.HeightBook({key.public: HEIGHT}).exchange(key.public, signed)


def confirmation(data: bytes) -> None:
    found = round_pb2.Confirmation.FromString(data)
    statements.check_confirmation(found, D, sha256(MIXED.committed.list).digest(), STUDY)


def abandonments(data: bytes) -> None:
    opened = channel_pb2.RoundOpened.FromString(data)
    statements.check_abandoned(opened.abandoned, D, STUDY)


def complaint(data: bytes) -> None:
    complaints.check_complaint(channel_pb2.Complaint.FromString(data), STUDY)


def complaint_of_silo(data: bytes) -> None:
    """Everybody signs what stands in it: the silo and the mixes."""
    found = channel_pb2.Complaint.FromString(data)
    signed = complaints.sign_complaint(
        ROUND.descriptor,
        found.silo,
        statements.sign_receipt(D, found.silo, found.receipt.report, PARTIES.mix_key(0)),
        committed_list(PARTIES, D, found.committed.list),
        PARTIES.keys[PARTIES.roster[found.silo % len(PARTIES.roster)]],
    )
    signed.trail.extend(found.trail)
    signed.chain.extend(_signed_by_mixes(list(found.chain)))
    finding = complaints.check_complaint(signed, STUDY)
    assert (finding.accused is None) == (not signed.trail or not signed.chain)


def closing(data: bytes) -> None:
    closed = channel_pb2.RoundClosed.FromString(data)
    statements.check_closing(closed, STUDY)
    statements.is_ended(closed.endings, D, STUDY)


def disclosure_of_mix(data: bytes) -> None:
    """The first mix signs whatever it discloses."""
    ending = statements.sign_voided(D, "void", data, PARTIES.mix_key(0))
    found = blame.disclosed(ending, MIXED.chain[0], ROUND.descriptor, STUDY)
    assert len(found.dropped) == MIXED.chain[0].dropped


def evidence(data: bytes) -> None:
    complaints.check_evidence(channel_pb2.Complaint.FromString(data), STUDY)


# Batches -----------------------------------------------------------------------------------------


def batch(data: bytes) -> None:
    """A stream of frames, each with its length before it (3 bytes)."""
    asyncio.run(_read_batch(data, reports=MIXED.gated))


async def _read_batch(data: bytes, reports: list[bytes]) -> None:
    rest = _frames(data)
    first = await anext(rest, None)
    batches.digest_of(first)
    assert first is not None
    found = batches.incoming(first, rest, ROUND.descriptor, STUDY, len(STUDY.mixes), GATED_BYTES)
    read = []
    async for report, digest in found.reports():
        batches.check_report(report, digest)
        read.append(bytes(report))
    assert read == reports, "only what the mixes signed comes out"


async def _frames(data: bytes) -> AsyncIterator[mix_pb2.BatchFrame]:
    while data:
        size = int.from_bytes(data[:3], "big")
        yield mix_pb2.BatchFrame.FromString(data[3 : 3 + size])
        data = data[3 + size :]


def batch_body(data: bytes) -> None:
    """Chunks behind a good header: a byte says how long each is, the rest is their content."""
    header = next(batches.frames(D, MIXED.chain, []))
    chunks = [header]
    while data:
        size = 64 * data[0]
        chunks.append(mix_pb2.BatchFrame(chunk=data[1 : 1 + size]))
        data = data[1 + size :]
    asyncio.run(_read_batch(_stream(chunks), reports=MIXED.gated))


def _stream(frames: list[mix_pb2.BatchFrame]) -> bytes:
    encoded = [frame.SerializeToString() for frame in frames]
    return b"".join(len(each).to_bytes(3, "big") + each for each in encoded)


def _body(content: bytes) -> bytes:
    size = 64 * 255
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(b"\xff" + piece for piece in pieces)


# Tokens, layers, reports, studies ----------------------------------------------------------------


def token(data: bytes) -> None:
    found = Token.from_bytes(data)
    assert found.to_bytes() == data
    ISSUER.valid(1, found)


def blinded_element(data: bytes) -> None:
    assert len(ISSUER.evaluate(1, data)) == 96


def evaluated_element(data: bytes) -> None:
    found = BLINDED.finish(data, ISSUER.public_key(1))
    assert ISSUER.valid(1, found), "no other answer passes for the server's"


def token_key(data: bytes) -> None:
    BLINDED.finish(ISSUER.evaluate(1, BLINDED.blinded), data)
    assert data == ISSUER.public_key(1)


def layer(data: bytes) -> None:
    onion.open_layer(data, ROUND.mixes[0].seal, 0, D)


def gated(data: bytes) -> None:
    open_gated(data, ROUND.released, ROUND.server, D)


def inner(data: bytes) -> None:
    """What a silo sealed to the server may be anything."""
    onion.open_at_server(data, ROUND.server, D)


def report(data: bytes) -> None:
    values = decode_report(data, MECHANISM)
    assert encode_report(values, MECHANISM) == data


def study(data: bytes) -> None:
    assert parse_study(data).identity == sha256(data).digest()


SENT = complaints.sign_complaint(
    ROUND.descriptor, 0, RECEIPT, MIXED.committed, PARTIES.keys["silo-0"]
)
KEPT = channel_pb2.Complaint(trail=LOST.trail, chain=MIXED.chain)
KEPT.MergeFrom(SENT)
COMPLAINTS = KEPT.SerializeToString(), SENT.SerializeToString()
OPENED = channel_pb2.RoundOpened(
    descriptor=ROUND.descriptor.to_wire(),
    server_key=ROUND.server.public,
    mix_keys=ROUND.mix_keys,
    abandoned=[statements.sign_abandonment(D, "gone", PARTIES.mix_key(hop)) for hop in (0, 1)],
).SerializeToString()
CONFIRMED = statements.sign_confirmation(D, MIXED.committed.list, 1, PARTIES.keys["silo-1"])
HEIGHT = heights.sign_height("silo-0", (7, 12), bytes(32), PARTIES.keys["silo-0"])
HEADER = mix_pb2.BatchHeader(digest=D, chain=MIXED.chain).SerializeToString()
STRETCH = channel_pb2.StretchOpened(first_round=1, lists=LISTS).SerializeToString()
COMMITTED = MIXED.committed.SerializeToString()
TOLD = round_pb2.Disclosure(
    keys=ROUND.mix_keys[0],
    seal=ROUND.mixes[0].seal.raw,
    senders=sorted(
        (
            round_pb2.Sender(
                silo=place,
                report=sha256(sealed).digest(),
                signature=PARTIES.keys[f"silo-{place}"].sign("report", D, sha256(sealed).digest()),
            )
            for place, sealed in enumerate(SEALED)
        ),
        key=lambda sender: sender.report,
    ),
    origins=range(len(SEALED)),
).SerializeToString()
ENDINGS = [
    statements.sign_voided(D, "void", TOLD, PARTIES.mix_key(0)),
    statements.sign_voided(D, "void", b"", PARTIES.mix_key(1)),
]
CLOSED = statements.sign_closing(D, ENDINGS, PARTIES.keys["server"], void=True).SerializeToString()
EVIDENCE = channel_pb2.Complaint(
    descriptor=ROUND.descriptor.to_wire(), chain=MIXED.chain, endings=ENDINGS
).SerializeToString()
NOT_WIRE = (DecodeError,)
FORGED = (ForgedSignature,)

TARGETS: dict[str, Target] = {
    "descriptor": Target(
        descriptor,
        (*NOT_WIRE, RefusedDescriptor),
        (ROUND.descriptor.to_wire().SerializeToString(),),
    ),
    "descriptor_of_coordinator": Target(
        descriptor_of_coordinator, (RefusedDescriptor,), (ROUND.descriptor.encoded,)
    ),
    "introduction": Target(introduction, (UnknownPeer, WrongVersion), (_INTRODUCED[1],)),
    "introduction_of_silo": Target(
        introduction_of_silo,
        (UnknownPeer, WrongVersion),
        (introduction_pb2.Signed.FromString(_INTRODUCED[1]).content,),
    ),
    "key_lists_forged": Target(key_lists_forged, (*NOT_WIRE, *FORGED, RefusedKeys), (STRETCH,)),
    "key_lists_of_mixes": Target(key_lists_of_mixes, (*NOT_WIRE, RefusedKeys), (STRETCH,)),
    "round_keys": Target(round_keys, (*NOT_WIRE, RefusedKeys, UnusableKey), (OPENED,)),
    "sealing_keys": Target(sealing_keys, (*NOT_WIRE, RefusedKeys, UnusableKey), (OPENED,)),
    "released_key": Target(
        released_key,
        (*NOT_WIRE, UnusableKey),
        (mix_pb2.ReleasedKey(key=ROUND.released[0].raw).SerializeToString(),),
    ),
    "chain": Target(chain, (*NOT_WIRE, *FORGED, BrokenChain), (HEADER,)),
    "chain_of_mixes": Target(chain_of_mixes, (*NOT_WIRE, BrokenChain), (HEADER,)),
    "receipt": Target(receipts, (*NOT_WIRE, *FORGED), (RECEIPT.SerializeToString(),)),
    "committed": Target(committed, (*NOT_WIRE, *FORGED, BrokenChain), (COMMITTED,)),
    "committed_by_mixes": Target(committed_by_mixes, (*NOT_WIRE, BrokenChain), (COMMITTED,)),
    "height": Target(height, (*NOT_WIRE, *FORGED), (HEIGHT.to_wire().SerializeToString(),)),
    "height_of_silo": Target(
        height_of_silo, (*NOT_WIRE, *FORGED), (HEIGHT.to_wire().SerializeToString(),)
    ),
    "confirmation": Target(confirmation, (*NOT_WIRE, *FORGED), (CONFIRMED.SerializeToString(),)),
    "abandonments": Target(abandonments, (*NOT_WIRE, *FORGED, BrokenChain), (OPENED,)),
    "complaint": Target(
        complaint, (*NOT_WIRE, *FORGED, RefusedDescriptor, BrokenChain), COMPLAINTS
    ),
    "complaint_of_silo": Target(complaint_of_silo, (*NOT_WIRE, *FORGED, BrokenChain), COMPLAINTS),
    "closing": Target(closing, (*NOT_WIRE, *FORGED, BrokenChain), (CLOSED,)),
    "disclosure_of_mix": Target(disclosure_of_mix, (*FORGED, BrokenChain), (TOLD,)),
    "evidence": Target(evidence, (*NOT_WIRE, *FORGED, RefusedDescriptor, BrokenChain), (EVIDENCE,)),
    "batch": Target(
        batch,
        (*NOT_WIRE, *FORGED, BrokenBatch, BrokenChain),
        (_stream(list(batches.frames(D, MIXED.chain, MIXED.gated))),),
    ),
    "batch_body": Target(batch_body, (BrokenBatch,), (_body(b"".join(MIXED.gated)),)),
    "token": Target(token, (RefusedToken,), (ROUND.payload(b""),)),
    "blinded_element": Target(blinded_element, (RefusedToken,), (BLINDED.blinded,)),
    "evaluated_element": Target(
        evaluated_element, (RefusedToken,), (ISSUER.evaluate(1, BLINDED.blinded),)
    ),
    "token_key": Target(token_key, (RefusedToken,), (ISSUER.public_key(1),)),
    "layer": Target(layer, (UnopenableLayer,), (SEALED[0],)),
    "gated": Target(gated, (UnopenableLayer,), (MIXED.gated[0],)),
    "inner": Target(
        inner, (UnopenableLayer,), (onion.seal(b"x", ROUND.server.public, [], D).sealed,)
    ),
    "report": Target(
        report,
        (MalformedReport,),
        (
            b"SMR1"
            + bytes([MECHANISM.width, 0, 0, 0])
            + bytes(MECHANISM.width * MECHANISM.dimension),
        ),
    ),
    "study": Target(study, (InvalidStudy,), (PARTIES.content,)),
}
