"""What the demo relies on its data for: repeatable, honest about the hold-out, clear refusals."""

import csv
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from silomix_lab.datasets.breast_cancer import breast_cancer
from silomix_lab.datasets.by_name import load
from silomix_lab.datasets.cohorts import cohorts
from silomix_lab.datasets.csv_table import from_csv
from silomix_lab.datasets.tables import BadData, DemoData, SiloTable, write_csv
from silomix_lab.scoring import error, majority_error, mean_loss, pooled_error

Make = Callable[[int, int], DemoData]
MAKERS = pytest.mark.parametrize("make", [cohorts, breast_cancer])


def tables(data: DemoData) -> tuple[SiloTable, ...]:
    return (*data.silos, data.holdout)


def rows(table: SiloTable) -> list[bytes]:
    """Records as comparable values, sorted; NaN equals NaN."""
    joined = np.column_stack([table.values, table.labels])
    return sorted(
        np.where(np.isnan(joined), -1e300, joined)[i].tobytes() for i in range(len(table))
    )


@MAKERS
def test_the_same_seed_gives_the_same_data(make: Make) -> None:
    for first, second in zip(tables(make(3, 7)), tables(make(3, 7)), strict=True):
        np.testing.assert_array_equal(first.values, second.values)
        np.testing.assert_array_equal(first.labels, second.labels)


@MAKERS
def test_another_seed_gives_other_data(make: Make) -> None:
    assert rows(make(3, 7).holdout) != rows(make(3, 8).holdout)


@MAKERS
def test_no_record_is_in_two_places(make: Make) -> None:
    seen = [row for table in tables(make(4, 1)) for row in rows(table)]
    assert len(set(seen)) == len(seen)


@MAKERS
def test_public_bounds_hold_nearly_all_values_of_every_feature(make: Make) -> None:
    data = make(5, 2)
    values = np.concatenate([table.values for table in tables(data)])
    for column, feature in zip(values.T, data.task.features, strict=True):
        known = column[~np.isnan(column)]
        inside = np.mean((feature.low <= known) & (known <= feature.high))
        assert inside >= 0.95, feature.name


@MAKERS
def test_tables_fit_the_task(make: Make) -> None:
    data = make(5, 3)
    assert len(data.silos) == 5
    assert data.task.bias == 0.3
    for table in tables(data):
        assert table.values.shape == (len(table), len(data.task.features))
        assert set(table.labels) == {0.0, 1.0}


@pytest.mark.parametrize(("silos", "seed"), [(3, 0), (5, 1), (10, 2)])
def test_learning_is_visible_on_cohorts(silos: int, seed: int) -> None:
    data = cohorts(silos, seed)
    assert 0.11 < pooled_error(data) < 0.18
    assert 0.35 < majority_error(data) < 0.45


def test_learning_is_visible_on_breast_cancer() -> None:
    data = breast_cancer(5, 0)
    assert pooled_error(data) < 0.08
    assert majority_error(data) > 0.3


@pytest.mark.parametrize("silos", [2, 10, 100])
def test_cohort_sizes_all_differ(silos: int) -> None:
    sizes = [len(silo) for silo in cohorts(silos, 4, rows_per_silo=300).silos]
    assert len(set(sizes)) == silos
    assert min(sizes) >= 0.69 * 300
    assert max(sizes) <= 1.31 * 300


def test_cohorts_differ_in_case_mix_and_prevalence_and_miss_values() -> None:
    data = cohorts(6, 5)
    prevalence = [silo.labels.mean() for silo in data.silos]
    assert max(prevalence) - min(prevalence) > 0.05
    age = [np.nanmean(silo.values[:, 0]) for silo in data.silos]
    assert max(age) - min(age) > 2
    assert 0.015 < np.isnan(data.holdout.values).mean() < 0.025
    assert len(data.holdout) == 4000


@pytest.mark.parametrize(("silos", "per_silo"), [(0, 2000), (3, 10), (1000, 200)])
def test_cohorts_that_cannot_be_made_are_refused(silos: int, per_silo: int) -> None:
    with pytest.raises(BadData, match="cohorts"):
        cohorts(silos, 0, per_silo)


@pytest.mark.parametrize("silos", [0, 22])
def test_breast_cancer_over_too_many_silos_is_refused(silos: int) -> None:
    with pytest.raises(BadData, match=r"breast-cancer: .*silos"):
        breast_cancer(silos, 0)


def test_error_and_loss_of_known_models() -> None:
    task = Task(LossName.LOGISTIC, "y", (Feature("x", -1, 1, 0),), Scaling.UNIT_BALL, 0.3)
    table = SiloTable(np.array([[1.0], [-1.0], [np.nan]]), np.array([1.0, 0.0, 1.0]))
    assert error(np.array([2.0, 0.0]), table, task) == pytest.approx(1 / 3)  # score 0 predicts 0
    assert error(np.array([2.0, 1.0]), table, task) == 0
    assert mean_loss(np.zeros(2), table, task) == pytest.approx(np.log(2))
    encoded = task.encode(table.values) / UNIT
    signs = np.array([1, -1, 1])
    by_hand = np.log1p(np.exp(-signs * (encoded @ [2.0, 1.0]))).mean()
    assert mean_loss(np.array([2.0, 1.0]), table, task) == pytest.approx(by_hand)


def test_pooled_regression_is_as_good_as_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    data = cohorts(3, 6)
    task = data.task
    pooled = np.concatenate([task.encode(silo.values) for silo in data.silos]) / UNIT
    labels = np.concatenate([silo.labels for silo in data.silos])
    theirs = LogisticRegression(C=1e3, max_iter=1000, fit_intercept=False).fit(pooled, labels)
    holdout = task.encode(data.holdout.values) / UNIT
    reference = 1 - theirs.score(holdout, data.holdout.labels)
    assert pooled_error(data) == pytest.approx(reference, abs=0.002)


def test_a_written_table_is_read_back_exactly(tmp_path: Path) -> None:
    data = cohorts(2, 9, rows_per_silo=200)
    path = tmp_path / "silo.csv"
    write_csv(data.silos[0], data.task, path)
    again = from_csv(path, "readmitted", 1, 0)
    both = SiloTable(
        np.concatenate([table.values for table in tables(again)]),
        np.concatenate([table.labels for table in tables(again)]),
    )
    assert again.task.columns == data.task.columns
    assert rows(both) == rows(data.silos[0])


def test_writing_keeps_every_bit_and_the_owner_alone_can_read(tmp_path: Path) -> None:
    task = Task(LossName.LOGISTIC, "y", (Feature("a, b", 0, 1, 0),), Scaling.UNIT_BALL, 0.3)
    path = tmp_path / "silo.csv"
    path.write_text("old and longer than the new content " * 9)
    path.chmod(0o644)
    write_csv(SiloTable(np.array([[0.1 + 0.2], [np.nan]]), np.array([1.0, 0.0])), task, path)
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["a, b", "y"], ["0.30000000000000004", "1"], ["", "0"]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def sample(path: Path, *, count: int = 60, header: str = "x,flag,y", **lines: str) -> Path:
    """A good file, with the rows given as row_5="…" replaced (the header is row 1)."""
    text = [header, *(f"{k / 7},{k % 2},{k % 3 // 2}" for k in range(count))]
    for name, line in lines.items():
        text[int(name.removeprefix("row_")) - 1] = line
    path.write_text("\n".join(text) + "\n")
    return path


def test_a_csv_file_is_split_with_a_fifth_held_out(tmp_path: Path) -> None:
    data = from_csv(sample(tmp_path / "own.csv", row_4=",1,1"), "y", 2, 0)
    assert [len(table) for table in tables(data)] == [24, 24, 12]
    assert data.name == "own"
    assert data.task.columns == ("x", "flag")
    assert sum(int(np.isnan(table.values).sum()) for table in tables(data)) == 1
    assert "leak" in data.describes


def test_a_rare_flag_keeps_its_range(tmp_path: Path) -> None:
    lines = [f"{int(k == 0)},{k},{k % 2}" for k in range(200)]
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(["flag,x,y", *lines]))
    flag = from_csv(path, "y", 1, 0).task.features[0]
    assert (flag.low, flag.high) == (0, 1)


@pytest.mark.parametrize(
    ("zero", "one"),
    [("0", "1"), ("no", "yes"), ("2", "10"), ("0.0", "1"), ("-1", "1"), (" 0", "1")],
)
def test_two_labels_are_mapped_in_order(tmp_path: Path, zero: str, one: str) -> None:
    path = tmp_path / "labels.csv"
    lines = [f"{k},{one if k < 10 else zero}" for k in range(50)]
    path.write_text("\n".join(["x,y", *lines]))
    for table in tables(from_csv(path, "y", 1, 0)):
        np.testing.assert_array_equal(table.labels, table.values[:, 0] < 10)


def test_a_spreadsheets_signature_spaces_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    path = sample(tmp_path / "excel.csv", header="\ufeffx, flag ,y", row_9="")
    data = from_csv(path, "y", 2, 0)
    assert data.task.columns == ("x", "flag")
    assert sum(map(len, tables(data))) == 59


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ({"row_7": "blue,1,0"}, ["row 7", "'x'", "'blue'", "not a number", "0/1 columns"]),
        ({"row_7": "1,inf,0"}, ["row 7", "'flag'", "'inf'", "not finite"]),
        ({"row_7": "nan,1,0"}, ["row 7", "'x'", "not finite", "leave it empty"]),
        ({"row_7": "1,1e200,0"}, ["row 7", "'flag'", "too large"]),
        ({"row_7": "1,0"}, ["row 7", "2 cells", "header has 3"]),
        ({"row_7": "1,0,1,1"}, ["row 7", "4 cells", "header has 3"]),
        ({"row_7": "1,0,2"}, ["row 7", "'y'", "third label"]),
        ({"row_7": "1,0,"}, ["row 7", "'y'", "no label"]),
        ({"row_3": "", "row_7": "blue,1,0"}, ["row 7", "'x'"]),  # a blank line still counts
        ({"header": "x,flag,outcome"}, ["no column 'y'", "columns: x, flag, outcome"]),
        ({"header": "x,x,y"}, ["row 1", "column 2", "twice"]),
        ({"header": "x,,y"}, ["row 1", "column 2", "no name"]),
        ({"count": 40}, ["40 rows", "2 silos", "at least 20", "fewer silos"]),
        ({"count": 0}, ["no rows"]),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, lines: dict[str, str], wanted: list[str]) -> None:
    path = sample(tmp_path / "own.csv", **lines)  # type: ignore[arg-type]  # one dict, mixed
    with pytest.raises(BadData) as refusal:
        from_csv(path, "y", 2, 0)
    for part in [str(path), *wanted]:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"y\n" + b"0\n1\n" * 40, "only the column 'y'"),
        (b"x,y\n" + b"1,0\n2,0\n" * 40, "1 different labels"),
        (b"x,y\n" + b"3,0\n3,1\n" * 40, "column 'x': the same in all rows"),
        (b"x,y\n" + b",0\n,1\n" * 40, "column 'x': the same in all rows"),
        (b"x,y\n\xff\xfe,0\n", "not a CSV text in UTF-8"),
    ],
)
def test_a_useless_file_is_refused(tmp_path: Path, content: bytes, wanted: str) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(content)
    with pytest.raises(BadData) as refusal:
        from_csv(path, "y", 2, 0)
    assert str(path) in str(refusal.value)
    assert wanted in str(refusal.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none\.csv: no such file"):
        from_csv(tmp_path / "none.csv", "y", 2, 0)
    with pytest.raises(BadData, match="cannot be read"):
        from_csv(tmp_path, "y", 2, 0)


def test_data_sets_are_loaded_by_name(tmp_path: Path) -> None:
    assert load("cohorts", None, 3, 0).name == "cohorts"
    assert load("breast-cancer", None, 3, 0).name == "breast-cancer"
    assert load(str(sample(tmp_path / "OWN.CSV")), "y", 2, 0).name == "OWN"


CHARGES = Goal(LossName.HUBER, label_bounds=(0.0, 100.0), threshold=10.0)


def charges(path: Path, row_9: str = "1,2,3") -> Path:
    """y = 10·x + 5 but for clamping, and a few missing cells of the other column."""
    lines = [f"{k / 20},{'' if k % 7 == 0 else k % 5},{5 + k / 2}" for k in range(200)]
    path.write_text("\n".join(["x,other,y", *lines[:7], row_9, *lines[7:]]))
    return path


def test_a_csv_file_may_have_a_number_as_its_label(tmp_path: Path) -> None:
    data = load(str(charges(tmp_path / "own.csv")), "y", 3, 0, CHARGES)
    assert data.task.loss is LossName.HUBER
    assert (data.task.label_bounds, data.task.threshold) == ((0.0, 100.0), 10.0)
    assert max(table.labels.max() for table in tables(data)) == 104.5
    assert pooled_error(data) < 0.01 < majority_error(data)
    write_csv(data.silos[0], data.task, tmp_path / "silo.csv")
    again = from_csv(tmp_path / "silo.csv", "y", 1, 0, CHARGES)
    both = np.concatenate([table.labels for table in tables(again)])
    assert sorted(both) == sorted(data.silos[0].labels)


@pytest.mark.parametrize(("row", "wanted"), [("1,2,", "no label"), ("1,2,low", "not a number")])
def test_a_label_that_is_no_number_is_named(tmp_path: Path, row: str, wanted: str) -> None:
    with pytest.raises(BadData, match=rf"row 9, column 'y': .*{wanted}"):
        from_csv(charges(tmp_path / "own.csv", row), "y", 3, 0, CHARGES)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    goal = Goal(LossName.MULTINOMIAL, classes=3)
    with pytest.raises(BadData, match="column 'y': a label must be a whole number from 0 to 2"):
        from_csv(charges(tmp_path / "own.csv"), "y", 3, 0, goal)


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(BadData, match=r"'mnist'.*'cohorts', 'breast-cancer' or .*\.csv"):
        load("mnist", None, 3, 0)


def test_a_csv_without_a_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="--label"):
        load(str(sample(tmp_path / "own.csv")), None, 2, 0)
