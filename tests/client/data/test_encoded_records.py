"""A hospital's CSV: good ones are read exactly, every bad one is refused with file, row, column."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_client.errors import BadRecords
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT
from support.consortia import SMALL_TASK, write_data
from support.records import read_records

NUMBERS = replace(SMALL_TASK, loss=LossName.ABSOLUTE, label_bounds=(0.0, 200.0))

HEADER = "age,dose,outcome\n"


def csv_file(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.csv"
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def refusal(folder: Path, content: str | bytes) -> str:
    path = csv_file(folder, content)
    with pytest.raises(BadRecords) as caught:
        read_records(path, SMALL_TASK)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# What is read ------------------------------------------------------------------------------------


def test_records_are_scaled_to_the_public_bounds_and_labels_become_signs(tmp_path: Path) -> None:
    path = csv_file(tmp_path, HEADER + "0,-1,0\n100,1,1\n50,0,1\n")
    records = read_records(path, SMALL_TASK)
    edge, bias = round(UNIT / 2**0.5), round(0.3 * UNIT)
    assert records.features.tolist() == [[-edge, -edge, bias], [edge, edge, bias], [0, 0, bias]]
    assert records.labels.tolist() == [-1, 1, 1]


def test_values_beyond_the_bounds_are_clamped(tmp_path: Path) -> None:
    wild = read_records(csv_file(tmp_path, HEADER + "-1e300,7,0\n1e308,-9,1\n"), SMALL_TASK)
    tame = read_records(csv_file(tmp_path, HEADER + "0,1,0\n100,-1,1\n"), SMALL_TASK)
    assert np.array_equal(wild.features, tame.features)


def test_a_missing_cell_takes_the_declared_value(tmp_path: Path) -> None:
    missing = read_records(csv_file(tmp_path, HEADER + ",,0\n  , ,1\n"), SMALL_TASK)
    declared = read_records(csv_file(tmp_path, HEADER + "50,0,0\n50,0,1\n"), SMALL_TASK)
    assert np.array_equal(missing.features, declared.features)


@pytest.mark.parametrize("text", ["nan", "NaN", " NAN "])
def test_nan_written_out_is_a_missing_value(tmp_path: Path, text: str) -> None:
    missing = read_records(csv_file(tmp_path, HEADER + f"{text},0,0\n"), SMALL_TASK)
    declared = read_records(csv_file(tmp_path, HEADER + "50,0,0\n"), SMALL_TASK)
    assert np.array_equal(missing.features, declared.features)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + HEADER.encode() + b"10,0.5,1\n",  # byte order mark, as Excel writes
        HEADER + "10,0.5,1",  # no newline at the end
        HEADER.replace("\n", "\r\n") + "10,0.5,1\r\n",
        HEADER + '"10","0.5","1"\n',
        HEADER + " 10 ,0.5,1.0\n",
        "outcome,name,dose,age\n1,Ann,0.5,10\n",  # other order, and columns nobody asked for
    ],
)
def test_the_usual_ways_to_write_a_csv_give_the_same_records(
    tmp_path: Path, content: str | bytes
) -> None:
    plain = read_records(csv_file(tmp_path, HEADER + "10,0.5,1\n"), SMALL_TASK)
    read = read_records(csv_file(tmp_path, content), SMALL_TASK)
    assert np.array_equal(read.features, plain.features)
    assert np.array_equal(read.labels, plain.labels)


def test_a_number_as_a_label_is_clamped_and_scaled_by_its_public_bounds(tmp_path: Path) -> None:
    path = csv_file(tmp_path, HEADER + "0,0,-7\n0,0,50.0\n0,0,200\n0,0,1e300\n")
    assert read_records(path, NUMBERS).labels.tolist() == [-1, -0.5, 1, 1]


def test_a_missing_number_as_a_label_is_refused_with_row_and_column(tmp_path: Path) -> None:
    path = csv_file(tmp_path, HEADER + "0,0,7\n0,0,\n")
    with pytest.raises(BadRecords, match=r"row 3, column 'outcome': a label must be a number"):
        read_records(path, NUMBERS)


def test_every_row_is_a_record(tmp_path: Path) -> None:
    write_data(tmp_path / "data.csv", SMALL_TASK, 137, seed=4)
    assert len(read_records(tmp_path / "data.csv", SMALL_TASK)) == 137


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("old", "'old'"),
        ("1,5", None),  # a decimal comma makes one cell more
        ('"1,5"', "'1,5'"),
        ("inf", "'inf'"),
        ("-Infinity", "'-Infinity'"),
        ("1e999", "'1e999'"),
        ("0x1F", "'0x1F'"),
        ("12 mg", "'12 mg'"),
        ("N/A", "'N/A'"),
        ("x" * 5000, repr("x" * 40)),
    ],
)
def test_text_where_a_number_belongs_is_refused_with_row_and_column(
    tmp_path: Path, cell: str, shown: str | None
) -> None:
    message = refusal(tmp_path, HEADER + f"1,0,1\n2,0,0\n{cell},0,1\n")
    if shown is None:
        assert message == "row 4 has 4 cells, the header has 3"
    else:
        assert message == f"row 4, column 'age': not a number: {shown}"


def test_the_first_bad_cell_of_a_file_is_the_one_that_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, HEADER + "1,0,1\n2,low,0\nold,0,1\n")
    assert message == "row 3, column 'dose': not a number: 'low'"


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "", "nan", "1e-300"])
def test_a_label_other_than_0_or_1_is_refused_with_row_and_column(
    tmp_path: Path, label: str
) -> None:
    message = refusal(tmp_path, HEADER + f"1,0,1\n2,0,{label}\n3,0,7\n")
    assert message == "row 3, column 'outcome': a label must be 0 or 1"


@pytest.mark.parametrize("label", ["yes", "inf", "true"])
def test_a_label_that_is_no_number_is_refused_with_row_and_column(
    tmp_path: Path, label: str
) -> None:
    message = refusal(tmp_path, HEADER + f"1,0,1\n2,0,{label}\n")
    assert message == f"row 3, column 'outcome': not a number: {label!r}"


@pytest.mark.parametrize(("row", "cells"), [("1,0", 2), ("1,0,1,9", 4), ("", 0), ("1", 1)])
def test_a_ragged_row_is_refused_with_its_number(tmp_path: Path, row: str, cells: int) -> None:
    message = refusal(tmp_path, HEADER + f"1,0,1\n{row}\n2,0,1\n")
    assert message == f"row 3 has {cells} cells, the header has 3"


@pytest.mark.parametrize("column", ["age", "dose", "outcome"])
def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path, column: str) -> None:
    header = HEADER.replace(column, column.upper())
    message = refusal(tmp_path, header + "1,0,1\n")
    there = header.strip().replace(",", ", ")
    assert message == f"no column {column!r}; the file has: {there}"


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "") == "empty file; expected a header row"


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, HEADER) == "no records"


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, HEADER.encode() + b"1,0,1\n\xff,0,1\n").startswith("not UTF-8 text")


def test_a_cell_beyond_the_csv_limit_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, HEADER + "1" * 200_000 + ",0,1\n").startswith("not a CSV file")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecords, match=r"none\.csv: No such file or directory"):
        read_records(tmp_path / "none.csv", SMALL_TASK)


CELLS = st.one_of(
    st.floats().map(str), st.sampled_from(["", "0", "1", "nan", "inf", '"', "a", "\0", "-0", "1e5"])
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=5).map(
            lambda rows: (HEADER + "\n".join(",".join(row) for row in rows)).encode()
        ),
    )
)
def test_any_file_gives_valid_records_or_a_refusal_that_names_it(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = csv_file(Path(folder), content)
        try:
            records = read_records(path, SMALL_TASK)
        except BadRecords as caught:
            records, message = None, str(caught)
        if records is None:
            assert message.startswith(f"{path}: ")
        else:
            assert np.array_equal(records.features, np.rint(records.features))
            assert set(records.labels.tolist()) <= {-1.0, 1.0}
