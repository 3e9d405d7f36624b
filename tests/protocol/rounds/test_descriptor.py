"""The round descriptor: nothing in it may disagree with the study, whoever signed it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.study.study import Study
from silomix_proto import round_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import (
    MOST_ATTEMPTS,
    SUITE,
    VERSION,
    AttemptKeys,
    Descriptor,
    RefusedDescriptor,
    check,
    issue,
    study_of,
)
from support.rounds import make_parties, make_round

Change = Callable[[round_pb2.RoundDescriptor], None]

PARTIES = make_parties()
STUDY, SERVER = PARTIES.study, PARTIES.keys["server"]
ROSTER = PARTIES.roster
GENUINE = make_round(STUDY, SERVER).descriptor
WITHOUT_TOKENS = make_parties(tokens=False)
KEYS = AttemptKeys(server=bytes(32), mixes=(b"a" * 32, b"b" * 32), token=b"t" * 32)


def signed(message: round_pb2.RoundDescriptor) -> round_pb2.SignedDescriptor:
    return signed_bytes(message.SerializeToString(deterministic=True))


def signed_bytes(encoded: bytes, key: SigningKey = SERVER) -> round_pb2.SignedDescriptor:
    return round_pb2.SignedDescriptor(descriptor=encoded, signature=key.sign("descriptor", encoded))


def changed(descriptor: Descriptor, change: Change) -> round_pb2.RoundDescriptor:
    message = round_pb2.RoundDescriptor.FromString(descriptor.encoded)
    change(message)
    return message


def test_an_issued_descriptor_passes_the_check_unchanged() -> None:
    issued = issue(STUDY, 2, 3, b"the query", KEYS, SERVER)
    assert check(issued.to_wire(), STUDY) == issued
    assert issued.study == study_of(issued.to_wire()) == STUDY.identity
    assert (issued.round, issued.attempt, issued.silos) == (2, 3, ROSTER)
    assert (issued.minimum_batch, issued.deadline_s) == (3, 5.0)
    assert issued.query == sha256(b"the query").digest()
    assert (issued.server_key, issued.mix_keys) == (KEYS.server, KEYS.mixes)
    assert issued.token_key == KEYS.token
    assert issued.digest == sha256(issued.encoded).digest()


def test_an_issued_descriptor_says_what_the_study_says() -> None:
    message = round_pb2.RoundDescriptor.FromString(GENUINE.encoded)
    assert (message.version, message.suite, message.study) == (VERSION, SUITE, STUDY.identity)
    assert (message.round, message.attempt) == (1, 1)
    assert (message.dimension, message.deadline_ms) == (STUDY.task.dimension, 5000)
    assert (message.minimum_batch, message.silos) == (3, b"\x0f")


@settings(deadline=None, max_examples=30)
@given(
    round_number=st.integers(1, 5),
    attempt=st.integers(1, MOST_ATTEMPTS),
    query=st.binary(max_size=40),
)
def test_every_attempt_round_trips(round_number: int, attempt: int, query: bytes) -> None:
    issued = issue(STUDY, round_number, attempt, query, KEYS, SERVER)
    assert check(issued.to_wire(), STUDY) == issued
    assert issued.silos == ROSTER


def test_everything_that_makes_an_attempt_another_one_gives_another_digest() -> None:
    base: dict[str, object] = {
        "round_number": 1, "attempt": 1, "query": b"query", "keys": KEYS
    }  # fmt: skip
    others: list[dict[str, object]] = [
        {},
        {"round_number": 2},
        {"attempt": 2},
        {"query": b"other"},
        {"keys": replace(KEYS, server=b"s" * 32)},
        {"keys": replace(KEYS, mixes=KEYS.mixes[::-1])},
        {"keys": replace(KEYS, token=b"u" * 32)},
    ]
    digests = {issue(STUDY, **(base | other), sign_key=SERVER).digest for other in others}  # type: ignore[arg-type]
    assert len(digests) == len(others)


# The bitmap of silos -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    roster=st.sampled_from([(1, 1), (7, 3), (8, 8), (9, 1), (16, 15), (17, 9)]),
    round_number=st.integers(1, 5),
)
def test_the_bitmap_names_the_silos_that_the_study_prescribes(
    roster: tuple[int, int], round_number: int
) -> None:
    silos, participants = roster
    parties = ROSTERS[roster]
    issued = issue(parties.study, round_number, 1, b"", KEYS, parties.keys["server"])
    bits = round_pb2.RoundDescriptor.FromString(issued.encoded).silos
    assert len(bits) == -(-silos // 8)
    found = [place for place in range(8 * len(bits)) if bits[place // 8] >> place % 8 & 1]
    assert len(found) == participants
    assert issued.silos == tuple(f"silo-{place}" for place in found)
    assert issued.silos == parties.study.asked(round_number)


ROSTERS = {
    (silos, asked): make_parties(silos=silos, minimum=1, participants=asked)
    for silos, asked in [(1, 1), (7, 3), (8, 8), (9, 1), (16, 15), (17, 9)]
}


@pytest.mark.parametrize("round_number", range(1, 6))
def test_no_other_set_of_silos_can_be_asked(round_number: int) -> None:
    """A server that could leave one out would learn from the difference what it said."""
    parties = ROSTERS[7, 3]
    server, study = parties.keys["server"], parties.study
    genuine = make_round(study, server, round_number).descriptor
    prescribed = round_pb2.RoundDescriptor.FromString(genuine.encoded).silos
    accepted = []
    for number in range(2**7):
        bits = bytes([number])
        message = changed(genuine, lambda message, bits=bits: setattr(message, "silos", bits))  # type: ignore[misc]
        with suppress(RefusedDescriptor):
            check(signed_bytes(message.SerializeToString(), server), study)
            accepted.append(bits)
    assert accepted == [prescribed]


@pytest.mark.parametrize("round_number", [0, 6, 2**32 - 1])
def test_a_round_outside_the_study_is_refused_where_rounds_ask_some_silos(
    round_number: int,
) -> None:
    parties = ROSTERS[7, 3]
    genuine = make_round(parties.study, parties.keys["server"]).descriptor
    message = changed(genuine, lambda message: setattr(message, "round", round_number))
    with pytest.raises(RefusedDescriptor, match="disagrees with the study: round, silos"):
        check(signed_bytes(message.SerializeToString(), parties.keys["server"]), parties.study)


@pytest.mark.parametrize(
    ("silos", "bits"),
    [
        (4, b"\x1f"),
        (4, b"\x8f"),
        (4, b"\x0f\x00"),
        (4, b"\x0f\x01"),
        (9, b"\xff"),
        (9, b"\xff\x03"),
        (9, b"\xff\x81"),
        (9, b"\xff\x01\x00"),
        (8, b"\xff" * 1000),
    ],
)
def test_a_bitmap_with_bits_or_bytes_beyond_the_roster_is_refused(silos: int, bits: bytes) -> None:
    """Otherwise one set of silos would have many descriptors, each with another D."""
    parties = make_parties(silos=silos)
    genuine = make_round(parties.study, parties.keys["server"]).descriptor
    message = changed(genuine, lambda message: setattr(message, "silos", bits))
    wire = signed_bytes(message.SerializeToString(), parties.keys["server"])
    with pytest.raises(RefusedDescriptor, match=r"disagrees with the study: silos$"):
        check(wire, parties.study)


# Every field -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One way to change a descriptor, and what the refusal calls it."""

    field: str
    named: str
    change: Change

    def __str__(self) -> str:
        return f"{self.named}-{self.field}"


def put(field: str, value: object, named: str = "") -> Case:
    def change(message: round_pb2.RoundDescriptor) -> None:
        message.ClearField(field)
        if isinstance(value, list):
            getattr(message, field).extend(value)
        else:
            setattr(message, field, value)

    return Case(field, named or field, change)


CASES = [
    *(put("version", value) for value in (0, VERSION + 1)),
    *(put("suite", value) for value in ("", "X25519/HKDF-SHA256/AES-128-GCM")),
    *(put("study", value) for value in (b"", bytes(32), STUDY.identity + b"\0")),
    *(put("round", value, named="round, silos") for value in (0, 6, 2**32 - 1)),
    *(put("attempt", value) for value in (0, MOST_ATTEMPTS + 1, 2**32 - 1)),
    *(put("dimension", value) for value in (0, 3, 5)),
    *(put("minimum_batch", value) for value in (0, 1, 2, 4)),
    *(put("deadline_ms", value) for value in (0, 4999, 5001)),
    put("silos", b"\x1f"),
    put("silos", b"\x0f\0"),
    *(put("silos", value) for value in (b"\x07", b"\x03", b"\x00", b"")),
    *(put("query", value) for value in (b"", bytes(31), bytes(33))),
    *(put("server_key", value) for value in (b"", bytes(31), bytes(1216))),
    put("mix_keys", []),
    put("mix_keys", [bytes(32)]),
    put("mix_keys", [bytes(32)] * 3),
    put("mix_keys", [bytes(32), bytes(31)]),
    put("mix_keys", [bytes(1216), bytes(32)]),
    *(put("token_key", value) for value in (b"", bytes(31), bytes(33))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_coordinator_cannot_sign_its_way_out_of_the_study(case: Case) -> None:
    message = changed(GENUINE, case.change)
    with pytest.raises(RefusedDescriptor, match=rf"disagrees with the study: {case.named}$"):
        check(signed(message), STUDY)


def test_every_field_has_such_a_case() -> None:
    fields = set(round_pb2.RoundDescriptor.DESCRIPTOR.fields_by_name)
    assert {case.field for case in CASES} == fields


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_field_changes_under_the_old_signature(case: Case) -> None:
    message = changed(GENUINE, case.change)
    forged = round_pb2.SignedDescriptor(
        descriptor=message.SerializeToString(deterministic=True), signature=GENUINE.signature
    )
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(forged, STUDY)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_bit_of_a_descriptor_or_its_signature_may_flip(data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["descriptor", "signature"]))
    wire = GENUINE.to_wire()
    content = bytearray(getattr(wire, part))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    setattr(wire, part, bytes(content))
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(wire, STUDY)


def test_a_study_without_tokens_takes_no_token_key() -> None:
    study, server = WITHOUT_TOKENS.study, WITHOUT_TOKENS.keys["server"]
    genuine = make_round(study, server).descriptor
    assert genuine.token_key == b""
    message = changed(genuine, put("token_key", bytes(32)).change)
    with pytest.raises(RefusedDescriptor, match=r"disagrees with the study: token_key$"):
        check(signed_bytes(message.SerializeToString(), server), study)


# One encoding ------------------------------------------------------------------------------------


def reordered(encoded: bytes) -> bytes:
    """The same fields, the first (version: tag 0x08 and one byte) behind all others."""
    return encoded[2:] + encoded[:2]


@pytest.mark.parametrize(
    "change",
    [
        lambda encoded: encoded + b"\xa0\x06\x01",  # field 100
        lambda encoded: encoded + encoded[:2],  # the version twice
        lambda encoded: b"\x08\x81\x00" + encoded[2:],  # the version in two bytes
        reordered,
    ],
    ids=["unknown field", "field twice", "long varint", "other order"],
)
def test_a_descriptor_has_one_encoding(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RefusedDescriptor, match=r"disagrees with the study: encoding$"):
        check(signed_bytes(change(GENUINE.encoded)), STUDY)


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"\x0a", b"\x12\x02\xff\xfe"])
def test_bytes_that_are_no_descriptor_are_refused_signed_or_not(content: bytes) -> None:
    wire = signed_bytes(content)
    with pytest.raises(RefusedDescriptor, match="not a round descriptor"):
        check(wire, STUDY)
    with pytest.raises(RefusedDescriptor, match="not a round descriptor"):
        study_of(wire)


# Who signed it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["mix-1", "silo-1"])
def test_only_the_coordinators_signature_counts(other: str) -> None:
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(signed_bytes(GENUINE.encoded, PARTIES.keys[other]), STUDY)


def test_a_signature_of_the_coordinator_for_another_purpose_does_not_count() -> None:
    signature = SERVER.sign("commitment", GENUINE.encoded)
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(replace(GENUINE, signature=signature).to_wire(), STUDY)


def other_study() -> Study:
    return make_parties(name="other").study


def test_a_descriptor_of_another_study_is_refused() -> None:
    with pytest.raises(RefusedDescriptor, match="signature"):
        check(GENUINE.to_wire(), other_study())


@pytest.mark.parametrize(
    ("round_number", "attempt"), [(0, 1), (6, 1), (1, 0), (1, MOST_ATTEMPTS + 1)]
)
def test_a_descriptor_that_nobody_would_accept_is_not_issued(
    round_number: int, attempt: int
) -> None:
    with pytest.raises(RefusedDescriptor):
        issue(STUDY, round_number, attempt, b"query", KEYS, SERVER)
