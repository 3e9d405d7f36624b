"""Where records come from makes no difference: CSV, Parquet, SQLite, DuckDB, PostgreSQL."""

import logging
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from silomix_client.data.columns import Layout
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.records import Reading, read
from silomix_client.data.sql_query import SqlQuery
from silomix_client.errors import BadRecords, InvalidSiloConfig, SiloError
from silomix_core.task.feature import category
from support.people import CLINIC, SOURCES, Clinic, visits
from support.postgres import PASSWORD, Postgres

EVERY_KIND = pytest.mark.parametrize("kind", list(SOURCES))
DATABASES = pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgresql"])


@pytest.mark.slow
def test_the_same_people_give_the_same_records_to_the_last_bit(clinic: Clinic) -> None:
    rows = visits(80, seed=5)
    readings = [read(clinic.source(kind, rows), CLINIC) for kind in SOURCES]
    first = readings[0].records
    assert len(first) == 80
    assert len(np.unique(first.features, axis=0)) == 80  # nothing was lost on the way
    for reading in readings:
        assert reading.records.features.tobytes() == first.features.tobytes()
        assert reading.records.labels.tobytes() == first.labels.tobytes()
        assert replace(reading.profile, source="") == replace(readings[0].profile, source="")


@EVERY_KIND
def test_the_order_of_the_rows_makes_no_difference(clinic: Clinic, kind: str) -> None:
    rows = visits(30, seed=6)
    first = read(clinic.source(kind, rows), CLINIC).records
    again = read(clinic.source(kind, rows[::-1]), CLINIC).records
    assert again.features.tobytes() == first.features.tobytes()
    assert again.labels.tobytes() == first.labels.tobytes()


# Faults ------------------------------------------------------------------------------------------


@EVERY_KIND
def test_a_category_that_the_study_does_not_list_is_refused_with_row_and_column(
    clinic: Clinic, kind: str
) -> None:
    rows = visits(3, seed=1)[:3]
    rows[1]["ward"] = "hospice"
    source = clinic.source(kind, rows)
    with pytest.raises(BadRecords) as caught:
        read(source, CLINIC)
    row = 3 if kind == "csv" else 2
    assert str(caught.value) == (
        f"{source.description}: row {row}, column 'ward': not one of icu, surgery, medicine: "
        "'hospice'"
    )


@EVERY_KIND
def test_a_row_without_a_person_is_refused_with_row_and_column(clinic: Clinic, kind: str) -> None:
    rows = visits(3, seed=1)[:3]
    rows[2]["patient_id"] = None
    with pytest.raises(BadRecords, match=r"row [34], column 'patient_id': no person"):
        read(clinic.source(kind, rows), CLINIC)


@EVERY_KIND
def test_a_label_that_is_none_is_refused_with_row_and_column(clinic: Clinic, kind: str) -> None:
    rows = visits(3, seed=1)[:3]
    rows[0]["readmitted"] = 2
    with pytest.raises(BadRecords, match=r"row [12], column 'readmitted': a label must be 0 or 1"):
        read(clinic.source(kind, rows), CLINIC)


@EVERY_KIND
def test_a_column_that_is_not_there_is_named_with_those_that_are(clinic: Clinic, kind: str) -> None:
    task = replace(CLINIC, person="mrn")
    with pytest.raises(BadRecords, match=r"no column 'mrn'; the (file|query) has: age, sbp, "):
        read(clinic.source(kind, visits(3, seed=1)), task)


@EVERY_KIND
def test_no_rows_are_no_records(clinic: Clinic, kind: str) -> None:
    with pytest.raises(BadRecords, match="no records"):
        read(clinic.source(kind, []), CLINIC)


@DATABASES
def test_text_in_a_query_where_a_number_belongs_is_refused_with_row_and_column(
    clinic: Clinic, kind: str
) -> None:
    source = clinic.source(kind, visits(3, seed=1))
    wrong = replace(source, query="SELECT v.*, 'high' AS bp FROM visits v")
    renamed = replace(wrong, layout=Layout(columns={"bp": "sbp"}))
    with pytest.raises(BadRecords) as caught:
        read(renamed, CLINIC)
    assert str(caught.value) == (
        f"{source.description}: row 1, column 'bp' (the study's 'sbp'): not a number: 'high'"
    )


@DATABASES
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELEKT", "SELEKT"),
        ("SELECT *, age FROM visits", "column 'age' occurs 2 times"),
    ],
)
def test_a_query_that_fails_is_refused_with_the_reason(
    clinic: Clinic, kind: str, query: str, reason: str
) -> None:
    source: Any = replace(clinic.source(kind, visits(2, seed=1)), query=query)
    with pytest.raises(BadRecords, match=reason) as caught:
        read(source, CLINIC)
    assert str(caught.value).startswith(f"query of {source.url.description}: ")


@DATABASES
def test_a_query_is_run_as_it_is_written(clinic: Clinic, kind: str) -> None:
    rows = visits(10, seed=1)
    source = clinic.source(kind, rows)
    icu = [row for row in rows if row["ward"] == "icu"]
    text = "-- :all %s of them\nSELECT * FROM visits WHERE ward LIKE 'i%'\n  AND '%(x)s' <> ':y';\n"
    chosen = read(replace(source, query=text), CLINIC)
    assert chosen.profile.rows == len(icu) > 0


@DATABASES
@pytest.mark.parametrize(
    "query",
    ["DELETE FROM visits", "CREATE TABLE mine (x INTEGER)", "DELETE FROM visits RETURNING *"],
)
def test_a_query_cannot_change_anything(clinic: Clinic, kind: str, query: str) -> None:
    source = clinic.source(kind, visits(4, seed=1))
    before = read(source, CLINIC).records.features
    with pytest.raises(BadRecords):
        read(replace(source, query=query), CLINIC)
    assert np.array_equal(read(source, CLINIC).records.features, before)


@pytest.mark.parametrize("setting", ["access_mode=read_write", "ACCESS_MODE=READ_WRITE"])
def test_no_setting_in_an_address_makes_a_duckdb_writable(clinic: Clinic, setting: str) -> None:
    source = clinic.source("duckdb", visits(2, seed=1))
    url = DatabaseUrl(clinic.folder, "url", f"duckdb:///visits.duckdb?{setting}")
    with pytest.raises(BadRecords, match="read-only"):
        read(replace(source, url=url, query="DELETE FROM visits RETURNING *"), CLINIC)


def test_a_duckdb_is_opened_with_the_settings_in_its_address(clinic: Clinic) -> None:
    source = clinic.source("duckdb", visits(2, seed=1))
    url = DatabaseUrl(clinic.folder, "url", "duckdb:///visits.duckdb?threads=1&memory_limit=64MB")
    query = (
        "SELECT * FROM visits WHERE current_setting('threads') = 1 "
        "AND current_setting('memory_limit') = '61.0 MiB'"
    )
    assert len(read(replace(source, url=url, query=query), CLINIC).records) == 2


def test_a_query_of_sqlite_may_use_regular_expressions(clinic: Clinic) -> None:
    source = clinic.source("sqlite", rows := visits(9, seed=1))
    query = "SELECT * FROM visits WHERE ward REGEXP '^(icu|surg)'"
    chosen = [row for row in rows if row["ward"] in ("icu", "surgery")]
    assert read(replace(source, query=query), CLINIC).profile.rows == len(chosen) > 0


def test_a_function_that_writes_is_refused_by_postgresql(clinic: Clinic) -> None:
    source = clinic.source("postgresql", visits(2, seed=1))
    with pytest.raises(BadRecords, match="read-only transaction"):
        read(replace(source, query="SELECT lo_create(0), visits.* FROM visits"), CLINIC)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, kind: str) -> None:
    source = SqlQuery(DatabaseUrl(tmp_path, "url", f"{kind}:///none.db"), "SELECT 1")
    with pytest.raises(BadRecords, match="query of "):
        read(source, CLINIC)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_parquet_is_refused(clinic: Clinic) -> None:
    source = clinic.parquet(visits(2, seed=1))
    source.path.write_text("age,sbp\n")
    with pytest.raises(BadRecords, match=r"visits\.parquet: not a Parquet file"):
        read(source, CLINIC)
    source.path.unlink()
    with pytest.raises(BadRecords, match=r"visits\.parquet: No such file or directory"):
        read(source, CLINIC)


# Secrets -----------------------------------------------------------------------------------------


def unreadable(url: str) -> list[str]:
    """Addresses with the password in every place where it could go wrong."""
    server = url.rpartition("@")[2]
    return [
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/postgres",  # nobody there
        f"postgresql://postgres:{PASSWORD}@no.such.host.invalid/postgres",
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:{PASSWORD}/postgres",
        f"postgresql://postgres:open@{PASSWORD}?x@{server}",
        f"postgresql://postgres:open@{PASSWORD}@{server}",  # @ that should be %40
        f"postgresql://postgres:{PASSWORD}wrong@{server}",
        f"postgresql://{PASSWORD}:{PASSWORD}@{server}?application_name={PASSWORD}",
        f"postgresql://{server}?user=postgres&password={PASSWORD}x",
        f"postgresql://{server}?nonsense={PASSWORD}",
        f"postgresql+{PASSWORD}://x:{PASSWORD}@{server}",
        f"mysql://root:{PASSWORD}@{server}",
        f"{PASSWORD}",
        f"://{PASSWORD}",
        f"postgresql://postgres:{PASSWORD}@{server}{PASSWORD}",
    ]


@pytest.mark.parametrize("way", ["url_file", "url_env"])
def test_a_password_is_in_no_error_and_no_log(
    database_server: Postgres,
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "database.url"
    path.touch(mode=0o600)
    for bad in unreadable(database_server.url):
        path.write_text(bad)
        monkeypatch.setenv("CLINIC_URL", bad)
        where = DatabaseUrl(tmp_path, way, path.name if way == "url_file" else "CLINIC_URL")
        source = SqlQuery(where, "SELECT 1")
        with pytest.raises(SiloError) as caught:
            read(source, CLINIC)
        seen = [str(caught.value), repr(caught.value), repr(source), source.identity]
        hidden = caught.value.__cause__ or caught.value.__context__
        assert caught.value.__suppress_context__ or PASSWORD not in str(hidden)
        assert not any(PASSWORD in text for text in seen), seen
    good = SqlQuery(where, "SELECT nonsense")
    path.write_text(database_server.url)
    monkeypatch.setenv("CLINIC_URL", database_server.url)
    with pytest.raises(BadRecords, match="nonsense") as caught:
        read(good, CLINIC)
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in caplog.text
    assert PASSWORD not in "".join(capfd.readouterr())


def test_an_address_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "database.url"
    path.write_text("sqlite:///x")
    path.chmod(0o640)
    with pytest.raises(InvalidSiloConfig, match=r"readable by others; run: chmod 600"):
        read(SqlQuery(DatabaseUrl(tmp_path, "url_file", path.name), "SELECT 1"), CLINIC)


def test_an_environment_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLINIC_URL", raising=False)
    with pytest.raises(InvalidSiloConfig, match="CLINIC_URL is not set"):
        read(SqlQuery(DatabaseUrl(tmp_path, "url_env", "CLINIC_URL"), "SELECT 1"), CLINIC)


@pytest.mark.parametrize(
    ("module", "extra", "kind"),
    [
        ("pyarrow", "parquet", "parquet"),
        ("psycopg", "postgresql", "postgresql"),
        ("duckdb", "duckdb", "duckdb"),
    ],
)
def test_a_package_that_is_not_installed_is_said_with_the_command(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, kind: str
) -> None:
    source = clinic.source(kind, visits(2, seed=1))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidSiloConfig) as caught:
        read(source, CLINIC)
    assert f"of silomix[{extra}]); in the checkout: pip install --require-hashes" in str(
        caught.value
    )
    assert str(caught.value).endswith("-r locks/operators.txt")


# What columns are called here --------------------------------------------------------------------


@EVERY_KIND
def test_a_hospital_may_call_its_columns_and_codes_otherwise(clinic: Clinic, kind: str) -> None:
    rows = visits(40, seed=8)
    source = clinic.source(kind, rows)
    plain = read(source, CLINIC).records
    *others, sex, ward = CLINIC.features
    short, renamed = replace(sex, categories=("f", "m", "x")), replace(ward, name="unit_of_stay")
    asked = replace(
        CLINIC,
        person="subject",
        time="observed",
        label="outcome",
        features=(*others, short, renamed),
    )
    layout = Layout(
        columns={"readmitted": "outcome", "ward": "unit_of_stay"},
        values={"sex": {"female": "f", "male": "m", "other": "x"}},
        person="patient_id",
        time="taken_at",
    )
    read_here = read(replace(source, layout=layout), asked).records
    assert np.array_equal(read_here.features, plain.features)
    assert np.array_equal(read_here.labels, plain.labels)


def test_a_time_that_is_none_is_named_as_it_is_called_here(clinic: Clinic) -> None:
    task = replace(CLINIC, time="observed")
    source = replace(clinic.source("csv", visits(2, seed=1)), layout=Layout(time="note"))
    with pytest.raises(BadRecords, match=r"column 'note' \(the study's 'observed'\): not a date"):
        read(source, task)


HEADER = ",".join((*CLINIC.columns, "readmitted", "patient_id", "taken_at"))
CELLS = "40,{},1,1,x,0,male,icu,1,7,2025-01-01"


@pytest.mark.parametrize("cell", ["-9", "-9.0", " -9.00 ", "-9E+00"])
def test_a_local_code_may_stand_for_a_missing_value(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text(f"{HEADER}\n{CELLS.format(cell)}\n")
    layout = Layout(values={"sbp": {"-9": "", "": "120"}})
    coded = read(CsvFile(path, layout), CLINIC)
    assert coded.profile.features[1].missing == 1
    path.write_text(f"{HEADER}\n{CELLS.format('')}\n")
    assert np.array_equal(coded.records.features, read(CsvFile(path), CLINIC).records.features)


def test_a_code_that_is_not_translated_stays(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text(f"{HEADER}\n{CELLS.format('130.5')}\n")
    layout = Layout(values={"sbp": {"-9": "", "": "120"}})
    assert read(CsvFile(path, layout), CLINIC).profile.features[1].high == 130.5


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_whole_number_is_a_category_however_it_is_written(clinic: Clinic, kind: str) -> None:
    rows = visits(9, seed=1)
    for number, row in enumerate(rows):
        row["ward"] = f"{number % 2}{'.0' * (number % 3)}"[:3]
    task = replace(CLINIC, features=(*CLINIC.features[:-1], category("ward", ("0", "1"))))
    found = read(clinic.source(kind, rows), task).records.features
    plain = [row | {"ward": str(row["ward"])[0]} for row in rows]
    assert np.array_equal(found, read(clinic.source(kind, plain), task).records.features)


# Identifiers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["DECIMAL(25,0)", "DECIMAL(27,2)"])
def test_long_identifiers_are_told_apart(clinic: Clinic, text: str) -> None:
    source = clinic.source("duckdb", visits(3, seed=1))
    long = 12345678901234567890
    query = (
        f"SELECT v.* REPLACE (CAST({long} + patient_id AS {text}) AS patient_id) "  # noqa: S608
        "FROM visits v"
    )
    assert len(read(replace(source, query=query), CLINIC).records) == 3


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgresql"])
def test_a_float_that_cannot_tell_people_apart_is_refused(clinic: Clinic, kind: str) -> None:
    source = clinic.source(kind, visits(3, seed=1))
    others = ", ".join((*CLINIC.columns, CLINIC.label, "taken_at"))
    query = "SELECT {}, CAST(patient_id + {} AS DOUBLE PRECISION) AS patient_id FROM visits"
    near = replace(source, query=query.format(others, 2**53 - 2000))
    assert len(read(near, CLINIC).records) == 3
    far = replace(source, query=query.format(others, 2**53))
    with pytest.raises(BadRecords, match=r"row 1, column 'patient_id': too long for a floating-"):
        read(far, CLINIC)


@pytest.mark.parametrize(
    ("kind", "first_lost"),
    [
        (pyarrow.float16(), 2**11),
        (pyarrow.float32(), 2**24),
        (pyarrow.float64(), 2**53),
    ],
)
def test_floats_of_a_parquet_file_are_persons_as_far_as_they_tell_them_apart(
    clinic: Clinic, kind: pyarrow.DataType, first_lost: int
) -> None:
    rows = visits(3, seed=1)
    known = list(dict.fromkeys(row["patient_id"] for row in rows))

    def found(*identifiers: float) -> Reading:
        """With these persons, as floats of this type."""
        named = dict(zip(known, identifiers, strict=True))
        cells = np.array([named[row["patient_id"]] for row in rows], kind.to_pandas_dtype())
        source = clinic.parquet(rows)
        table = pyarrow.parquet.read_table(source.path)
        place = table.column_names.index("patient_id")
        floats = table.set_column(place, "patient_id", pyarrow.array(cells, kind))
        pyarrow.parquet.write_table(floats, source.path)
        return read(source, CLINIC)

    as_integers = [row | {"patient_id": known.index(row["patient_id"])} for row in rows]
    whole = read(clinic.parquet(as_integers), CLINIC).records
    assert found(0, 1, 2).records.features.tobytes() == whole.features.tobytes()
    assert len(found(first_lost - 3, first_lost - 2, first_lost - 1).records) == 3
    for lost in (first_lost, first_lost + 1, -first_lost):
        with pytest.raises(
            BadRecords, match=r"visits\.parquet: row \d+, column 'patient_id': too long for a float"
        ):
            found(1, 2, lost)
    with pytest.raises(BadRecords, match=r"column 'patient_id': not a whole number: 2\.5; give"):
        found(1, 2, 2.5)
    with pytest.raises(BadRecords, match="column 'patient_id': no person"):
        found(1, 2, np.nan)


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_a_short_float_of_a_database_is_refused_earlier(clinic: Clinic, kind: str) -> None:
    source = clinic.source(kind, visits(3, seed=1))
    others = ", ".join((*CLINIC.columns, CLINIC.label, "taken_at"))
    query = "SELECT {}, CAST(patient_id + {} AS REAL) AS patient_id FROM visits"
    near = replace(source, query=query.format(others, 2**24 - 2000))
    assert len(read(near, CLINIC).records) == 3
    far = replace(source, query=query.format(others, 2**24))
    with pytest.raises(BadRecords, match=r"row 1, column 'patient_id': too long for a floating-"):
        read(far, CLINIC)


@DATABASES
def test_a_person_with_a_fraction_has_to_be_a_text(clinic: Clinic, kind: str) -> None:
    source = clinic.source(kind, visits(3, seed=1))
    others = ", ".join((*CLINIC.columns, CLINIC.label, "taken_at"))
    query = "SELECT {}, {} AS patient_id FROM visits"
    wrong = replace(source, query=query.format(others, "patient_id + 0.5"))
    with pytest.raises(BadRecords, match=r"row 1, column 'patient_id': not a whole number: \d+\.5"):
        read(wrong, CLINIC)
    right = replace(source, query=query.format(others, "CAST(patient_id + 0.5 AS VARCHAR)"))
    assert len(read(right, CLINIC).records) == 3


def test_an_open_quote_does_not_swallow_the_rows_after_it(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    rows = [CELLS.format(n).replace(",7,", f",{n},") for n in range(5)]
    rows[4] = rows[4].removesuffix("2025-01-01") + '"2025-01-01'
    path.write_text("\n".join([HEADER, *rows, *rows[:2]]))
    with pytest.raises(
        BadRecords, match=r"v\.csv: not a CSV file: row 6: .* is there an open quote"
    ):
        read(CsvFile(path), CLINIC)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("taken_at", pyarrow.timestamp("s"), 10**13),
        ("taken_at", pyarrow.timestamp("s"), 10**12),
        ("taken_at", pyarrow.timestamp("us"), 2**62),
        ("taken_at", pyarrow.date32(), 2**31 - 1),
        ("sbp", pyarrow.date32(), 2**31 - 1),
    ],
)
def test_a_date_beyond_all_calendars_is_refused_with_its_column(
    column: str, kind: pyarrow.DataType, value: int, clinic: Clinic
) -> None:
    source = clinic.parquet(visits(3, seed=1))
    table = pyarrow.parquet.read_table(source.path)
    whole = pyarrow.int32() if kind == pyarrow.date32() else pyarrow.int64()
    cells = pyarrow.array([value] * len(table), whole).cast(kind)
    place = table.column_names.index(column)
    pyarrow.parquet.write_table(table.set_column(place, column, cells), source.path)
    with pytest.raises(BadRecords, match=rf"visits\.parquet: column '{column}': a value that"):
        read(source, CLINIC)


def test_a_sqlite_file_in_use_can_be_read(clinic: Clinic) -> None:
    source = clinic.source("sqlite", visits(3, seed=1))
    with sqlite3.connect(clinic.folder / "visits.sqlite") as other:
        other.execute("SELECT * FROM visits").fetchone()
        assert len(read(source, CLINIC).records) == 3
    other.close()
