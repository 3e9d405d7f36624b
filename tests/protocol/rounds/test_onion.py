"""Onions: a layer opens at one place, in one attempt, with one key; all reports look alike."""

from hashlib import sha256

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.mechanism.report_format import encode_report, report_bytes
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey, UnusableKey
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.onion import (
    ENCAPSULATED_BYTES,
    LAYER_BYTES,
    UnopenableLayer,
    onion_bytes,
    open_at_server,
    open_gates,
    open_layer,
    seal,
)
from silomix_protocol.rounds.tokens import TOKEN_BYTES
from support.rounds import Round, make_parties, make_round, open_gated

OTHER_DIGEST = RoundDigest(bytes(range(32)))
REPORT = b"a report of some length"
REFUSAL = "a layer could not be opened"


def made(mixes: int = 2, *, gate: bool = True, tokens: bool = True) -> Round:
    parties = make_parties(mixes=mixes, gate=gate, tokens=tokens)
    return make_round(parties.study, parties.keys["server"])


ROUND = made()
FIRST, SECOND = (mix.seal for mix in ROUND.mixes)
GATES = ROUND.released
SEALED = ROUND.seal(REPORT)
GATED = open_layer(open_layer(SEALED.sealed, FIRST, 0, ROUND.digest), SECOND, 1, ROUND.digest)
SHAPES = pytest.mark.parametrize(
    ("mixes", "gate"), [(1, True), (1, False), (2, True), (2, False), (3, True), (4, True)]
)


def refusal(layer: bytes, key: SealKey, hop: int, digest: RoundDigest = ROUND.digest) -> str:
    with pytest.raises(UnopenableLayer) as raised:
        open_layer(layer, key, hop, digest)
    return str(raised.value)


def gate_refusal(
    gated: bytes, released: list[SealKey], server: SealKey, digest: RoundDigest = ROUND.digest
) -> str:
    with pytest.raises(UnopenableLayer) as raised:
        open_gated(gated, released, server, digest)
    return str(raised.value)


# Layers ------------------------------------------------------------------------------------------


@SHAPES
def test_each_mix_takes_off_one_layer_and_all_together_open_the_report(
    mixes: int, gate: bool
) -> None:
    """The trail is the digest of what each party sees; lengths are known beforehand at each hop."""
    round_ = made(mixes, gate=gate)
    onion = round_.seal(REPORT)
    layer, seen = onion.sealed, []
    for hop, mix in enumerate(round_.mixes):
        seen.append(sha256(layer).digest())
        assert len(layer) == onion_bytes(len(REPORT), round_.study, hop)
        layer = open_layer(layer, mix.seal, hop, round_.digest)
    seen.append(sha256(layer).digest())
    assert len(layer) == onion_bytes(len(REPORT), round_.study, mixes)
    assert onion.trail == tuple(seen)
    assert round_.open(layer) == REPORT


@SHAPES
@pytest.mark.parametrize("size", [0, 1, 400, 100_000])
def test_an_onion_is_as_long_as_the_formula_says(mixes: int, gate: bool, size: int) -> None:
    """A layer for each mix, each gate and the server: encapsulated key 1120, tag 16."""
    round_ = made(mixes, gate=gate)
    layers = mixes + (mixes if gate else 0) + 1
    assert LAYER_BYTES == 1136
    assert len(round_.seal(bytes(size)).sealed) == size + 1136 * layers
    assert onion_bytes(size, round_.study, 0) == size + 1136 * layers


@settings(deadline=None, max_examples=25)
@given(payload=st.binary(max_size=300))
def test_opening_undoes_sealing(payload: bytes) -> None:
    layer = ROUND.seal(payload).sealed
    for hop, mix in enumerate(ROUND.mixes):
        layer = open_layer(layer, mix.seal, hop, ROUND.digest)
    assert ROUND.open(layer) == payload


@settings(deadline=None, max_examples=25)
@given(values=st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=4))
def test_all_reports_of_a_round_have_the_same_length(values: list[int]) -> None:
    mechanism = ROUND.study.mechanism()
    report = encode_report(np.array(values, dtype=np.int64), mechanism)
    payload = ROUND.payload(report)
    assert len(payload) == TOKEN_BYTES + report_bytes(mechanism)
    assert len(ROUND.seal(payload).sealed) == onion_bytes(len(payload), ROUND.study, 0)


def test_sealing_twice_gives_nothing_in_common() -> None:
    one, two = ROUND.seal(REPORT), ROUND.seal(REPORT)
    assert not set(one.trail) & set(two.trail)
    layers = one.sealed, two.sealed
    for hop, mix in enumerate(ROUND.mixes):
        assert layers[0][:ENCAPSULATED_BYTES] != layers[1][:ENCAPSULATED_BYTES]
        assert layers[0][-64:] != layers[1][-64:]
        first, second = (open_layer(each, mix.seal, hop, ROUND.digest) for each in layers)
        layers = first, second
    assert layers[0][:ENCAPSULATED_BYTES] != layers[1][:ENCAPSULATED_BYTES]


def test_the_hpke_of_each_layer_is_that_of_rfc_9180() -> None:
    """Opened here without our code: suite, and info = label ‖ role ‖ hop ‖ D."""
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
    layer = SEALED.sealed
    for role, hop, key in [
        (b"mix", 0, FIRST),
        (b"mix", 1, SECOND),
        (b"server", 0, ROUND.server),
        (b"release", 0, GATES[0]),
        (b"release", 1, GATES[1]),
    ]:
        info = b"silomix/v1/onion\0" + role + b"\0" + bytes([0, hop]) + ROUND.digest
        with pytest.raises(InvalidTag):
            suite.decrypt(layer, key.hpke, info + b"\0")
        layer = suite.decrypt(layer, key.hpke, info)
    assert layer == REPORT


# Every layer is bound to role, hop, attempt and key ----------------------------------------------


def test_what_a_layer_is_opened_with_decides() -> None:
    """Wrong hop, attempt, key or role: the same refusal, so that it answers no questions."""
    sealed = SEALED.sealed
    inner = open_layer(sealed, FIRST, 0, ROUND.digest)
    messages = {
        refusal(sealed, FIRST, 1),
        refusal(sealed, FIRST, 0, OTHER_DIGEST),
        refusal(sealed, SECOND, 0),
        refusal(sealed, SealKey.generate(), 0),
        refusal(sealed[:-1], FIRST, 0),
        refusal(sealed + b"\0", FIRST, 0),
        refusal(b"", FIRST, 0),
        refusal(bytes(len(sealed)), FIRST, 0),
        refusal(inner, FIRST, 0),
        refusal(inner, SECOND, 0),
        refusal(inner, SECOND, 1, OTHER_DIGEST),
        refusal(GATED, SECOND, 1),
    }
    assert messages == {REFUSAL}


def test_the_layer_of_one_attempt_opens_in_no_other() -> None:
    parties = make_parties()
    server = parties.keys["server"]
    first = make_round(parties.study, server)
    again = make_round(parties.study, server, attempt=2)
    sealed = first.seal(REPORT).sealed
    assert refusal(sealed, first.mixes[0].seal, 0, again.digest) == REFUSAL


def test_a_key_in_another_role_opens_nothing() -> None:
    """Even with every secret at hand, a layer opens in its own role only."""
    same = SealKey.generate()
    keys = [round_pb2.RoundKeys(seal=same.public, release=same.public)] * 2
    sealed = seal(REPORT, same.public, keys, ROUND.digest).sealed
    assert gate_refusal(sealed, [], same) == REFUSAL  # a mix's layer as the server's
    assert gate_refusal(sealed, [same], same) == REFUSAL  # as a gate
    layer = open_layer(open_layer(sealed, same, 0, ROUND.digest), same, 1, ROUND.digest)
    for hop in (0, 1, 2):
        assert refusal(layer, same, hop) == REFUSAL  # the server's layer as a mix's
    closed = open_at_server(layer, same, ROUND.digest)
    for hop in (0, 1, 2):
        assert refusal(closed, same, hop) == REFUSAL  # a gate as a mix's layer
    assert gate_refusal(closed, [], same) == REFUSAL  # as the server's
    with pytest.raises(UnopenableLayer):
        open_gates(layer, [same, same], ROUND.digest)  # the server's layer as a gate
    assert open_gated(layer, [same, same], same, ROUND.digest) == REPORT


def test_the_gate_needs_every_mixs_release_key_in_order_and_the_servers() -> None:
    other = SealKey.generate()
    assert open_gated(GATED, GATES, ROUND.server, ROUND.digest) == REPORT
    for too_few in ([], GATES[:1]):
        closed = open_gated(GATED, too_few, ROUND.server, ROUND.digest)
        assert len(closed) == len(REPORT) + (len(GATES) - len(too_few)) * LAYER_BYTES
        assert REPORT not in closed
    messages = {
        gate_refusal(GATED, GATES[1:], ROUND.server),
        gate_refusal(GATED, GATES[::-1], ROUND.server),
        gate_refusal(GATED, [GATES[0], other], ROUND.server),
        gate_refusal(GATED, [other, GATES[1]], ROUND.server),
        gate_refusal(GATED, [FIRST, SECOND], ROUND.server),
        gate_refusal(GATED, GATES, other),
        gate_refusal(GATED, GATES, ROUND.server, OTHER_DIGEST),
    }
    assert messages == {REFUSAL}


def test_what_is_not_gated_is_read_before_the_gate_opens_and_nothing_else() -> None:
    """The token in front of the report: the server reads it, mixes do not."""
    keys = ROUND.server.public, ROUND.mix_keys
    onion = seal(b"token" + REPORT, *keys, ROUND.digest, ungated=5)
    assert len(onion.sealed) == onion_bytes(5 + len(REPORT), ROUND.study, 0)
    layer = onion.sealed
    for hop, mix in enumerate(ROUND.mixes):
        assert b"token" not in layer
        layer = open_layer(layer, mix.seal, hop, ROUND.digest)
    assert b"token" not in layer
    content = open_at_server(layer, ROUND.server, ROUND.digest)
    assert content[:5] == b"token"
    assert REPORT not in content
    assert open_gates(content[5:], GATES, ROUND.digest) == REPORT


def test_a_released_key_works_from_its_bytes() -> None:
    released = [SealKey.from_raw(key.raw) for key in GATES]
    assert open_gated(GATED, released, ROUND.server, ROUND.digest) == REPORT


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_no_bit_may_flip(data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(SEALED.sealed) - 1))
    bent = bytearray(SEALED.sealed)
    bent[bit // 8] ^= 1 << bit % 8
    assert refusal(bytes(bent), FIRST, 0) == REFUSAL


def test_the_bit_that_x25519_ignores_may_not_flip_either() -> None:
    """X25519 masks the top bit of a public key: if the KEM did not bind the ciphertext, a copy
    with that bit flipped would open too, under another encapsulated key, and count twice."""
    bent = bytearray(SEALED.sealed)
    bent[1088 + 31] ^= 0x80
    assert bytes(bent)[:ENCAPSULATED_BYTES] != SEALED.sealed[:ENCAPSULATED_BYTES]
    assert refusal(bytes(bent), FIRST, 0) == REFUSAL


LOW_ORDER_POINTS = [  # RFC 7748, section 6.1, and Curve25519's points of order 1, 4 and 8
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
]
POINTS = pytest.mark.parametrize("point", LOW_ORDER_POINTS, ids=bytes.hex)


@POINTS
def test_a_degenerate_encapsulated_point_is_an_unopenable_layer(point: bytes) -> None:
    bent = SEALED.sealed[:1088] + point + SEALED.sealed[1120:]
    assert refusal(bent, FIRST, 0) == REFUSAL


def test_copies_of_an_onion_share_the_encapsulated_key() -> None:
    copy = SEALED.sealed[:-1] + b"\0"
    assert SEALED.sealed[:ENCAPSULATED_BYTES] == copy[:ENCAPSULATED_BYTES] == SEALED.sealed[:1120]
    assert ENCAPSULATED_BYTES == 1120


# Keys that nothing can be sealed to --------------------------------------------------------------


@POINTS
@pytest.mark.parametrize("place", ["seal", "release", "server"])
def test_nothing_is_sealed_to_a_point_of_low_order(point: bytes, place: str) -> None:
    weak = SealKey.generate().public[:-32] + point
    keys, server = ROUND.mix_keys, ROUND.server.public
    if place == "server":
        server = weak
    else:
        setattr(keys[1], place, weak)
    with pytest.raises(UnusableKey, match="a sealing key of this round is not one"):
        seal(REPORT, server, keys, ROUND.digest)


@pytest.mark.parametrize("key", [b"x", bytes(1215), b"\xff" * 1216])
def test_nothing_is_sealed_to_bytes_that_are_no_key(key: bytes) -> None:
    with pytest.raises(UnusableKey):
        seal(REPORT, key, ROUND.mix_keys, ROUND.digest)
    broken = round_pb2.RoundKeys(seal=key, release=ROUND.server.public)
    with pytest.raises(UnusableKey):
        seal(REPORT, ROUND.server.public, [broken], ROUND.digest)
