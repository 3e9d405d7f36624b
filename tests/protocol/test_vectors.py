"""The committed test vectors: today's code makes the same bytes, and opens the stored onion.

tests/vectors/protocol.json is what another implementation is written against; a test that fails
here says that the protocol changed.
"""

import json
import runpy
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf.message import Message
from silomix_core.mechanism.report_format import decode_report, encode_report
from silomix_core.study.reader import parse_study
from silomix_core.study.schedule import Draw, asked_places
from silomix_core.study.study import Mix, Server, Silo
from silomix_proto import channel_pb2, ledger_pb2, mix_pb2, round_pb2
from silomix_protocol.keys import SealKey, SigningKey, framed, verify
from silomix_protocol.rounds import (
    batches,
    complaints,
    heights,
    onion,
    ristretto,
    round_keys,
    statements,
)
from silomix_protocol.rounds.blame import disclosed
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, RoundDigest, check, issue
from silomix_protocol.rounds.tokens import TOKEN_BYTES, Token, issuer
from support.rounds import make_parties, make_round, open_gated, signing_key

Vector = dict[str, Any]

VECTORS: Vector = json.loads(
    (Path(__file__).parents[1] / "vectors" / "protocol.json").read_text("utf-8")
)
STUDY = parse_study(VECTORS["study"]["file"].encode())
KEYS: dict[str, SigningKey] = {
    name: signing_key(bytes.fromhex(private))
    for name, private in VECTORS["signing_keys"].items()
    if name != "note"
}
DESCRIPTOR = VECTORS["descriptor"]
D = RoundDigest(bytes.fromhex(DESCRIPTOR["digest"]))
SIGNATURES: list[Vector] = VECTORS["signatures"]


def public_of(party: str) -> bytes:
    parties: list[Silo | Mix | Server] = [*STUDY.silos, *STUDY.mixes, STUDY.server]
    return next(each.sign_key for each in parties if each.name == party)


def seal_key(party: str, which: str) -> SealKey:
    return SealKey.from_raw(bytes.fromhex(VECTORS["sealing_keys"][party][which]["private"]))


def checked_descriptor() -> Descriptor:
    signed = round_pb2.SignedDescriptor.FromString(bytes.fromhex(DESCRIPTOR["signed"]))
    return check(signed, STUDY)


def message(purpose: str, place: int = 0) -> Any:
    """The stored message of this purpose."""
    vector = [each for each in SIGNATURES if each["purpose"] == purpose][place]
    for module in (round_pb2, mix_pb2, channel_pb2, ledger_pb2):
        if kind := getattr(module, vector["message_type"], None):
            return kind.FromString(bytes.fromhex(vector["message"]))
    raise AssertionError(vector["message_type"])


def hexed(content: Message) -> str:
    return content.SerializeToString(deterministic=True).hex()


def stored(purpose: str, place: int = 0) -> str:
    return str([each for each in SIGNATURES if each["purpose"] == purpose][place]["message"])


def test_the_script_that_made_the_vectors_still_makes_them() -> None:
    """All of their names; the values above are compared with today's code, not with the script."""
    script = Path(__file__).parents[1] / "vectors" / "make_protocol.py"
    made = runpy.run_path(str(script))["vectors"]()
    assert {name: shape(vector) for name, vector in made.items()} == {
        name: shape(vector) for name, vector in VECTORS.items()
    }


def shape(vector: Any) -> Any:
    if isinstance(vector, dict):
        return {name: shape(value) for name, value in vector.items()}
    return [shape(value) for value in vector] if isinstance(vector, list) else type(vector)


# Keys, framing, study ----------------------------------------------------------------------------


def test_every_vector_says_what_it_is() -> None:
    for name, vector in VECTORS.items():
        entries = vector if isinstance(vector, list) else [vector]
        if name != "note":
            assert all(entry["note"] for entry in entries), name


def test_the_study_is_the_hash_of_its_file_and_lists_the_keys() -> None:
    assert STUDY.identity.hex() == VECTORS["study"]["identity"]
    assert STUDY.identity == sha256(VECTORS["study"]["file"].encode()).digest()
    for name, key in KEYS.items():
        assert key.public == public_of(name)


@pytest.mark.parametrize("vector", VECTORS["framing"], ids=lambda vector: vector["note"])
def test_parts_are_framed_with_their_lengths(vector: Vector) -> None:
    parts = [bytes.fromhex(part) for part in vector["parts"]]
    assert framed(vector["purpose"], *parts).hex() == vector["framed"]


@pytest.mark.parametrize("party", ["mix-1", "mix-2", "server"])
def test_public_sealing_keys_follow_from_the_private_ones(party: str) -> None:
    for which, halves in VECTORS["sealing_keys"][party].items():
        assert seal_key(party, which).public.hex() == halves["public"]


@pytest.mark.parametrize("name", ["mix-1", "mix-2", "without_gate"])
def test_fingerprints_of_round_keys(name: str) -> None:
    vector = VECTORS["round_keys"][name]
    keys = round_pb2.RoundKeys.FromString(bytes.fromhex(vector["message"]))
    assert hexed(keys) == vector["message"]
    assert round_keys.fingerprint(keys).hex() == vector["fingerprint"]
    independent = b"silomix/v1/round-keys\0"
    for part in (keys.seal, keys.release):
        independent += len(part).to_bytes(8, "big") + part
    assert sha256(independent).hexdigest() == vector["fingerprint"]


# The descriptor ----------------------------------------------------------------------------------


def test_the_descriptor_is_encoded_and_signed_as_before() -> None:
    keys = AttemptKeys(
        server=bytes.fromhex(DESCRIPTOR["server_key"]),
        mixes=tuple(bytes.fromhex(key) for key in DESCRIPTOR["mix_keys"]),
        token=bytes.fromhex(DESCRIPTOR["token_key"]),
    )
    issued = issue(
        STUDY,
        DESCRIPTOR["round"],
        DESCRIPTOR["attempt"],
        bytes.fromhex(DESCRIPTOR["query"]),
        keys,
        KEYS["server"],
    )
    assert issued.encoded.hex() == DESCRIPTOR["encoded"]
    assert issued.digest.hex() == DESCRIPTOR["digest"]
    assert hexed(issued.to_wire()) == DESCRIPTOR["signed"]
    assert checked_descriptor() == issued


def test_the_descriptor_names_the_keys_of_the_vectors() -> None:
    server = bytes.fromhex(VECTORS["sealing_keys"]["server"]["seal"]["public"])
    assert sha256(server).hexdigest() == DESCRIPTOR["server_key"]
    fingerprints = [VECTORS["round_keys"][name]["fingerprint"] for name in ("mix-1", "mix-2")]
    assert fingerprints == DESCRIPTOR["mix_keys"]
    assert DESCRIPTOR["token_key"] == VECTORS["tokens"]["public_key"]


@pytest.mark.parametrize("vector", VECTORS["silo_bitmaps"], ids=lambda vector: vector["bits"])
def test_bitmaps_of_silos(vector: Vector) -> None:
    silos, participants, number = vector["roster"], vector["participants"], vector["round"]
    parties = make_parties(silos=silos, minimum=1, participants=participants)
    assert parties.study.identity.hex() == vector["study"]
    made = make_round(parties.study, parties.keys["server"], number).descriptor
    assert [parties.roster.index(name) for name in made.silos] == vector["asked"]
    assert round_pb2.RoundDescriptor.FromString(made.encoded).silos.hex() == vector["bits"]
    places = asked_places(bytes.fromhex(vector["study"]), number, silos, participants, Draw.TURNS)
    assert sorted(places) == vector["asked"]


# Signatures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", SIGNATURES, ids=lambda vector: vector["note"])
def test_every_signature_is_over_its_framed_parts(vector: Vector) -> None:
    parts = [bytes.fromhex(part) for part in vector["parts"].values()]
    assert framed(vector["purpose"], *parts).hex() == vector["framed"]
    assert KEYS[vector["signer"]].sign(vector["purpose"], *parts).hex() == vector["signature"]
    signature, signed = bytes.fromhex(vector["signature"]), bytes.fromhex(vector["framed"])
    Ed25519PublicKey.from_public_bytes(public_of(vector["signer"])).verify(signature, signed)
    assert vector["signature"] in vector["message"]


def test_there_is_a_vector_for_every_purpose() -> None:
    assert {vector["purpose"] for vector in SIGNATURES} == {
        "descriptor",
        "key-list",
        "report",
        "receipt",
        "batch",
        "commitment",
        "confirmation",
        "abandonment",
        "complaint",
        "tokens",
        "ledger-height",
        "void",
        "closing",
    }


def test_a_key_list_is_made_and_taken_as_before() -> None:
    keys = round_pb2.RoundKeys.FromString(bytes.fromhex(VECTORS["round_keys"]["mix-1"]["message"]))
    made = round_keys.sign_list(STUDY, 2, 3, [keys], KEYS["mix-1"])
    assert hexed(made) == stored("key-list")
    round_keys.check_list(message("key-list"), STUDY, STUDY.mixes[0])


def test_a_submission_is_verified_as_before() -> None:
    header = message("report")
    report = sha256(b"an onion").digest()
    assert (header.digest, header.bytes) == (D, len(b"an onion"))
    verify(public_of("silo-2"), header.signature, "report", D, report)


def test_a_height_is_made_and_taken_as_before() -> None:
    mark = sha256(b"a head").digest()
    made = heights.sign_height("silo-2", (1_794_830_400_000, 12), mark, KEYS["silo-2"])
    assert hexed(made.to_wire()) == stored("ledger-height")
    assert heights.check_height(message("ledger-height"), "silo-2", public_of("silo-2")) == made
    assert hexed(message("report").height) == stored("ledger-height")


def resigned(statement: round_pb2.HopStatement, hop: int) -> round_pb2.HopStatement:
    copy = round_pb2.HopStatement.FromString(statement.SerializeToString())
    copy.ClearField("signature")
    return statements.sign_hop(D, copy, KEYS[f"mix-{hop + 1}"])


def test_hop_statements_are_made_and_taken_as_before() -> None:
    forwarded, aborted = message("batch", 0), message("batch", 1)
    assert hexed(resigned(forwarded, 0)) == stored("batch", 0)
    assert hexed(resigned(aborted, 1)) == stored("batch", 1)
    statements.check_chain([forwarded, aborted], checked_descriptor(), STUDY, 2)


def test_receipts_confirmations_and_abandonments_are_made_and_taken_as_before() -> None:
    report, listed = sha256(b"an onion").digest(), bytes.fromhex(VECTORS["committed"]["list"])
    made: dict[str, Message] = {
        "receipt": statements.sign_receipt(D, 2, report, KEYS["mix-1"]),
        "confirmation": statements.sign_confirmation(D, listed, 2, KEYS["silo-2"]),
        "abandonment": statements.sign_abandonment(D, "mix-2 ist müde", KEYS["mix-1"]),
    }
    for purpose, content in made.items():
        assert hexed(content) == stored(purpose), purpose
    statements.check_receipt(message("receipt"), D, 2, report, STUDY)
    list_hash = sha256(listed).digest()
    confirmation = message("confirmation")
    assert statements.check_confirmation(confirmation, D, list_hash, STUDY) == "silo-2"
    second = statements.sign_abandonment(D, "", KEYS["mix-2"])
    statements.check_abandoned([message("abandonment"), second], D, STUDY)


def test_what_is_said_about_a_void_round_is_made_and_taken_as_before() -> None:
    void = VECTORS["void"]
    ending = round_pb2.Ending.FromString(bytes.fromhex(void["message"]))
    told = bytes.fromhex(void["disclosure"])
    made = statements.sign_voided(D, "the list is too short", told, KEYS["mix-1"])
    assert made == ending
    assert hexed(ending.voided) == stored("void", 0)
    descriptor, statement = checked_descriptor(), message("batch", 0)
    found = disclosed(ending, statement, descriptor, STUDY)
    assert [silo for silo, _ in found.senders] == void["senders"]
    assert list(found.origins) == void["origins"]
    second = statements.sign_voided(D, "restarted", b"", KEYS["mix-2"])
    assert hexed(second.voided) == stored("void", 1)
    assert statements.is_ended([ending, second], D, STUDY)
    uncertain = statements.sign_voided(D, "restarted", b"", KEYS["mix-2"], uncertain=True)
    assert hexed(uncertain.voided) == stored("void", 2)
    assert not statements.is_ended([ending, uncertain], D, STUDY)


def test_a_round_is_closed_as_before() -> None:
    for place, void in enumerate((False, True)):
        made = statements.sign_closing(D, (), KEYS["server"], void=void)
        assert hexed(made) == stored("closing", place)
        statements.check_closing(made, STUDY)


def committed() -> channel_pb2.RoundCommitted:
    return channel_pb2.RoundCommitted.FromString(bytes.fromhex(VECTORS["committed"]["message"]))


def test_a_list_is_committed_to_by_every_mix_as_before() -> None:
    found, listed = committed(), bytes.fromhex(VECTORS["committed"]["list"])
    list_hash = sha256(listed).digest()
    for place, mix in enumerate(STUDY.mixes):
        signature = statements.sign_commitment(D, list_hash, KEYS[mix.name])
        assert signature == message("commitment", place).signature == found.signatures[place]
        statements.check_commitment(signature, D, list_hash, mix)
    assert (found.digest, found.list) == (D, listed)
    assert hexed(found) == VECTORS["committed"]["message"]
    statements.check_committed(found, STUDY)


def test_a_complaint_is_made_and_taken_as_before() -> None:
    made = complaints.sign_complaint(
        checked_descriptor(), 2, message("receipt"), committed(), KEYS["silo-2"]
    )
    assert hexed(made) == stored("complaint")
    found = complaints.check_complaint(message("complaint"), STUDY)
    assert found == complaints.ComplaintFinding("silo-2", 3, None)


def test_the_operator_s_copy_of_a_complaint_names_who_lost_the_report() -> None:
    vector = VECTORS["complaint_copy"]
    copy = channel_pb2.Complaint.FromString(bytes.fromhex(vector["message"]))
    assert [each.hex() for each in copy.trail] == vector["trail"]
    found = complaints.check_complaint(copy, STUDY)
    assert found == complaints.ComplaintFinding("silo-2", 3, vector["accused"])
    copy.ClearField("trail")
    copy.ClearField("chain")
    assert hexed(copy) == stored("complaint"), "nothing else is added to what was sent"


# Batches, tokens, reports ------------------------------------------------------------------------


def test_a_batch_travels_in_the_same_frames() -> None:
    vector = VECTORS["batch"]
    frames = [mix_pb2.BatchFrame.FromString(bytes.fromhex(each)) for each in vector["frames"]]
    reports = [bytes.fromhex(report) for report in vector["reports"]]
    chain = list(frames[0].header.chain)
    assert [hexed(each) for each in batches.frames(D, chain, reports)] == vector["frames"]
    statements.check_chain(chain, checked_descriptor(), STUDY, 2)
    assert chain[-1].output == b"".join(sha256(report).digest() for report in reports)
    came = [bytes.fromhex(digest) for digest in vector["first_input_digests"]]
    assert statements.input_of(came).hex() == vector["first_input"] == chain[0].input.hex()


def test_tokens_are_those_of_the_vectors() -> None:
    vector = {name: value for name, value in VECTORS["tokens"].items() if name != "note"}
    number = vector.pop("round")
    raw = {name: bytes.fromhex(value) for name, value in vector.items()}
    made = issuer(raw["seed"], STUDY.identity)
    assert made.public_key(number) == raw["public_key"]
    assert raw["token"] == raw["nonce"] + raw["output"]
    assert made.valid(number, Token.from_bytes(raw["token"]))
    assert made.evaluate(number, raw["blinded"])[:32] == raw["evaluated"]
    # from label and parts, by the functions of the RFC alone
    assert raw["key_info"] == (
        b"silomix/v1/token-key\0" + STUDY.identity + number.to_bytes(4, "big")
    )
    assert raw["input"] == b"silomix/v1/token\0" + raw["nonce"]
    pair = ristretto.derive_key_pair(raw["seed"], raw["key_info"])
    assert pair.public == raw["public_key"]
    assert ristretto.evaluate(pair, raw["input"]) == raw["output"]


def test_a_report_is_encoded_as_before() -> None:
    vector, mechanism = VECTORS["report"], STUDY.mechanism()
    encoded = bytes.fromhex(vector["encoded"])
    assert encode_report(np.array(vector["values"], dtype=np.int64), mechanism) == encoded
    assert list(decode_report(encoded, mechanism)) == vector["values"]
    assert encoded[:8] == b"SMR1" + bytes([vector["width"], 0, 0, 0])


# The onion ---------------------------------------------------------------------------------------


def infos() -> list[bytes]:
    made: Callable[[bytes, int, RoundDigest], bytes] = onion._info
    roles = [(b"mix", 0), (b"mix", 1), (b"server", 0), (b"release", 0), (b"release", 1)]
    return [made(role, hop, D) for role, hop in roles]


def test_the_info_of_every_layer() -> None:
    assert [info.hex() for info in infos()] == [
        layer["info"] for layer in VECTORS["onion"]["layers"]
    ]


def test_the_stored_onion_opens_hop_by_hop_to_its_payload() -> None:
    vector = VECTORS["onion"]
    left = bytes.fromhex(vector["sealed"])
    trail = []
    for hop, mix in enumerate(("mix-1", "mix-2")):
        assert len(left) == vector["layers"][hop]["bytes"]
        trail.append(sha256(left).hexdigest())
        left = onion.open_layer(left, seal_key(mix, "seal"), hop, D)
    trail.append(sha256(left).hexdigest())
    assert trail == vector["trail"]
    released = [seal_key(mix, "release") for mix in ("mix-1", "mix-2")]
    payload = open_gated(left, released, seal_key("server", "seal"), D, TOKEN_BYTES)
    assert payload.hex() == vector["payload"]
    assert payload.hex() == VECTORS["tokens"]["token"] + VECTORS["report"]["encoded"]


def test_the_stored_onion_opens_layer_by_layer_with_the_stored_infos() -> None:
    """As another implementation would: the key and info that each layer names, nothing else."""
    vector, token = VECTORS["onion"], b""
    left = bytes.fromhex(vector["sealed"])
    for layer in vector["layers"]:
        assert len(left) == layer["bytes"]
        key = seal_key(layer["opened_by"], layer["key"])
        left = onion._SUITE.decrypt(left, key.hpke, bytes.fromhex(layer["info"]))
        if layer["opened_by"] == "server":
            token, left = left[:96], left[96:]
    assert (token + left).hex() == vector["payload"]


def test_the_lengths_are_those_of_the_formula() -> None:
    vector = VECTORS["onion"]
    size = len(vector["payload"]) // 2
    lengths = [onion.onion_bytes(size, STUDY, hop) for hop in (0, 1, 2)]
    assert lengths == [layer["bytes"] for layer in vector["layers"][:3]]
