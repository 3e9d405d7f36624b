"""Onions: a layer opens at one place, in one round, with one key; all reports look alike."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix.consortium import Consortium
from silomix_core.report import encode_report, report_bytes
from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.keys import SealKey
from silomix_protocol.onion import (
    LAYER_BYTES,
    SERVER_HOP,
    Sealer,
    UnopenableLayer,
    encapsulated_key,
    onion_bytes,
    open_layer,
)
from support.consortia import make_consortium
from support.mixes import opener

DIGEST = RoundDigest(bytes(range(32)))
OTHER_DIGEST = RoundDigest(bytes(range(1, 33)))
REPORT = b"a report of some length"


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Consortium]:
    """Consortia with 1 to 4 mixes."""
    folder: Path = tmp_path_factory.mktemp("onion")
    return {mixes: make_consortium(folder / str(mixes), mixes=mixes) for mixes in range(1, 5)}


@pytest.fixture(scope="module")
def made(chains: dict[int, Consortium]) -> Consortium:
    return chains[2]


@pytest.fixture(scope="module")
def onion(made: Consortium) -> bytes:
    return Sealer(made.study).seal(REPORT, DIGEST)[0]


@pytest.fixture(scope="module")
def first_key(made: Consortium) -> SealKey:
    return opener(made, "mix-1")


def refusal(layer: bytes, key: SealKey, hop: int, digest: RoundDigest) -> str:
    with pytest.raises(UnopenableLayer) as raised:
        open_layer(layer, key, hop, digest)
    return str(raised.value)


@pytest.mark.parametrize("mixes", [1, 2, 3, 4])
def test_each_mix_takes_off_one_layer_and_the_server_finds_the_report(
    chains: dict[int, Consortium], mixes: int
) -> None:
    made = chains[mixes]
    layer, inner = Sealer(made.study).seal(REPORT, DIGEST)
    for hop, mix in enumerate(made.study.mixes):
        assert len(layer) == onion_bytes(len(REPORT), hop, mixes)
        layer = open_layer(layer, opener(made, mix.name), hop, DIGEST)
    assert layer == inner
    assert len(layer) == onion_bytes(len(REPORT), mixes, mixes)
    assert open_layer(layer, opener(made, "server"), SERVER_HOP, DIGEST) == REPORT


@settings(deadline=None, max_examples=25)
@given(report=st.binary(max_size=300))
def test_opening_undoes_sealing(made: Consortium, report: bytes) -> None:
    layer, _ = Sealer(made.study).seal(report, DIGEST)
    for hop, name in ((0, "mix-1"), (1, "mix-2"), (SERVER_HOP, "server")):
        layer = open_layer(layer, opener(made, name), hop, DIGEST)
    assert layer == report


@pytest.mark.parametrize("size", [0, 1, 400, 100_000])
@pytest.mark.parametrize("mixes", [1, 4])
def test_an_onion_is_as_long_as_the_formula_says(
    chains: dict[int, Consortium], mixes: int, size: int
) -> None:
    """One layer for each mix and one for the server: encapsulated key 1120, tag 16."""
    sealed, inner = Sealer(chains[mixes].study).seal(bytes(size), DIGEST)
    assert len(sealed) == onion_bytes(size, 0, mixes) == size + 1136 * (mixes + 1)
    assert len(inner) == onion_bytes(size, mixes, mixes) == size + 1136
    assert LAYER_BYTES == 1136


@settings(deadline=None, max_examples=25)
@given(values=st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=3))
def test_all_reports_of_a_round_have_the_same_length(made: Consortium, values: list[int]) -> None:
    mechanism = made.study.mechanism()
    report = encode_report(np.array(values, dtype=np.int64), mechanism)
    sealed, inner = Sealer(made.study).seal(report, DIGEST)
    assert len(sealed) == onion_bytes(report_bytes(mechanism), 0, 2)
    assert len(inner) == onion_bytes(report_bytes(mechanism), 2, 2)


def test_sealing_twice_gives_nothing_in_common(made: Consortium) -> None:
    sealer = Sealer(made.study)
    (one, inner_one), (two, inner_two) = (sealer.seal(REPORT, DIGEST) for _ in range(2))
    assert one != two
    assert encapsulated_key(one) != encapsulated_key(two)
    assert encapsulated_key(inner_one) != encapsulated_key(inner_two)
    assert one[-64:] != two[-64:]


def test_what_a_layer_is_opened_with_decides(made: Consortium, onion: bytes) -> None:
    """Wrong hop, round, key or role: the same refusal, so that it answers no questions."""
    first, second = opener(made, "mix-1"), opener(made, "mix-2")
    messages = {
        refusal(onion, first, 1, DIGEST),
        refusal(onion, first, SERVER_HOP, DIGEST),
        refusal(onion, first, 0, OTHER_DIGEST),
        refusal(onion, second, 0, DIGEST),
        refusal(onion, SealKey.generate(), 0, DIGEST),
        refusal(onion[:-1], first, 0, DIGEST),
        refusal(onion + b"\0", first, 0, DIGEST),
        refusal(b"", first, 0, DIGEST),
        refusal(bytes(len(onion)), first, 0, DIGEST),
        refusal(open_layer(onion, first, 0, DIGEST), first, 0, DIGEST),
    }
    assert messages == {"a layer could not be opened"}


def test_the_servers_layer_is_not_a_mixs(made: Consortium) -> None:
    """Even a mix that holds the server's key opens the inner layer only in the server's role."""
    _, inner = Sealer(made.study).seal(REPORT, DIGEST)
    server = opener(made, "server")
    for hop in (0, 1, 2):
        refusal(inner, server, hop, DIGEST)
    assert open_layer(inner, server, SERVER_HOP, DIGEST) == REPORT


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_no_bit_may_flip(onion: bytes, first_key: SealKey, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(onion) - 1))
    bent = bytearray(onion)
    bent[bit // 8] ^= 1 << bit % 8
    assert refusal(bytes(bent), first_key, 0, DIGEST) == "a layer could not be opened"


def test_the_bit_that_x25519_ignores_may_not_flip_either(onion: bytes, first_key: SealKey) -> None:
    """X25519 masks the top bit of a public key: if the KEM did not bind the ciphertext, a copy
    with that bit flipped would open too, under another encapsulated key, and count twice."""
    bent = bytearray(onion)
    bent[1088 + 31] ^= 0x80
    assert encapsulated_key(bytes(bent)) != encapsulated_key(onion)
    assert refusal(bytes(bent), first_key, 0, DIGEST) == "a layer could not be opened"


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), b"\xff" * 32])
def test_a_degenerate_encapsulated_point_is_an_unopenable_layer(
    onion: bytes, first_key: SealKey, point: bytes
) -> None:
    bent = onion[:1088] + point + onion[1120:]
    assert refusal(bent, first_key, 0, DIGEST) == "a layer could not be opened"


def test_copies_of_an_onion_share_the_encapsulated_key(onion: bytes) -> None:
    assert encapsulated_key(onion) == encapsulated_key(onion[:-1] + b"\0") == onion[:1120]
