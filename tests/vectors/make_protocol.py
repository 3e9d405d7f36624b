"""Makes protocol.json: every encoding of the protocol, from fixed keys, for other implementations.

    PYTHONPATH=tests python tests/vectors/make_protocol.py

Everything but the onion is a function of the fixed secrets below; HPKE seals at random, so each
run makes another onion.  tests/protocol/test_vectors.py checks the committed file; make it anew
only when the protocol is meant to change.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import Message
from silomix_core.mechanism.report_format import encode_report
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.keys import SealKey, SigningKey, framed, number
from silomix_protocol.rounds import batches, heights, onion, ristretto, round_keys, statements
from silomix_protocol.rounds.complaints import sign_complaint
from silomix_protocol.rounds.tokens import issuer
from support.rounds import (
    TOKEN_SEED,
    Parties,
    Round,
    committed_list,
    fixed_keys,
    make_parties,
    make_round,
)

VECTORS = Path(__file__).with_name("protocol.json")
PLACE = 2  # the silo that confirms and complains
NAME = "small-4"  # of a study whose third round asks these places
ASKED = (0, 2, 3)
NONCE = bytes(range(32))
VALUES = [0, 1, -1, 300]
RESTORED = 1_794_830_400_000, 12  # when in milliseconds, and entries since the first
MARK = sha256(b"a head").digest()
BLINDED = "863f330cc1a1259ed5a5998a23acfd37fb4351a793a5b3c090b642ddc439b945"  # RFC 9497, A.1.2
QUERY = round_pb2.Query(point=np.array([0.5, -1.0, 0.0, 2.0], "<f8").tobytes())


def main() -> None:
    VECTORS.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n", "utf-8")


def vectors() -> dict[str, Any]:
    parties = make_parties(name=NAME, participants=len(ASKED))
    round_ = make_round(
        parties.study,
        parties.keys["server"],
        number=3,
        attempt=2,
        query=QUERY.SerializeToString(),
        make_key=fixed_keys("vectors"),
    )
    return {
        "note": (
            "Encodings of silomix/v1. Bytes are written in hexadecimal. Messages are protocol "
            "buffers (proto/*.proto), serialized with fields in the order of their numbers. "
            "Made by tests/vectors/make_protocol.py."
        ),
        "study": {
            "note": "The study file; its identity is the SHA-256 of its UTF-8 bytes.",
            "file": parties.content.decode(),
            "identity": parties.study.identity.hex(),
        },
        "signing_keys": {
            "note": "Ed25519 (RFC 8032) private keys; the public ones stand in the study file.",
            **{name: key.raw.hex() for name, key in parties.keys.items()},
        },
        "sealing_keys": _sealing_keys(round_),
        "framing": _framing(),
        "round_keys": _round_keys(round_),
        "descriptor": _descriptor(round_),
        "silo_bitmaps": _bitmaps(),
        "signatures": _signatures(parties, round_),
        "committed": _committed(parties, round_),
        "complaint_copy": _complaint_copy(parties, round_),
        "void": _void(parties, round_),
        "batch": _batch(parties, round_),
        "tokens": _tokens(round_),
        "report": _report(round_),
        "onion": _onion(round_),
    }


def _sealing_keys(round_: Round) -> dict[str, Any]:
    def both(key: SealKey) -> dict[str, str]:
        return {"private": key.raw.hex(), "public": key.public.hex()}

    parties: dict[str, Any] = {}
    for place, mix in enumerate(round_.mixes):
        assert mix.release
        name = round_.study.mixes[place].name
        parties[name] = {"seal": both(mix.seal), "release": both(mix.release)}
    return {
        "note": (
            "Keys of one attempt. private: ML-KEM-768 seed (64 bytes), X25519 scalar (32). "
            "public: ML-KEM-768 encapsulation key (1184), X25519 point (32)."
        ),
        **parties,
        "server": {"seal": both(round_.server)},
    }


def _framing() -> list[dict[str, Any]]:
    cases: list[tuple[str, str, list[bytes]]] = [
        ("no parts", "report", []),
        ("an empty part is not no part", "report", [b""]),
        ("two parts", "receipt", [b"ab", b"c"]),
        ("the same bytes, cut elsewhere", "receipt", [b"a", b"bc"]),
        ("a number is 4 bytes, big-endian", "key-list", [number(1), number(2**32 - 1)]),
    ]
    return [
        {
            "note": note,
            "purpose": purpose,
            "parts": [part.hex() for part in parts],
            "framed": framed(purpose, *parts).hex(),
        }
        for note, purpose, parts in cases
    ]


def _round_keys(round_: Round) -> dict[str, Any]:
    def entry(note: str, keys: round_pb2.RoundKeys) -> dict[str, str]:
        return {
            "note": note,
            "message": keys.SerializeToString().hex(),
            "fingerprint": round_keys.fingerprint(keys).hex(),
        }

    first, second = round_.mix_keys
    return {
        "note": "The fingerprint is SHA-256 of the framing of purpose round-keys, seal, release.",
        "mix-1": entry("with a gate", first),
        "mix-2": entry("with a gate", second),
        "without_gate": entry("mix-1 without a gate", round_pb2.RoundKeys(seal=first.seal)),
    }


def _descriptor(round_: Round) -> dict[str, Any]:
    descriptor = round_.descriptor
    return {
        "note": "D (digest) is the SHA-256 of `encoded`; `query` is a serialized Query.",
        "round": descriptor.round,
        "attempt": descriptor.attempt,
        "silos": list(descriptor.silos),
        "query": QUERY.SerializeToString().hex(),
        "server_key": descriptor.server_key.hex(),
        "mix_keys": [key.hex() for key in descriptor.mix_keys],
        "token_key": descriptor.token_key.hex(),
        "encoded": descriptor.encoded.hex(),
        "digest": descriptor.digest.hex(),
        "signed": descriptor.to_wire().SerializeToString().hex(),
    }


def _bitmaps() -> list[dict[str, Any]]:
    cases = [(4, 4, 1), (4, 3, 1), (4, 3, 5), (8, 8, 2), (9, 1, 1), (9, 5, 4), (17, 6, 3)]
    return [_bitmap(*case) for case in cases]


def _bitmap(silos: int, participants: int, number: int) -> dict[str, Any]:
    parties = make_parties(silos=silos, minimum=1, participants=participants)
    descriptor = make_round(parties.study, parties.keys["server"], number).descriptor
    return {
        "note": "whom a round of the study asks; bit i % 8 of byte i / 8 is silo i of the roster",
        "study": parties.study.identity.hex(),
        "roster": silos,
        "participants": participants,
        "round": number,
        "asked": [parties.roster.index(name) for name in descriptor.silos],
        "bits": round_pb2.RoundDescriptor.FromString(descriptor.encoded).silos.hex(),
    }


# Signatures --------------------------------------------------------------------------------------


def _signed(
    note: str,
    signer: str,
    key: SigningKey,
    purpose: str,
    parts: dict[str, bytes],
    message: Message,
) -> dict[str, Any]:
    """One signature with everything under it; it is the one in the message, made by our code."""
    signature = key.sign(purpose, *parts.values())
    assert message.signature == signature, purpose  # type: ignore[attr-defined]
    return {
        "note": note,
        "signer": signer,
        "purpose": purpose,
        "parts": {name: part.hex() for name, part in parts.items()},
        "framed": framed(purpose, *parts.values()).hex(),
        "signature": signature.hex(),
        "message_type": message.DESCRIPTOR.name,
        "message": message.SerializeToString(deterministic=True).hex(),
    }


def _signatures(parties: Parties, round_: Round) -> list[dict[str, Any]]:
    """One for every purpose."""
    digest, keys = round_.digest, parties.keys
    report = sha256(b"an onion").digest()
    chain = _chain(parties, round_)
    last = chain[-1]
    listed, silo = sha256(last.output).digest(), f"silo-{PLACE}"
    key_list = round_keys.sign_list(parties.study, 2, 3, round_.mix_keys[:1], keys["mix-1"])
    height = heights.sign_height(silo, RESTORED, MARK, keys[silo]).to_wire()
    submitted = mix_pb2.SubmitHeader(
        digest=digest, bytes=8, signature=keys[silo].sign("report", digest, report), height=height
    )
    receipt = statements.sign_receipt(digest, PLACE, report, keys["mix-1"])
    committed = committed_list(parties, digest, last.output)
    commitments = [mix_pb2.Commitment(signature=each) for each in committed.signatures]
    abandoned = statements.sign_abandonment(digest, "mix-2 ist müde", keys["mix-1"])
    voided = statements.sign_voided(
        digest, "the list is too short", _disclosure(parties, round_), keys["mix-1"]
    ).voided
    complaint = sign_complaint(round_.descriptor, PLACE, receipt, committed, keys[silo])
    confirmation = statements.sign_confirmation(digest, last.output, PLACE, keys[silo])
    encoded = round_.descriptor.encoded
    entries: list[tuple[str, str, str, dict[str, bytes], Message]] = [
        (
            "The coordinator issues an attempt of a round.",
            "server", "descriptor", {"descriptor": encoded}, round_.descriptor.to_wire(),
        ),
        (
            "A mix vouches for its keys of consecutive rounds, here of one.",
            "mix-1", "key-list",
            {
                "study": parties.study.identity, "attempt": number(2), "first_round": number(3),
                "fingerprints": b"".join(key_list.keys),
            },
            key_list,
        ),
        (
            "A silo submits the onion 'an onion' (8 bytes).",
            silo, "report", {"digest": digest, "sha256_onion": report}, submitted,
        ),
        (
            "A silo states how far its ledger is: restored at a moment, 12 entries.",
            silo, "ledger-height",
            {
                "silo": silo.encode(), "restored_ms": RESTORED[0].to_bytes(8, "big"),
                "entries": RESTORED[1].to_bytes(8, "big"), "mark": MARK,
            },
            height,
        ),
        (
            "A silo asks for the tokens of two rounds, of which it wants the first.",
            silo, "tokens",
            {
                "study": parties.study.identity, "first_round": number(3),
                "blinded_1": bytes(32), "blinded_2": b"",
            },
            statements.sign_token_request(3, [bytes(32), b""], parties.study, keys[silo]),
        ),
        (
            "The first mix took it.",
            "mix-1", "receipt",
            {"digest": digest, "silo": number(PLACE), "sha256_onion": report}, receipt,
        ),
        (
            "The first mix received 3 reports and forwarded 3.",
            "mix-1", "batch", _hop_parts(digest, chain[0]), chain[0],
        ),
        (
            "The second mix aborts: it received 3 reports and forwarded none.",
            "mix-2", "batch", _hop_parts(digest, _aborted(parties, round_)),
            _aborted(parties, round_),
        ),
        (
            "The first mix stands by the list of what the last mix handed over.",
            "mix-1", "commitment", {"digest": digest, "sha256_list": listed}, commitments[0],
        ),
        (
            "The last mix stands by it, too.",
            "mix-2", "commitment", {"digest": digest, "sha256_list": listed}, commitments[1],
        ),
        (
            "A silo saw its report in the list.",
            silo, "confirmation", {"digest": digest, "sha256_list": listed}, confirmation,
        ),
        (
            "A mix forwarded nothing and never will.",
            "mix-1", "abandonment",
            {"digest": digest, "reason": abandoned.reason.encode()}, abandoned,
        ),
        (
            "A mix destroyed its release key, and discloses what it did to the reports.",
            "mix-1", "void",
            {
                "digest": digest, "reason": voided.reason.encode(),
                "sha256_disclosure": voided.disclosed,
            },
            voided,
        ),
        (
            "A mix destroyed its release key, and discloses nothing.",
            "mix-2", "void",
            {"digest": digest, "reason": b"restarted", "sha256_disclosure": b""},
            statements.sign_voided(digest, "restarted", b"", keys["mix-2"]).voided,
        ),
        (
            "A mix restarted behind its list: its release key may be out.",
            "mix-2", "void",
            {
                "digest": digest, "reason": b"restarted", "sha256_disclosure": b"",
                "uncertain": b"uncertain",
            },
            statements.sign_voided(digest, "restarted", b"", keys["mix-2"], uncertain=True).voided,
        ),
        (
            "The coordinator used what came of the round.",
            "server", "closing", {"digest": digest, "void": number(0)},
            statements.sign_closing(digest, (), keys["server"], void=False),
        ),
        (
            "The coordinator used nothing: the round is void.",
            "server", "closing", {"digest": digest, "void": number(1)},
            statements.sign_closing(digest, (), keys["server"], void=True),
        ),
        (
            "A silo misses its report in the list.",
            silo, "complaint",
            {"digest": digest, "silo": number(PLACE), "sha256_list": listed},
            complaint,
        ),
    ]  # fmt: skip
    return [
        _signed(note, signer, keys[signer], purpose, parts, message)
        for note, signer, purpose, parts, message in entries
    ]


def _disclosure(parties: Parties, round_: Round) -> bytes:
    """What the first mix of `_chain` discloses: three silos sent a byte each, in this order."""
    mix, digests = round_.mixes[0], sorted(sha256(bytes([place])).digest() for place in range(3))
    senders = [
        round_pb2.Sender(
            silo=place,
            report=report,
            signature=parties.keys[f"silo-{place}"].sign("report", round_.digest, report),
        )
        for place, report in zip(ASKED, digests, strict=True)
    ]
    told = round_pb2.Disclosure(
        keys=mix.public, seal=mix.seal.raw, senders=senders, origins=[2, 0, 1]
    )
    encoded: bytes = told.SerializeToString(deterministic=True)
    return encoded


def _void(parties: Parties, round_: Round) -> dict[str, Any]:
    told = _disclosure(parties, round_)
    ending = statements.sign_voided(
        round_.digest, "the list is too short", told, parties.mix_key(0)
    )
    return {
        "note": (
            "What the first mix says and discloses about a void round: its private seal key, who "
            "sent what, and from which of those every report that went out came."
        ),
        "disclosure": told.hex(),
        "senders": list(ASKED),
        "origins": [2, 0, 1],
        "message": ending.SerializeToString(deterministic=True).hex(),
    }


def _committed(parties: Parties, round_: Round) -> dict[str, str]:
    listed = _chain(parties, round_)[-1].output
    committed = committed_list(parties, round_.digest, listed)
    return {
        "note": "What silos are shown: the list, with the commitment of every mix in order.",
        "list": listed.hex(),
        "message": committed.SerializeToString(deterministic=True).hex(),
    }


def _complaint_copy(parties: Parties, round_: Round) -> dict[str, Any]:
    chain = _chain(parties, round_)
    onion_at_mixes = [b"an onion", _reports(0)[1]]
    trail = [sha256(each).digest() for each in [*onion_at_mixes, b"its gated report"]]
    receipt = statements.sign_receipt(round_.digest, PLACE, trail[0], parties.mix_key(0))
    committed, key = (
        committed_list(parties, round_.digest, chain[-1].output),
        parties.keys[f"silo-{PLACE}"],
    )
    copy = sign_complaint(round_.descriptor, PLACE, receipt, committed, key)
    copy.trail.extend(trail)
    copy.chain.extend(chain)
    return {
        "note": (
            "The complaint as its operator keeps it: with the report's digests and the mixes' "
            "statements, by which mix-2 lost it.  Neither is sent."
        ),
        "trail": [each.hex() for each in trail],
        "accused": "mix-2",
        "message": copy.SerializeToString(deterministic=True).hex(),
    }


def _chain(parties: Parties, round_: Round) -> list[round_pb2.HopStatement]:
    """Two mixes that forwarded three reports each (whatever these are)."""
    came = statements.input_of(sha256(bytes([place])).digest() for place in range(3))
    chain = []
    for hop in range(2):
        output = b"".join(sha256(report).digest() for report in _reports(hop))
        statement = round_pb2.HopStatement(
            hop=hop, received=3, forwarded=3, dropped=0, input=came, output=output
        )
        chain.append(statements.sign_hop(round_.digest, statement, parties.mix_key(hop)))
        came = sha256(output).digest()
    return chain


def _reports(hop: int) -> list[bytes]:
    return [bytes([16 * (hop + 1) + place]) * 24 for place in range(3)]


def _aborted(parties: Parties, round_: Round) -> round_pb2.HopStatement:
    came = sha256(_chain(parties, round_)[0].output).digest()
    statement = round_pb2.HopStatement(
        hop=1, received=3, forwarded=0, dropped=1, input=came, aborted="2 valid reports, 3 needed"
    )
    return statements.sign_hop(round_.digest, statement, parties.mix_key(1))


def _hop_parts(digest: bytes, statement: round_pb2.HopStatement) -> dict[str, bytes]:
    return {
        "digest": digest,
        "hop": number(statement.hop),
        "received": number(statement.received),
        "forwarded": number(statement.forwarded),
        "dropped": number(statement.dropped),
        "input": statement.input,
        "sha256_output": sha256(statement.output).digest(),
        "aborted": statement.aborted.encode(),
    }


# Batches, tokens, reports, onions ----------------------------------------------------------------


def _batch(parties: Parties, round_: Round) -> dict[str, Any]:
    reports = _reports(1)
    frames = batches.frames(round_.digest, _chain(parties, round_), reports)
    onions = [sha256(bytes([place])).digest() for place in range(3)]
    return {
        "note": "BatchFrames of a batch behind both mixes: the header, then the reports.",
        "reports": [report.hex() for report in reports],
        "frames": [frame.SerializeToString(deterministic=True).hex() for frame in frames],
        "first_input_note": "SHA-256 of the sorted digests of the onions, joined",
        "first_input_digests": [each.hex() for each in onions],
        "first_input": statements.input_of(onions).hex(),
    }


def _tokens(round_: Round) -> dict[str, Any]:
    study, place = round_.study.identity, round_.descriptor.round
    pair = ristretto.derive_key_pair(TOKEN_SEED, b"silomix/v1/token-key\0" + study + number(place))
    made = issuer(TOKEN_SEED, study)
    token_input = b"silomix/v1/token\0" + NONCE
    output = ristretto.evaluate(pair, token_input)
    return {
        "note": (
            "RFC 9497, VOPRF(ristretto255, SHA-512). DeriveKeyPair(seed, key_info) gives the "
            "round's key, key_info = label, study, round (4 bytes); input = label, nonce; a token "
            "is nonce, output. An answer on the wire is the evaluated element, then the proof "
            "(random, not shown)."
        ),
        "seed": TOKEN_SEED.hex(),
        "round": place,
        "key_info": (b"silomix/v1/token-key\0" + study + number(place)).hex(),
        "public_key": made.public_key(place).hex(),
        "nonce": NONCE.hex(),
        "input": token_input.hex(),
        "output": output.hex(),
        "token": (NONCE + output).hex(),
        "blinded": BLINDED,
        "evaluated": made.evaluate(place, bytes.fromhex(BLINDED))[:32].hex(),
    }


def _report(round_: Round) -> dict[str, Any]:
    mechanism = round_.study.mechanism()
    return {
        "note": "'SMR1', width, three zero bytes, then integers of that width, little-endian.",
        "width": mechanism.width,
        "values": VALUES,
        "encoded": encode_report(np.array(VALUES, dtype=np.int64), mechanism).hex(),
    }


def _onion(round_: Round) -> dict[str, Any]:
    token = bytes.fromhex(_tokens(round_)["token"])
    payload = token + bytes.fromhex(_report(round_)["encoded"])
    sealed = round_.seal_with_token(payload)
    names = [mix.name for mix in round_.study.mixes]
    layers = [(name, "seal", b"mix", hop) for hop, name in enumerate(names)]
    layers.append(("server", "seal", b"server", 0))
    layers += [(name, "release", b"release", hop) for hop, name in enumerate(names)]
    label, digest = b"silomix/v1/onion\0", round_.digest
    lengths = [
        len(sealed.sealed) - onion.LAYER_BYTES * place - len(token) * (role == b"release")
        for place, (_, _, role, _) in enumerate(layers)
    ]
    return {
        "note": (
            "HPKE (RFC 9180), base mode, MLKEM768-X25519 / HKDF-SHA256 / AES-128-GCM, no "
            "associated data. A layer is the encapsulated key (1120 bytes), then the ciphertext. "
            "Opened in this order, each with the named key and info = label, role, 0, hop "
            "(2 bytes), D. The server's layer holds the token, then the first gate's layer; what "
            "is left at the end is the report. payload = token, report."
        ),
        "layers": [
            {
                "opened_by": name,
                "key": key,
                "info": (label + role + b"\0" + hop.to_bytes(2, "big") + digest).hex(),
                "bytes": length,
            }
            for (name, key, role, hop), length in zip(layers, lengths, strict=True)
        ],
        "trail_note": "SHA-256 of what is left at each mix, then at the server",
        "trail": [each.hex() for each in sealed.trail],
        "payload": payload.hex(),
        "sealed": sealed.sealed.hex(),
    }


if __name__ == "__main__":
    main()
