"""The unit of privacy is a person: rows become persons by the study's rules and nothing else."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.records import read
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords
from silomix_core.task.feature import Combine, Feature, category, flag
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Scaling, Task
from silomix_lab.consortium.create import Consortium
from support.consortia import SMALL_TASK, make_consortium
from support.people import CLINIC, QUERY, SOURCES, Clinic, Visit, visits
from support.silos import NOW, asked, no_noise, open_desk, open_ledger, opened, study_file


@dataclass(frozen=True)
class Rows:
    """A source that has these rows."""

    given: tuple[SourceRow, ...]
    description: str = "rows"
    identity: str = "rows"

    def local_names(self, task: Task) -> dict[str, str]:
        return {}

    def rows(self, task: Task) -> tuple[SourceRow, ...]:
        return self.given


def task_of(feature: Feature, **keys: object) -> Task:
    whole = Task(
        LossName.ABSOLUTE,
        "y",
        (feature,),
        Scaling.UNIT_BALL,
        0.5,
        label_bounds=(-128.0, 128.0),
        person="who",
        time="when",
        label_missing=0.0,
    )
    return replace(whole, **keys)


def value_of(feature: Feature, *cells: tuple[object, object]) -> float:
    """The one person's encoded first coordinate, as a share of what it can be at most."""
    rows = [SourceRow(f"row {n}", "a", time, {"x": cell}) for n, (time, cell) in enumerate(cells)]
    seen = {
        read(Rows(tuple(order)), task_of(feature)).records.features[0, 0]
        for order in permutations(rows)
    }
    assert len(seen) == 1  # in whatever order they come
    return float(seen.pop() / UNIT)


def number(combine: Combine) -> Feature:
    return Feature("x", -8.0, 8.0, -4.0, combine=combine)


MIXED = (("2025-01-02", 1), ("2025-01-03", None), ("2025-01-01", 6), ("2025-01-04", 2))


@pytest.mark.parametrize(
    ("combine", "value"),
    [
        (Combine.LAST, 2),
        (Combine.FIRST, 6),
        (Combine.MEAN, 3),
        (Combine.MIN, 1),
        (Combine.MAX, 6),
        (Combine.SUM, 8),  # 9, clamped
        (Combine.COUNT, 3),
    ],
)
def test_rows_of_one_person_become_one_value(combine: Combine, value: float) -> None:
    assert value_of(number(combine), *MIXED) == value / 8


@pytest.mark.parametrize("combine", list(Combine)[:6])
def test_who_has_no_value_has_the_declared_one(combine: Combine) -> None:
    assert value_of(number(combine), (1, None), (2, ""), (3, float("nan"))) == -0.5


def test_a_count_of_nothing_is_zero() -> None:
    assert value_of(number(Combine.COUNT), (1, None)) == 0


def test_values_are_combined_before_they_are_clamped() -> None:
    assert value_of(number(Combine.MEAN), (1, 30), (2, -30), (3, 6)) == 2 / 8
    assert value_of(number(Combine.SUM), *((n, 1e308) for n in range(3))) == 1


@pytest.mark.parametrize("combine", [Combine.LAST, Combine.FIRST])
def test_of_several_values_at_one_time_the_largest_counts(combine: Combine) -> None:
    assert value_of(number(combine), (5, 1), (5, 4), (5, 2)) == 4 / 8


@pytest.mark.parametrize("combine", [Combine.LAST, Combine.FIRST])
def test_a_row_without_a_time_counts_only_for_who_has_nothing_else(combine: Combine) -> None:
    assert value_of(number(combine), (None, 7), (3, 1)) == 1 / 8
    assert value_of(number(combine), (None, 7), (3, None)) == 7 / 8


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2024-12-31", "2025-01-01"),
        ("2025-01-01", "2025-01-01T00:00:01"),
        ("2025-01-01 10:00+02:00", "2025-01-01 08:00:01"),  # UTC where no zone is named
        (date(2025, 1, 1), datetime(2025, 1, 1, 0, 0, 1)),
        (datetime(2025, 1, 1, tzinfo=UTC), "2025-01-01T01:00:00Z"),
        ("9", "10"),
        (-1.5, 0),
    ],
)
def test_dates_times_and_numbers_order_rows(earlier: object, later: object) -> None:
    assert value_of(number(Combine.LAST), (later, 2), (earlier, 5)) == 2 / 8
    assert value_of(number(Combine.FIRST), (later, 2), (earlier, 5)) == 5 / 8


@pytest.mark.parametrize("time", ["yesterday", "1.2.2025", "2025-13-01", inf])
def test_a_time_that_is_none_is_refused_with_row_and_column(time: object) -> None:
    source = Rows((SourceRow("row 7", "a", time, {"x": 1}),))
    with pytest.raises(BadRecords, match=r"rows: row 7, column 'when': not a date"):
        read(source, task_of(number(Combine.LAST)))


def test_flags_and_categories_are_combined_by_their_own_rules() -> None:
    assert value_of(flag("x"), (1, False), (2, "true"), (3, 0)) == 1
    assert value_of(flag("x"), (1, False), (2, "0")) == -1
    assert value_of(flag("x", missing=True), (1, None)) == 1
    assert value_of(flag("x"), (1, None)) == 0
    assert value_of(flag("x", combine=Combine.LAST), (1, True), (2, False)) == -1
    chosen = category("x", ("here", "there"))
    assert value_of(chosen, (1, "there"), (2, " here ")) == 1
    assert value_of(chosen, (1, "here"), (2, "there")) == 0
    assert value_of(chosen, (1, None)) == 0
    assert value_of(replace(chosen, combine=Combine.FIRST), (1, "here"), (2, "there")) == 1
    assert value_of(category("x", ("1", "2")), (1, 1.0)) == 1  # whatever type a code has


@pytest.mark.parametrize("cell", ["yes", 2, -1, 0.5, "t"])
def test_a_flag_that_is_none_is_refused(cell: object) -> None:
    with pytest.raises(BadRecords, match=r"row 0, column 'x': not true or false"):
        value_of(flag("x"), (1, cell))


def labels_of(task: Task, *cells: object) -> list[float]:
    rows = [SourceRow(f"row {n}", "a", n, {"y": cell}) for n, cell in enumerate(cells)]
    return read(Rows(tuple(rows)), task).records.labels.tolist()


def test_labels_are_combined_by_their_own_rule() -> None:
    task = task_of(number(Combine.MAX))
    assert labels_of(task, 10, 32, None) == [0.25]
    assert labels_of(replace(task, label_combine=Combine.MEAN), 10, 54, None) == [0.25]
    assert labels_of(replace(task, label_combine=Combine.COUNT), "x", "y", None) == [1 / 64]
    assert labels_of(task, None) == [0]
    yes = replace(task, loss=LossName.LOGISTIC, label_bounds=None, label_combine=Combine.ANY)
    assert labels_of(yes, 0, True, 0) == [1]
    assert labels_of(yes, 0, 0) == [-1]
    assert labels_of(replace(yes, label_missing=1.0), None) == [1]


def test_a_person_without_a_label_is_refused_with_the_first_row() -> None:
    task = task_of(number(Combine.MAX), label_missing=None)
    rows = (
        SourceRow("row 1", "a", 1, {"y": 1}),
        SourceRow("row 2", "b", 1, {"x": 1}),
        SourceRow("row 3", "b", 2, {}),
    )
    with pytest.raises(BadRecords, match=r"rows: row 2, column 'y': no row of this person"):
        read(Rows(rows), task)


def test_a_person_of_whom_nothing_is_known_is_a_person() -> None:
    rows = (SourceRow("person 1", "a", None, {}), SourceRow("person 2", "b", None, {}))
    reading = read(Rows(rows), task_of(number(Combine.LAST)))
    assert len(reading.records) == 2
    assert reading.profile.features[0].missing == 2


def test_where_a_row_is_a_person_nobody_may_have_two() -> None:
    rows = (SourceRow("row 2", "a", None, CELLS), SourceRow("row 3", "b", None, CELLS))
    assert len(read(Rows(rows), SMALL_TASK).records) == 2
    again = (*rows, SourceRow("row 4", "a", None, CELLS))
    with pytest.raises(BadRecords, match=r"rows: row 4: the same person as in row 2"):
        read(Rows(again), SMALL_TASK)


CELLS = {"age": 50, "dose": 0.5, "outcome": 1}


def test_where_rows_are_combined_everyone_needs_an_identifier() -> None:
    with pytest.raises(BadRecords, match=r"row 1, column 'who': no person"):
        read(Rows((SourceRow("row 1", None, None, {}),)), task_of(number(Combine.MAX)))


def test_the_profile_counts_what_was_found() -> None:
    rows = (
        SourceRow("row 1", "a", 1, {"x": 20, "y": 1}),
        SourceRow("row 2", "a", 2, {"x": 9, "y": 1}),
        SourceRow("row 3", "b", 1, {"x": -3.5, "y": -500}),
        SourceRow("row 4", "c", 1, {"y": None}),
    )
    profile = read(Rows(rows), task_of(number(Combine.LAST))).profile
    assert (profile.rows, profile.people, profile.several, profile.most) == (4, 3, 1, 2)
    (found,) = profile.features
    assert (found.missing, found.clamped, found.low, found.high) == (1, 1, -3.5, 9)
    assert (profile.label.missing, profile.label.clamped, profile.label.low) == (1, 1, -500)


# Through approval and into a report --------------------------------------------------------------


def hospital(folder: Path, people: int, **data: object) -> Consortium:
    """A consortium whose first silo has its data in the clinic of the folder."""
    made = make_consortium(folder / "c", records=(people, 50), task=CLINIC)
    settings = {"name": "silo-1", "policy": "policy.toml", "data": data}
    made.silos[0].write_text(tomli_w.dumps(settings))
    return made


def report_of(made: Consortium, point: np.ndarray) -> np.ndarray:
    """What the silo's report says at the point, without noise, after a fresh approval."""
    config = load(made.silos[0])
    approve(config, review(config, study_file(made)), NOW)
    ledger = open_ledger(config)
    try:
        desk = open_desk(config, made.study, ledger, no_noise)
        return opened(made, desk.answer(asked(made, 1, point)))
    finally:
        ledger.close()
        for path in sorted(config.state.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def extreme(rows: int) -> list[Visit]:
    """One person whose rows all say the same, as loud as they can."""
    cells: Visit = {
        "age": 120,
        "sbp": 260.0,
        "creatinine": 10.0,
        "dose": 500.0,
        "visits": "emergency",
        "smoker": True,
        "sex": "male",
        "ward": "icu",
        "readmitted": 1,
        "patient_id": 7,
        "note": None,
    }
    return [cells | {"taken_at": datetime(2025, 1, 1 + n % 28, n % 24)} for n in range(rows)]


def test_a_person_with_fifty_rows_moves_the_sum_no_more_than_one_with_a_single_row(
    clinic: Clinic,
) -> None:
    """Noise off, through approval, snapshot, reporter and onion: in the integers of the report."""
    others = visits(39, seed=3)
    made = hospital(clinic.folder, 40, kind="csv", path=str(clinic.folder / "visits.csv"))
    mechanism = made.study.mechanism()
    bound = mechanism.sensitivity_units(made.study.participant(made.study.silos[0]))
    nobody = extreme(1)[0] | dict.fromkeys((*CLINIC.columns, "readmitted"))
    for seed in range(3):
        point = np.random.default_rng(seed).normal(0, 3, made.study.task.dimension)

        def report(person: list[Visit], point: np.ndarray = point) -> np.ndarray:
            clinic.csv(others + person)
            return report_of(made, point)

        silent = report([nobody])
        single, fifty = report(extreme(1)), report(extreme(50))
        assert np.any(single != silent)
        for one, other in ((single, silent), (fifty, silent), (fifty, single)):
            assert np.linalg.norm(one - other) <= bound
        # fifty rows differ from one in two features only: how many rows there are, and their dose
        alike = extreme(1) + [visit | {"dose": None, "visits": None} for visit in extreme(50)]
        assert np.array_equal(report(alike), single)


@pytest.mark.parametrize("kind", list(SOURCES))
def test_a_study_is_approved_on_data_of_every_kind(clinic: Clinic, kind: str) -> None:
    rows = visits(40, seed=4)
    source: Any = clinic.source(kind, rows)
    data = {"kind": "sql", "query": QUERY} if hasattr(source, "query") else {"kind": kind}
    if kind == "postgresql":
        data["url_file"] = str(clinic.folder / "database.url")
    elif "query" in data:
        data["url"] = f"{kind}:///{clinic.folder}/visits.{kind}"
    else:
        data["path"] = str(source.path)
    made = hospital(clinic.folder, 40, **data)
    expected = hospital(clinic.folder / "plain", 40, kind="csv", path=str(clinic.csv(rows).path))
    point = np.linspace(-1, 1, made.study.task.dimension)
    assert np.array_equal(report_of(made, point), report_of(expected, point))


def test_the_floor_counts_people_and_not_rows(clinic: Clinic) -> None:
    rows = [visit for n in range(10) for visit in person_rows(n, 9)]
    clinic.csv(rows)
    made = hospital(clinic.folder, len(rows), kind="csv", path=str(clinic.folder / "visits.csv"))
    with pytest.raises(BadRecords, match="10 people, your policy asks for at least 11"):
        review(load(made.silos[0]), study_file(made))
    assert not (made.silos[0].parent / "state").exists()


def person_rows(person: int, rows: int) -> list[Visit]:
    return [visit | {"patient_id": person} for visit in extreme(rows)]


def test_a_silo_that_names_persons_refuses_two_rows_of_one_where_the_study_names_none(
    consortium: Consortium,
) -> None:
    path = consortium.silos[0].parent / "data.csv"
    header, *rows = path.read_text().splitlines()
    ids = [f"p{n}" for n in range(len(rows))]
    path.write_text("\n".join([f"{header},mrn", *map(",".join, zip(rows, ids, strict=True))]))
    silo = {"name": "silo-1", "policy": "policy.toml"}
    data = {"kind": "csv", "path": "data.csv", "person": "mrn"}
    consortium.silos[0].write_text(tomli_w.dumps(silo | {"data": data}))
    assert len(review(load(consortium.silos[0]), study_file(consortium)).records) == 40
    path.write_text(path.read_text().replace(",p39", ",p0"))
    with pytest.raises(BadRecords, match=r"data\.csv: row 41: the same person as in row 2"):
        review(load(consortium.silos[0]), study_file(consortium))


def two_people(folder: Path, one: str, other: str) -> CsvFile:
    path = folder / "visits.csv"
    header = ",".join((*CLINIC.columns, CLINIC.label, "patient_id", "taken_at"))
    rows = [f"40,,,,,,,,1,{each},2025-01-01" for each in (one, other)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return CsvFile(path)


UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7", "007"),
        ("7", "7.0"),
        ("A1", "a1"),
        ("A1", "A1\u200b"),
        ("é", "e\u0301"),
        ("MRN007", "MRN7"),
        ("A\u20131", "A-1"),
        ("A\u22121", "A-1"),
        ("1.23456789012E+11", "123456789012"),
        ("'7", "7"),
        ("+7", "7"),
        ("7\x00", "7"),
        (UUID, UUID.replace("-", "")),
        (UUID.upper(), UUID),
    ],
)
def test_identifiers_that_differ_only_in_form_are_asked_about(
    tmp_path: Path, one: str, other: str
) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(
            BadRecords, match=r"row 3: .* may be the person .* of row 2; write every"
        ):
            read(two_people(tmp_path, *pair), CLINIC)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1-23", "12-3"), ("A10", "A1"), ("1.10", "1.1"), ("A1", "A 1"), ("-7", "7"), ("0", "O")],
)
def test_identifiers_that_differ_in_more_are_two_people(
    tmp_path: Path, one: str, other: str
) -> None:
    assert len(read(two_people(tmp_path, one, other), CLINIC).records) == 2


@pytest.mark.parametrize("nobody", ["nan", "NULL", "None", " NaN "])
def test_a_word_for_no_identifier_is_nobody(tmp_path: Path, nobody: str) -> None:
    with pytest.raises(BadRecords, match=r"row 3, column 'patient_id': no person"):
        read(two_people(tmp_path, "7", nobody), CLINIC)
