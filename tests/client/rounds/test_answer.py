"""A hostile server at the silo's desk: what is refused costs nothing, what is answered is exact."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import NotApproved, RefusedQuery
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import MOST_SAME
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy, StudyId
from silomix_lab.consortium.create import Consortium
from silomix_proto import round_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import RefusedDescriptor, check
from silomix_protocol.rounds.onion import UnopenableLayer, onion_bytes
from silomix_protocol.rounds.round_keys import RefusedKeys
from silomix_protocol.rounds.tokens import TOKEN_BYTES
from support.consortia import csv_path, make_consortium
from support.silos import (
    altered,
    approved_silo,
    asked,
    closed_round,
    consortium_of,
    exact_mean_at_zero,
    hostile,
    no_noise,
    open_desk,
    open_ledger,
    opened,
    query_at,
    respond,
    server_key,
    silo_key,
    study_file,
    written,
)

ORIGIN = [0.0, 0.0, 0.0]


@pytest.fixture
def config(consortium: Consortium) -> SiloConfig:
    return approved_silo(consortium)


@pytest.fixture
def ledger(config: SiloConfig) -> Iterator[Ledger]:
    ledger = open_ledger(config)
    yield ledger
    ledger.close()


@pytest.fixture
def desk(consortium: Consortium, config: SiloConfig, ledger: Ledger) -> StudyDesk:
    return open_desk(config, consortium.study, ledger)


def refused(
    desk: StudyDesk, config: SiloConfig, signed: round_pb2.SignedDescriptor, query: bytes
) -> str:
    """The refusal of a message; whatever it was, nothing was charged or stored."""
    made = consortium_of(config)
    before = written(config)
    with pytest.raises((RefusedQuery, RefusedDescriptor, RefusedKeys)) as caught:
        respond(made, desk, signed, query)
    assert written(config) == before
    return str(caught.value)


# Another study cannot be expressed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"clip = 0.25", b"clip = 0.26"),
        (b"rounds = 5", b"rounds = 6"),
        (b"epsilon = 2.0", b"epsilon = 2.1"),
        (b"radius = 50.0", b"radius = 51.0"),
        (b"high = 100.0", b"high = 60.0"),
        (b"minimum = 2", b"minimum = 1"),
        (b"records = 40", b"records = 41"),
        (b"version = 1", b"version = 1 "),
    ],
)
def test_a_study_with_one_thing_changed_is_a_study_that_nobody_approved(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, old: bytes, new: bytes
) -> None:
    content = study_file(consortium)
    assert old in content
    changed = parse_study(content.replace(old, new, 1))
    with pytest.raises(NotApproved):
        open_desk(config, changed, ledger)


def test_every_changed_byte_of_a_study_makes_it_unknown(
    consortium: Consortium, ledger: Ledger
) -> None:
    content = study_file(consortium)
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(NotApproved, match="was not approved here"):
            ledger.approval(StudyId(sha256(changed).digest()))


def test_an_unknown_loss_is_no_study_at_all(consortium: Consortium) -> None:
    content = study_file(consortium).replace(b'"logistic"', b'"identity"')
    with pytest.raises(InvalidStudy, match=r"task\.loss"):
        parse_study(content)


def test_a_round_of_another_study_of_the_same_server_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk
) -> None:
    query = query_at(ORIGIN)
    other = sha256(study_file(consortium) + b"\n").digest()
    assert "study" in refused(desk, config, hostile(consortium, query, study=other), query)


# Descriptors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", 0),
        ("round", 6),
        ("round", 2**32 - 1),
        ("attempt", 0),
        ("attempt", 9),
        ("version", 0),
        ("version", 2),
        ("suite", "none"),
        ("study", b""),
        ("dimension", 2),
        ("dimension", 4),
        ("minimum_batch", 1),
        ("deadline_ms", 1),
        ("silos", b""),
        ("silos", b"\x00"),
        ("silos", b"\x01"),
        ("silos", b"\x0f"),
        ("silos", b"\x07\x00"),
        ("query", b""),
        ("server_key", b""),
        ("server_key", bytes(31)),
        ("mix_keys", []),
        ("mix_keys", [bytes(32)]),
        ("mix_keys", [bytes(32), bytes(33)]),
        ("mix_keys", [bytes(32)] * 3),
        ("token_key", b""),
        ("token_key", bytes(33)),
    ],
)
def test_a_descriptor_that_disagrees_with_the_study_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, field: str, value: object
) -> None:
    query = query_at(ORIGIN)
    message = refused(desk, config, hostile(consortium, query, **{field: value}), query)
    assert "disagrees with the study" in message


def test_a_descriptor_with_the_mixes_in_another_order_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk
) -> None:
    query = query_at(ORIGIN)
    honest = asked(consortium, 1).descriptor
    signed = hostile(consortium, query, mix_keys=list(honest.mix_keys)[::-1])
    message = refused(desk, config, signed, query)
    assert message == "the mix keys are not those that the descriptor names"


@pytest.mark.parametrize("silos", [b"\x06", b"\x03", b"\x05"])
def test_a_round_that_leaves_a_silo_out_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, silos: bytes
) -> None:
    query = query_at(ORIGIN)
    signed = hostile(consortium, query, silos=silos)
    message = refused(desk, config, signed, query)
    assert message == "the descriptor disagrees with the study: silos"


def test_a_round_that_does_not_ask_this_silo_is_refused(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "pairs", participants=2)
    names = [silo.name for silo in made.study.silos]
    (outside,) = set(names) - set(made.study.asked(1))
    config = approved_silo(made, names.index(outside))
    ledger = open_ledger(config)
    with pytest.raises(RefusedQuery, match="the round does not wait for this silo"):
        open_desk(config, made.study, ledger).answer(asked(made, 1))
    ledger.close()


@pytest.mark.parametrize("signer", ["stranger", "mix-1", "silo-1"])
def test_a_descriptor_that_the_server_did_not_sign_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, signer: str
) -> None:
    query = query_at(ORIGIN)
    stranger = signer == "stranger"
    key = (
        SigningKey.generate()
        if stranger
        else SigningKey.load(consortium.folder / signer / "sign.key")
    )
    message = refused(desk, config, hostile(consortium, query, key), query)
    assert message == "the signature on this descriptor is not valid"


def test_a_signature_for_another_purpose_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk
) -> None:
    query = query_at(ORIGIN)
    signed = hostile(consortium, query)
    signed.signature = server_key(consortium).sign("closed", signed.descriptor)
    assert "signature" in refused(desk, config, signed, query)


def test_every_flipped_byte_of_a_signed_descriptor_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk
) -> None:
    query = query_at(ORIGIN)
    honest = hostile(consortium, query)
    before = written(config)
    for position in range(len(honest.descriptor)):
        changed = bytearray(honest.descriptor)
        changed[position] ^= 1
        signed = round_pb2.SignedDescriptor(descriptor=bytes(changed), signature=honest.signature)
        with pytest.raises(RefusedDescriptor):
            check(signed, consortium.study)
    assert written(config) == before


# Queries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        [50.1, 0.0, 0.0],
        [-30.0, 30.0, 30.0],
        [1e6, 0.0, 0.0],
        [np.nan, 0.0, 0.0],
        [0.0, 0.0, -np.nan],
        [np.inf, 0.0, 0.0],
        [0.0, -np.inf, 0.0],
        [np.inf, -np.inf, np.nan],
    ],
)
def test_a_point_outside_the_ball_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, point: list[float]
) -> None:
    query = query_at(point)
    message = refused(desk, config, hostile(consortium, query), query)
    assert message == "the point lies outside the study's ball"


@pytest.mark.parametrize("length", [0, 1, 8, 16, 23, 25, 32, 80])
def test_a_point_of_another_dimension_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, length: int
) -> None:
    query = round_pb2.Query(point=bytes(length)).SerializeToString()
    message = refused(desk, config, hostile(consortium, query), query)
    assert message == "the point has another dimension than the study"


@pytest.mark.parametrize("point", [[1.0, 0.0, 0.0], [-0.0, 0.0, 0.0], [5e-324, 0.0, 0.0]])
def test_a_query_that_the_descriptor_does_not_name_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, point: list[float]
) -> None:
    signed = hostile(consortium, query_at(ORIGIN))
    message = refused(desk, config, signed, query_at(point))
    assert message == "the query is not the one that the descriptor names"


@pytest.mark.parametrize("query", [b"\xff", b"\x0a\x18", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b"])
def test_a_query_that_cannot_be_read_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, query: bytes
) -> None:
    message = refused(desk, config, hostile(consortium, query), query)
    assert message == "the query cannot be read"


def test_refused_questions_do_not_stand_in_the_way_of_good_ones(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, ledger: Ledger
) -> None:
    bad = query_at([51.0, 0.0, 0.0])
    refused(desk, config, hostile(consortium, bad), bad)
    desk.answer(asked(consortium, 1))
    assert ledger.total().rounds == 1


# What is answered --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", [ORIGIN, [50.0, 0.0, 0.0], [-1.0, 49.0, -9.0], [5e-324, -0.0, 1e-300]]
)
def test_a_point_of_the_ball_is_answered_in_full_range(
    consortium: Consortium, desk: StudyDesk, point: list[float]
) -> None:
    values = opened(consortium, desk.answer(asked(consortium, 1, point)))
    assert values.shape == (3,)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_without_noise_a_report_is_the_exact_mean_on_the_grid(
    consortium: Consortium, index: int
) -> None:
    """Through sealing and opening of every layer; against integers added one record at a time."""
    config = approved_silo(consortium, index)
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger, no_noise)
    report = desk.answer(asked(consortium, 1))
    ledger.close()
    values = opened(consortium, report)
    assert values.tolist() == exact_mean_at_zero(csv_path(config.data), consortium.study)


def test_without_noise_a_report_is_the_clipped_mean_gradient(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """In textbook floating point, at a point where some gradients are clipped and some are not."""
    point = np.array([3.0, -2.0, 1.0])
    desk = open_desk(config, consortium.study, ledger, no_noise)
    report = opened(consortium, desk.answer(asked(consortium, 1, point)))
    rows = np.genfromtxt(csv_path(config.data), delimiter=",", skip_header=1)
    low, high = np.array([0.0, -1.0]), np.array([100.0, 1.0])
    scaled = (2 * rows[:, :2] - low - high) / (high - low) / np.sqrt(2)
    features = np.column_stack([scaled, np.full(len(rows), 0.3)])
    labels = 2 * rows[:, 2] - 1
    gradients = (-labels / (1 + np.exp(labels * (features @ point))))[:, None] * features
    norms = np.linalg.norm(gradients, axis=1)
    assert 0 < np.count_nonzero(norms > 0.25) < len(rows)
    clipped = gradients * np.minimum(1, 0.25 / norms)[:, None]
    per_silo = clipped.sum(axis=0) / 50  # silos of 40, 50 and 60: all records count alike
    assert np.allclose(report * consortium.study.mechanism().grids[0], per_silo, atol=2e-5)


def test_a_charge_is_on_disk_before_a_report_is_handed_out(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk
) -> None:
    """Seen from another connection, and with the very bytes."""
    report = desk.answer(asked(consortium, 1))
    other = open_ledger(config)
    assert other.account(consortium.study).stored(1) == report
    assert other.total().rounds == 1
    other.close()


def test_a_report_that_cannot_be_stored_is_not_handed_out(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk
) -> None:
    """The disk is full: no report, no charge; and a later try is charged once."""
    (pages,) = ledger.database.execute("PRAGMA page_count").fetchone()
    ledger.database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError):
        desk.answer(asked(consortium, 1))
    assert ledger.total().rounds == 0
    ledger.database.execute("PRAGMA max_page_count = 1000000")
    desk.answer(asked(consortium, 1))
    assert ledger.total().rounds == 1


def test_an_onion_opens_in_its_own_round_only(consortium: Consortium, desk: StudyDesk) -> None:
    report = desk.answer(asked(consortium, 1))
    for other in (asked(consortium, 2), asked(consortium, 1, attempt=2)):
        with pytest.raises(UnopenableLayer):
            opened(consortium, replace(report, descriptor=other.descriptor))


def test_the_onions_of_all_silos_have_one_length(consortium: Consortium) -> None:
    lengths = set()
    for index in range(3):
        config = approved_silo(consortium, index)
        ledger = open_ledger(config)
        desk = open_desk(config, consortium.study, ledger)
        lengths |= {len(desk.answer(asked(consortium, number)).onion) for number in (1, 2)}
        ledger.close()
    payload = TOKEN_BYTES + 8 + consortium.study.mechanism().width * 3
    assert lengths == {onion_bytes(payload, consortium.study, 0)}


def test_a_point_is_read_as_little_endian_doubles(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """The bytes on the wire, not this machine's order, are the question."""
    query = round_pb2.Query(point=pack("<3d", 3.0, -2.0, 1.0)).SerializeToString()
    question = asked(consortium, 1, [3.0, -2.0, 1.0])
    assert query == question.query
    desk = open_desk(config, consortium.study, ledger, no_noise)
    assert len(desk.answer(question).onion) > 0


# The same question in another round --------------------------------------------------------------


def end(made: Consortium, ledger: Ledger, *, void: bool, ended: bool) -> None:
    """The server's word about the last report; every mix's too, if it `ended`."""
    report = ledger.account(made.study).last_report()
    assert report is not None
    said = closed_round(made, report.descriptor, void=void, ended=None if ended else ())
    Inclusion(made.study, "silo-1", ledger, silo_key(made, 0), ledger.state).closed(said)


def test_a_question_that_was_answered_is_not_answered_in_another_round(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk
) -> None:
    """Whatever came in between, and also if nobody said what became of the answer."""
    desk.answer(asked(consortium, 1, ORIGIN))
    desk.answer(asked(consortium, 2, [1.0, 0.0, 0.0]))
    end(consortium, ledger, void=False, ended=False)
    before = written(config)
    for point in (ORIGIN, [1.0, 0.0, 0.0]):
        with pytest.raises(RefusedQuery, match=r"round 3 asks what round . asked"):
            desk.answer(asked(consortium, 3, point))
    assert written(config) == before
    desk.answer(asked(consortium, 3, [0.0, 1.0, 0.0]))


def test_what_a_void_round_asked_may_be_asked_again(
    consortium: Consortium, ledger: Ledger, desk: StudyDesk
) -> None:
    for number in range(1, 6):
        desk.answer(asked(consortium, number, ORIGIN))
        end(consortium, ledger, void=True, ended=True)
    assert ledger.total().rounds == 5


def test_by_the_server_s_word_alone_a_question_is_answered_a_few_times(
    consortium: Consortium, ledger: Ledger, desk: StudyDesk
) -> None:
    for number in range(1, MOST_SAME + 1):
        desk.answer(asked(consortium, number, ORIGIN))
        end(consortium, ledger, void=True, ended=False)
    with pytest.raises(RefusedQuery, match="nobody showed that the answer was lost"):
        desk.answer(asked(consortium, MOST_SAME + 1, ORIGIN))


def test_other_records_may_be_asked_the_same(tmp_path: Path) -> None:
    """Each phase has records of its own."""
    made = altered(
        make_consortium(tmp_path / "phases", rounds=12),
        ('name = "noisy-mb-sgd"', 'name = "localized-accelerated"'),
    )
    mechanism, config = made.study.mechanism(), approved_silo(made)
    assert len(mechanism.phases) > 1
    first, second = 1, 1 + mechanism.phases[0].rounds
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    desk.answer(asked(made, first, ORIGIN))
    desk.answer(asked(made, second, ORIGIN))
    ledger.close()
