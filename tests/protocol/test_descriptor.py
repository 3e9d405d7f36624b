"""The round descriptor: nothing in it may disagree with the study, whoever signed it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix.consortium import Consortium
from silomix_proto import round_pb2
from silomix_protocol.descriptor import (
    SUITE,
    VERSION,
    Descriptor,
    RefusedDescriptor,
    check,
    issue,
    study_of,
)
from silomix_protocol.keys import SigningKey, fingerprint
from support.consortia import make_consortium
from support.mixes import described, signer

ROSTER = ("silo-1", "silo-2", "silo-3", "silo-4")
Change = Callable[[round_pb2.RoundDescriptor], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder: Path = tmp_path_factory.mktemp("descriptor")
    return make_consortium(folder / "c", records=(40, 40, 40, 40), rounds=5, minimum_batch=3)


def signed(message: round_pb2.RoundDescriptor, key: SigningKey) -> round_pb2.SignedDescriptor:
    encoded = message.SerializeToString(deterministic=True)
    return round_pb2.SignedDescriptor(descriptor=encoded, signature=key.sign("descriptor", encoded))


def changed(descriptor: Descriptor, change: Change) -> round_pb2.RoundDescriptor:
    message = round_pb2.RoundDescriptor.FromString(descriptor.encoded)
    change(message)
    return message


def test_an_issued_descriptor_passes_the_check_unchanged(made: Consortium) -> None:
    issued = issue(made.study, 2, ROSTER, b"the query", signer(made, "server"))
    assert check(issued.to_wire(), made.study) == issued
    assert issued.study == study_of(issued.to_wire()) == made.study.identity
    assert (issued.round, issued.silos, issued.minimum_batch) == (2, ROSTER, 3)
    assert issued.query == sha256(b"the query").digest()
    assert issued.digest == sha256(issued.encoded).digest()


def test_an_issued_descriptor_says_what_the_study_says(made: Consortium) -> None:
    message = round_pb2.RoundDescriptor.FromString(described(made).encoded)
    study = made.study
    assert (message.version, message.suite, message.attempt) == (VERSION, SUITE, 1)
    assert (message.dimension, message.deadline_ms) == (study.task.dimension, 5000)
    assert message.server_key == fingerprint(study.server.seal_key)
    assert list(message.mix_keys) == [fingerprint(mix.seal_key) for mix in study.mixes]


@settings(deadline=None, max_examples=30)
@given(
    round_number=st.integers(1, 5),
    silos=st.permutations(ROSTER).flatmap(lambda order: st.integers(3, 4).map(lambda n: order[:n])),
    query=st.binary(max_size=40),
)
def test_every_round_and_enough_silos_in_any_order_round_trip(
    made: Consortium, round_number: int, silos: list[str], query: bytes
) -> None:
    issued = issue(made.study, round_number, tuple(silos), query, signer(made, "server"))
    assert check(issued.to_wire(), made.study) == issued
    assert issued.silos == tuple(sorted(silos))


def test_another_query_is_another_descriptor(made: Consortium) -> None:
    assert described(made, query=b"one").digest != described(made, query=b"two").digest


@dataclass(frozen=True)
class Case:
    """One way to change a descriptor, and what the refusal calls it."""

    field: str
    named: str
    change: Change

    def __str__(self) -> str:
        return f"{self.named}-{self.field}"


def cases() -> list[Case]:
    def put(field: str, value: object, named: str = "") -> Case:
        def change(message: round_pb2.RoundDescriptor) -> None:
            message.ClearField(field)
            if isinstance(value, list):
                getattr(message, field).extend(value)
            else:
                setattr(message, field, value)

        return Case(field, named or field, change)

    def flip(field: str) -> Case:
        def change(message: round_pb2.RoundDescriptor) -> None:
            value = bytearray(getattr(message, field))
            value[0] ^= 1
            setattr(message, field, bytes(value))

        return Case(field, field, change)

    def swap_mixes(message: round_pb2.RoundDescriptor) -> None:
        keys = list(message.mix_keys)[::-1]
        message.ClearField("mix_keys")
        message.mix_keys.extend(keys)

    def drop_mix(message: round_pb2.RoundDescriptor) -> None:
        del message.mix_keys[1]

    everyone = list(ROSTER)
    return [
        *(put("version", value) for value in (0, VERSION + 1)),
        *(put("suite", value) for value in ("", "X25519/HKDF-SHA256/AES-128-GCM")),
        put("study", b""),
        flip("study"),
        *(put("round", value) for value in (0, 6, 2**32 - 1)),
        *(put("attempt", value) for value in (0, 2)),
        *(put("dimension", value) for value in (0, 2, 4)),
        *(put("minimum_batch", value) for value in (0, 1, 2, 4)),
        *(put("deadline_ms", value) for value in (0, 4999, 5001)),
        put("silos", [*everyone, "silo-5"]),
        put("silos", ["mix-1", *everyone]),
        put("silos", everyone[::-1]),
        put("silos", ["silo-1", "silo-3", "silo-2"]),
        put("silos", ["silo-1", "silo-1", "silo-2", "silo-3"]),
        put("silos", ["silo-1", "silo-2"], named="enough silos"),
        put("silos", [], named="enough silos"),
        *(put("query", value) for value in (b"", bytes(31), bytes(33))),
        put("server_key", b""),
        flip("server_key"),
        put("mix_keys", []),
        Case("mix_keys", "mix_keys", swap_mixes),
        Case("mix_keys", "mix_keys", drop_mix),
    ]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_coordinator_cannot_sign_its_way_out_of_the_study(made: Consortium, case: Case) -> None:
    message = changed(described(made), case.change)
    with pytest.raises(RefusedDescriptor, match=rf"disagrees with the study: {case.named}$"):
        check(signed(message, signer(made, "server")), made.study)


def test_every_field_has_such_a_case() -> None:
    fields = set(round_pb2.RoundDescriptor.DESCRIPTOR.fields_by_name)
    assert {case.field for case in cases()} == fields


@pytest.mark.parametrize("case", cases(), ids=str)
def test_no_field_changes_under_the_old_signature(made: Consortium, case: Case) -> None:
    genuine = described(made)
    message = changed(genuine, case.change)
    forged = round_pb2.SignedDescriptor(
        descriptor=message.SerializeToString(deterministic=True), signature=genuine.signature
    )
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(forged, made.study)


@pytest.mark.parametrize("other", ["mix-1", "silo-1"])
def test_only_the_coordinators_signature_counts(made: Consortium, other: str) -> None:
    genuine = described(made)
    signature = signer(made, other).sign("descriptor", genuine.encoded)
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(replace(genuine, signature=signature).to_wire(), made.study)


def test_a_signature_of_the_coordinator_for_another_purpose_does_not_count(
    made: Consortium,
) -> None:
    genuine = described(made)
    signature = signer(made, "server").sign("closed", genuine.encoded)
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(replace(genuine, signature=signature).to_wire(), made.study)


def test_a_descriptor_of_another_study_is_refused(made: Consortium, tmp_path: Path) -> None:
    other = make_consortium(tmp_path / "other", records=(40, 40, 40, 40), minimum_batch=3)
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(described(other).to_wire(), made.study)


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"\x0a", b"\x4a\x02\xff\xfe"])
def test_bytes_that_are_no_descriptor_are_refused_signed_or_not(
    made: Consortium, content: bytes
) -> None:
    signature = signer(made, "server").sign("descriptor", content)
    wire = round_pb2.SignedDescriptor(descriptor=content, signature=signature)
    with pytest.raises(RefusedDescriptor, match="not a round descriptor"):
        check(wire, made.study)
    with pytest.raises(RefusedDescriptor, match="not a round descriptor"):
        study_of(wire)


@pytest.mark.parametrize(
    ("round_number", "silos"), [(0, ROSTER), (6, ROSTER), (1, ROSTER[:2]), (1, (*ROSTER, "silo-9"))]
)
def test_a_descriptor_that_nobody_would_accept_is_not_issued(
    made: Consortium, round_number: int, silos: tuple[str, ...]
) -> None:
    with pytest.raises(RefusedDescriptor):
        issue(made.study, round_number, silos, b"query", signer(made, "server"))
