"""Keys: a signature is for one purpose and one list of parts; private keys stay private."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.study.study import Study
from silomix_protocol.certificates.certificates import key_pem
from silomix_protocol.keys import (
    SEAL_KEY_BYTES,
    SEAL_PUBLIC_BYTES,
    ForgedSignature,
    SealKey,
    SigningKey,
    UnusableKey,
    check_public_keys,
    fingerprint,
    framed,
    generate_node_key,
    load_node_key,
    node_proof,
    node_public_bytes,
    number,
    sealing_public_key,
    verify,
    verify_node_proof,
    write_secret,
)
from support.rounds import make_parties

KEY = SigningKey.generate()
PARTS = st.lists(st.binary(max_size=12), max_size=4)


# Signatures -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(parts=PARTS)
def test_a_signature_verifies_over_what_was_signed(parts: list[bytes]) -> None:
    verify(KEY.public, KEY.sign("report", *parts), "report", *parts)


@settings(deadline=None)
@given(signed=PARTS, claimed=PARTS)
def test_a_signature_is_for_exactly_its_parts(signed: list[bytes], claimed: list[bytes]) -> None:
    signature = KEY.sign("report", *signed)
    if signed == claimed:
        verify(KEY.public, signature, "report", *claimed)
    else:
        with pytest.raises(ForgedSignature):
            verify(KEY.public, signature, "report", *claimed)


@settings(deadline=None)
@given(parts=st.lists(st.binary(min_size=1, max_size=8), min_size=2, max_size=4), data=st.data())
def test_a_byte_cannot_move_from_one_part_to_the_next(
    parts: list[bytes], data: st.DataObject
) -> None:
    signature = KEY.sign("batch", *parts)
    at = data.draw(st.integers(0, len(parts) - 2))
    moved = [*parts]
    moved[at], moved[at + 1] = parts[at][:-1], parts[at][-1:] + parts[at + 1]
    assert b"".join(moved) == b"".join(parts)
    with pytest.raises(ForgedSignature):
        verify(KEY.public, signature, "batch", *moved)


@pytest.mark.parametrize(
    ("signed", "claimed"), [("report", "receipt"), ("report", "repor"), ("batch", "batch2")]
)
def test_a_signature_is_for_one_purpose(signed: str, claimed: str) -> None:
    with pytest.raises(ForgedSignature, match=claimed):
        verify(KEY.public, KEY.sign(signed, b"x"), claimed, b"x")


def test_another_key_did_not_sign_it() -> None:
    with pytest.raises(ForgedSignature):
        verify(SigningKey.generate().public, KEY.sign("report", b"x"), "report", b"x")


@pytest.mark.parametrize("signature", [b"", b"short", bytes(64), bytes(65)])
def test_bytes_that_are_no_signature_are_forged(signature: bytes) -> None:
    with pytest.raises(ForgedSignature):
        verify(KEY.public, signature, "report", b"x")


@pytest.mark.parametrize("public", [b"", b"x" * 31, b"x" * 33, b"\xff" * 32])
def test_bytes_that_are_no_key_verify_nothing(public: bytes) -> None:
    with pytest.raises(ForgedSignature):
        verify(public, KEY.sign("report", b"x"), "report", b"x")


@settings(deadline=None)
@given(bit=st.integers(0, 511))
def test_no_bit_of_a_signature_may_flip(bit: int) -> None:
    signature = bytearray(KEY.sign("report", b"x"))
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ForgedSignature):
        verify(KEY.public, bytes(signature), "report", b"x")


def test_the_message_of_a_forgery_carries_no_data() -> None:
    with pytest.raises(ForgedSignature) as raised:
        verify(KEY.public, bytes(64), "report", b"canary")
    assert str(raised.value) == "the signature on this report is not valid"


# Key files --------------------------------------------------------------------------------------


def test_a_key_comes_back_from_its_file(tmp_path: Path) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "key")
    assert SigningKey.load(tmp_path / "key").public == key.public


def test_a_node_key_comes_back_from_its_file(tmp_path: Path) -> None:
    key = generate_node_key()
    write_secret(tmp_path / "node.key", key_pem(key))
    assert node_public_bytes(load_node_key(tmp_path / "node.key")) == node_public_bytes(key)


SAVERS: list[Callable[[Path], None]] = [
    lambda path: SigningKey.generate().save(path),
    lambda path: write_secret(path, key_pem(generate_node_key())),
    lambda path: write_secret(path, b"secret"),
]


@pytest.mark.parametrize("save", SAVERS)
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_can_read_a_key_file(
    save: Callable[[Path], None], umask: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        save(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("save", SAVERS)
def test_a_key_file_is_never_overwritten(save: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        save(path)
    assert path.read_bytes() == b"precious"


def test_a_key_is_not_written_through_a_planted_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        SigningKey.generate().save(tmp_path / "key")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601])
def test_a_key_open_to_others_is_refused_and_the_message_says_chmod(
    mode: int, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    SigningKey.generate().save(path)
    path.chmod(mode)
    with pytest.raises(UnusableKey, match=f"chmod 600 {path}"):
        SigningKey.load(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableKey, match=f"{tmp_path / 'key'}: No such file"):
        SigningKey.load(tmp_path / "key")


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda _: b""])
def test_a_key_file_of_another_length_is_refused(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    SigningKey.generate().save(tmp_path / "whole")
    write_secret(tmp_path / "key", change((tmp_path / "whole").read_bytes()))
    with pytest.raises(UnusableKey, match="expected"):
        SigningKey.load(tmp_path / "key")


def test_a_node_key_proves_what_it_signed_and_nothing_else() -> None:
    key = generate_node_key()
    proof, public = node_proof(key, b"ab", b""), key.public_key()
    signed = b"silomix/v1/node-key\0" + bytes(7) + b"\2ab" + bytes(8)
    public.verify(proof, signed, ec.ECDSA(hashes.SHA384()))
    verify_node_proof(public, proof, b"ab", b"")
    for parts in ((b"a", b"b"), (b"ab",), (b"", b"ab")):
        with pytest.raises(ForgedSignature):
            verify_node_proof(public, proof, *parts)
    with pytest.raises(ForgedSignature):
        verify_node_proof(generate_node_key().public_key(), proof, b"ab", b"")


def test_a_node_key_open_to_others_is_refused_for_that_reason(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    write_secret(path, key_pem(generate_node_key()))
    path.chmod(0o640)
    with pytest.raises(UnusableKey, match=f"chmod 600 {path}"):
        load_node_key(path)


def test_a_node_key_with_a_password_is_refused(tmp_path: Path) -> None:
    locked = generate_node_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    write_secret(tmp_path / "node.key", locked)
    with pytest.raises(UnusableKey, match="unencrypted"):
        load_node_key(tmp_path / "node.key")


def test_a_node_key_must_be_an_elliptic_curve_key(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_secret(tmp_path / "ed25519", other)
    write_secret(tmp_path / "noise", b"noise")
    with pytest.raises(UnusableKey, match="elliptic-curve"):
        load_node_key(tmp_path / "ed25519")
    with pytest.raises(UnusableKey, match="PEM"):
        load_node_key(tmp_path / "noise")


def test_the_repr_of_a_key_shows_no_secret(tmp_path: Path) -> None:
    sign, seal = SigningKey.generate(), SealKey.generate()
    sign.save(tmp_path / "key")
    assert f"{sign!r} {sign}" == "SigningKey() SigningKey()"
    assert f"{seal!r} {seal}" == "SealKey() SealKey()"
    assert len((tmp_path / "key").read_bytes()) == 32


# Sealing keys: made for one attempt of one round, handed over as 96 bytes when a gate opens ------


def test_a_sealing_key_comes_back_from_its_bytes() -> None:
    key = SealKey.generate()
    assert len(key.raw) == SEAL_KEY_BYTES == 96
    assert len(key.public) == SEAL_PUBLIC_BYTES == 1216
    assert SealKey.from_raw(key.raw).public == key.public
    assert sealing_public_key(key.public)


def test_the_public_half_is_that_of_seed_and_scalar() -> None:
    key = SealKey.generate()
    mlkem = MLKEM768PrivateKey.from_seed_bytes(key.raw[:64]).public_key().public_bytes_raw()
    x25519 = X25519PrivateKey.from_private_bytes(key.raw[64:]).public_key().public_bytes_raw()
    assert key.public == mlkem + x25519


@pytest.mark.parametrize("length", [0, 32, 64, 95, 97])
def test_a_private_sealing_key_has_one_length(length: int) -> None:
    with pytest.raises(UnusableKey, match="96"):
        SealKey.from_raw(bytes(length))


def test_a_sealing_key_has_no_file() -> None:
    assert not hasattr(SealKey, "save")
    assert not hasattr(SealKey, "load")


# What is signed ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(one=PARTS, two=PARTS, purposes=st.sampled_from(["ab", "abc"]))
def test_no_two_lists_of_parts_are_framed_alike(
    one: list[bytes], two: list[bytes], purposes: str
) -> None:
    same = one == two and purposes == "ab"
    assert (framed("ab", *one) == framed(purposes, *two)) == same


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1])
def test_a_number_is_signed_as_four_bytes(value: int) -> None:
    assert number(value) == value.to_bytes(4, "big")


@pytest.mark.parametrize("value", [-1, 2**32])
def test_no_number_wraps_around(value: int) -> None:
    with pytest.raises(OverflowError):
        number(value)


@pytest.fixture(scope="module")
def study() -> Study:
    return make_parties().study


# Public keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 32, 1215, 1217])
def test_a_sealing_key_has_one_length(length: int) -> None:
    with pytest.raises(UnusableKey, match="1216"):
        sealing_public_key(bytes(length))


def test_fingerprints_tell_keys_apart() -> None:
    keys = {SealKey.generate().public for _ in range(4)}
    assert len({fingerprint(key) for key in keys}) == len(keys) == 4


def test_a_study_with_a_key_that_is_none_is_refused_by_the_partys_name(study: Study) -> None:
    check_public_keys(study)
    silo, *silos = study.silos
    mix, *mixes = study.mixes
    broken = {
        "signing key of mix-1": replace(study, mixes=(replace(mix, sign_key=b"x"), *mixes)),
        "signing key of server": replace(study, server=replace(study.server, sign_key=b"")),
        "signing key of silo-0": replace(study, silos=(replace(silo, sign_key=b"x"), *silos)),
        "node key of silo-0": replace(study, silos=(replace(silo, node_key=b"x"), *silos)),
    }
    for message, wrong in broken.items():
        with pytest.raises(UnusableKey, match=message):
            check_public_keys(wrong)


UNKNOWN_ALGORITHM = bytes.fromhex("301a300d06092a864886f70d01017f0500030900" + "01" * 8)
UNKNOWN_CURVE = bytes.fromhex("3029301306072a8648ce3d020106082a8648ce3d03017f03120004" + "01" * 16)


@pytest.mark.parametrize("key", [UNKNOWN_ALGORITHM, UNKNOWN_CURVE], ids=["algorithm", "curve"])
def test_a_node_key_of_an_unknown_kind_is_refused_by_the_partys_name(
    key: bytes, study: Study
) -> None:
    silo, *silos = study.silos
    wrong = replace(study, silos=(replace(silo, node_key=key), *silos))
    with pytest.raises(UnusableKey, match="node key of silo-0"):
        check_public_keys(wrong)
