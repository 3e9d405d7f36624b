"""A cohort decides who is read, and from which window of time."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from silomix_client.data.clinical.omop import Window
from silomix_client.data.records import read
from silomix_client.data.source import Source
from silomix_client.errors import BadRecords
from support.clinical import ADA, NOON, altered, cohort_source, features
from support.databases import run_all
from support.hospitals import HOSPITAL, Event, omop_source


def labels(source: Source) -> list[float]:
    return read(source, HOSPITAL).records.labels.tolist()


def test_only_persons_of_the_cohort_are_read(tmp_path: Path) -> None:
    events = [Event(7, NOON, "sbp", 100.0), Event(8, NOON, "sbp", 200.0)]
    alone = features(cohort_source(tmp_path, events[:1]))
    assert features(cohort_source(tmp_path, events)) == alone
    queried = cohort_source(
        tmp_path,
        events,
        cohort=None,
        cohort_query="SELECT subject_id, cohort_start_date FROM cohort",
    )
    assert features(queried) == alone


@pytest.mark.parametrize(("day", "counts"), [(-31, False), (-30, True), (0, True), (1, False)])
def test_features_are_of_the_window_before_a_persons_start(
    day: int, counts: bool, tmp_path: Path
) -> None:
    events = [Event(7, NOON + timedelta(days=day), "sbp", 250.0)]
    found = features(cohort_source(tmp_path, events, window=Window(-30, 0)))
    nothing = features(cohort_source(tmp_path, []))
    assert (found != nothing) == counts


@pytest.mark.parametrize(("day", "label"), [(0, -1.0), (1, 1.0), (30, 1.0), (31, -1.0)])
def test_labels_are_of_the_window_after_it(day: int, label: float, tmp_path: Path) -> None:
    events = [Event(7, NOON + timedelta(days=day), "stroke", True)]
    source = cohort_source(tmp_path, events, window=Window(-30, 0), label_window=Window(1, 30))
    assert labels(source) == [label]


def test_an_age_is_that_at_the_start_of_the_cohort(tmp_path: Path) -> None:
    birthday = date(2025, 6, 15)  # Ada's
    before = features(cohort_source(tmp_path, [], people=[(7, birthday - timedelta(days=1))]))
    after = features(cohort_source(tmp_path, [], people=[(7, birthday)]))
    assert after["age"] > before["age"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cohort": 18}, "nobody is in the cohort"),
        (
            {"people": [(7, date(2025, 1, 1)), (99, date(2025, 1, 1))]},
            "the cohort has person 99, the table person does not",
        ),
        (
            {"cohort": None, "cohort_query": "SELECT subject_id FROM cohort"},
            "data.cohort_query gives no column 'cohort_start_date'",
        ),
        (
            {"cohort": None, "cohort_query": "SELECT *, subject_id FROM cohort"},
            "data.cohort_query gives column 'subject_id' 2 times",
        ),
        ({"cohort": None, "cohort_query": "SELECT * FROM nowhere"}, "nowhere"),
        (
            {
                "cohort": None,
                "cohort_query": "SELECT NULL AS subject_id, cohort_start_date FROM cohort "
                "UNION SELECT 99, cohort_start_date FROM cohort",
            },
            "the cohort has an entry without subject_id",
        ),
        ({"schema": "cdm"}, "cdm"),
    ],
)
def test_a_cohort_that_is_none_is_refused(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRecords, match=problem) as caught:
        read(cohort_source(tmp_path, [], **options), HOSPITAL)
    assert str(caught.value).startswith("OMOP database sqlite:///omop.sqlite: ")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_names_may_be_in_capitals_and_in_a_schema(kind: str, tmp_path: Path) -> None:
    events = [Event(7, NOON, "sbp", 100.0), Event(7, NOON, "smoker", True)]
    url = f"{kind}:///omop.{kind}"
    source: Any = omop_source(tmp_path, url, [ADA], events, people=[(7, ADA.born)], cohort=17)
    expected = features(source)
    run_all(
        url.replace(":///", f":///{tmp_path}/"),
        [
            f"ALTER TABLE {table} RENAME COLUMN {name} TO {name.upper()}"
            for table, name in (("person", "person_id"), ("cohort", "subject_id"))
        ],
    )
    schemas = ("main", "MAIN", "omop.main") if kind == "duckdb" else ("main", "MAIN")
    assert [features(replace(source, schema=name)) for name in schemas] == [expected] * len(schemas)


def test_all_queries_of_a_sqlite_database_see_one_state(tmp_path: Path) -> None:
    source = cohort_source(tmp_path, [Event(7, NOON, "sbp", 100.0)])
    expected = features(source)
    altered(tmp_path, "PRAGMA journal_mode = WAL")
    rows = source.rows(HOSPITAL)
    first = next(rows)  # of the table person; the entries come after it
    altered(tmp_path, "DELETE FROM measurement")
    assert ["sbp" in row.cells for row in (first, *rows)] == [False, True]
    assert features(source) != expected


def test_a_cohort_query_cannot_change_anything(tmp_path: Path) -> None:
    source: Any = cohort_source(tmp_path, [])
    hostile = replace(source, cohort=None, cohort_query="DELETE FROM cohort RETURNING *")
    with pytest.raises(BadRecords):
        read(hostile, HOSPITAL)
    assert len(read(source, HOSPITAL).records) == 1
