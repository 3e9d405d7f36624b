"""What never depends on a record's value: whether a silo answers, how long, and in which words."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.records import read
from silomix_client.errors import SiloError
from silomix_client.rounds.answer import StudyDesk
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import model_of
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from silomix_protocol.rounds.descriptor import RefusedDescriptor
from support.consortia import SMALL_TASK, csv_path
from support.records import read_records
from support.silos import (
    approved_silo,
    asked,
    copied,
    hostile,
    no_noise,
    open_desk,
    open_ledger,
    opened,
    query_at,
    respond,
)

Floats = NDArray[np.float64]
Cells = tuple[str, str, str]
RECORDS: list[Cells] = [
    ("0", "-1", "0"),
    ("100", "1", "1"),
    ("", "", "0"),
    ("nan", "0", "1"),
    ("1e308", "-1e308", "1"),
    ("5e-324", "-0", "0"),
]


def replace_a_record(config: SiloConfig, row: int, record: Cells) -> None:
    lines = csv_path(config.data).read_text().splitlines()
    lines[row + 1] = ",".join(record)
    csv_path(config.data).write_text("\n".join(lines) + "\n")


def outcomes(made: Consortium, config: SiloConfig) -> list[tuple[str, str, int]]:
    """What a curious server sees for a long list of questions, but for the reports' contents."""
    lowered = PrivacyTarget(1.5, made.study.target.delta)  # reached after some rounds
    ledger = open_ledger(config, lowered)
    desk = open_desk(config, made.study, ledger)
    seen = [_outcome(question) for question in _questions(made, desk)]
    seen.append((repr(ledger.total()), "", 0))
    ledger.close()
    return seen


def _questions(made: Consortium, desk: StudyDesk) -> list[Callable[[], bytes]]:
    outside, inside = query_at([50.1, 0.0, 0.0]), query_at([0.0, 0.0, 0.0])
    return [
        lambda: respond(made, desk, hostile(made, outside), outside).onion,
        lambda: respond(made, desk, hostile(made, inside, round=6), inside).onion,
        lambda: respond(made, desk, hostile(made, inside), outside).onion,
        *(
            lambda number=number, point=point: desk.answer(asked(made, number, point)).onion
            for number, point in (
                (1, [0.0, 0.0, 0.0]),
                (1, [0.0, 0.0, 0.0]),
                (1, [1.0, 0.0, 0.0]),
                (2, [50.0, 0.0, 0.0]),
                (1, [0.0, 0.0, 0.0]),
                (3, [0.0, -50.0, 0.0]),
                (4, [1e-300, 0.0, 0.0]),
                (5, [0.0, 0.0, 0.0]),
            )
        ),
    ]


def _outcome(question: Callable[[], bytes]) -> tuple[str, str, int]:
    try:
        return "answered", "", len(question())
    except (SiloError, RefusedDescriptor) as refusal:
        return type(refusal).__name__, str(refusal), 0


@pytest.mark.parametrize("record", RECORDS)
def test_answers_refusals_their_words_and_lengths_are_the_same_for_neighbouring_data(
    consortium: Consortium, tmp_path: Path, record: Cells
) -> None:
    neighbour = copied(consortium, tmp_path / "neighbour")
    replace_a_record(load(neighbour.silos[0]), 11, record)
    seen = outcomes(consortium, approved_silo(consortium))
    assert seen == outcomes(neighbour, approved_silo(neighbour))
    kinds = {kind for kind, _, _ in seen}
    assert kinds >= {"answered", "RefusedQuery", "RefusedDescriptor", "BudgetExhausted"}


@pytest.mark.parametrize("record", RECORDS)
def test_neighbouring_data_move_a_report_by_no_more_than_is_charged_for(
    consortium: Consortium, tmp_path: Path, record: Cells
) -> None:
    """With the noise off, through the whole path from CSV to opened report."""
    neighbour = copied(consortium, tmp_path / "neighbour")
    replace_a_record(load(neighbour.silos[0]), 11, record)
    points = [[0.0, 0.0, 0.0], [50.0, 0.0, 0.0], [-20.0, 30.0, 30.0]]
    reports = []
    for made in (consortium, neighbour):
        config = approved_silo(made)
        ledger = open_ledger(config)
        desk = open_desk(config, made.study, ledger, no_noise)
        for number, point in enumerate(points, start=1):
            reports.append(opened(made, desk.answer(asked(made, number, point))))
        ledger.close()
    moved = np.linalg.norm(np.array(reports[:3]) - np.array(reports[3:]), axis=1)
    charged = (
        consortium.study.mechanism().event(Participant(40, consortium.study.target)).sensitivity
    )
    assert (moved <= charged).all()
    assert moved.max() > 0


NUMBERS = st.floats(allow_nan=True, allow_infinity=False).map(repr)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from("01")), min_size=1, max_size=5))
def test_any_numbers_in_any_record_give_finite_records(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Cells]
) -> None:
    path = tmp_path_factory.mktemp("data") / "data.csv"
    path.write_text("age,dose,outcome\n" + "\n".join(",".join(row) for row in rows))
    records = read_records(path, SMALL_TASK)
    assert records.features.shape == (len(rows), 3)
    assert np.isfinite(records.features).all()


def test_reports_have_one_length_for_any_record_values(
    consortium: Consortium, tmp_path: Path
) -> None:
    lengths = set()
    for number, record in enumerate(RECORDS):
        made = copied(consortium, tmp_path / f"copy-{number}")
        config = load(made.silos[0])
        for row in range(40):
            replace_a_record(config, row, record)
        config = approved_silo(made)
        ledger = open_ledger(config)
        desk = open_desk(config, made.study, ledger)
        lengths.add(len(desk.answer(asked(made, 1)).onion))
        ledger.close()
    assert len(lengths) == 1


# Another person, under another identifier ---------------------------------------------------------

COLUMNS, PEOPLE = 12, 403  # no multiple of what matrix libraries take at a time
KINKED = {
    "hinge": {"loss": LossName.HINGE},
    "absolute": {"loss": LossName.ABSOLUTE, "label_bounds": (0.0, 1.0)},
    "quantile": {"loss": LossName.QUANTILE, "label_bounds": (0.0, 1.0), "level": 0.3},
}


def persons_task(**loss: Any) -> Task:
    features = (Feature("x", -1.0, 1.0, 0.0, count=COLUMNS),)
    return Task(
        label="y", features=features, scaling=Scaling.UNIT_BALL, bias=0.3, person="id", time="t",
        **loss,
    )  # fmt: skip


def persons_read(path: Path, task: Task, rows: list[tuple[str, int, list[float], int]]) -> Records:
    """Through the silo's own reader; rows are identifier, time, values, label."""
    header = ",".join(["id", "t", *task.columns, "y"])
    lines = [f"{name},{when},{','.join(map(repr, x))},{y}" for name, when, x, y in rows]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return read(CsvFile(path), task).records


def at_the_kink(record: Floats, rng: np.random.Generator) -> Iterator[Floats]:
    """Points at which the record's score is within some ulps of 1: the kink of every such loss for
    the label 1."""
    for _ in range(50):
        point = rng.normal(size=COLUMNS + 1)
        point /= record @ point / UNIT
        yield point * (1 + rng.integers(-3, 4) * 2.0**-53)


@pytest.mark.parametrize("name", list(KINKED))
def test_a_person_with_another_identifier_and_more_rows_changes_its_own_contribution_alone(
    name: str, tmp_path: Path
) -> None:
    """Everybody else moves by one place; all but one are at the kink, within an ulp."""
    task, rng = persons_task(**KINKED[name]), np.random.default_rng(1)
    values, other = rng.uniform(-1, 1, (2, COLUMNS)).round(3).tolist()
    crowd = [(f"{number:04d}", 0, values, 1 - number % 2) for number in range(1, PEOPLE)]
    first = persons_read(tmp_path / "D.csv", task, [("0000", 0, values, 0), *crowd])
    renamed = persons_read(tmp_path / "E.csv", task, [*crowd, ("9999", 0, values, 0)])
    decoys = [("9999", when, [when / 5] * COLUMNS, 0) for when in (1, 2)]
    replaced = persons_read(
        tmp_path / "F.csv", task, [("9999", 3, other, 1), *reversed(crowd), *decoys]
    )
    assert len(first) == len(renamed) == len(replaced) == PEOPLE
    model = model_of(task)
    sums = [model.gradients(records, 0.25) for records in (first, renamed, replaced)]
    alone = [
        model.gradients(Records(records.features[rows], records.labels[rows]), 0.25)
        for records, rows in ((first, slice(0, 1)), (replaced, slice(-1, None)))
    ]
    for point in at_the_kink(first.features[0], rng):
        one, same, new = (each.at(point) for each in sums)
        assert np.array_equal(one, same)
        assert np.array_equal(new - one, alone[1].at(point) - alone[0].at(point))
