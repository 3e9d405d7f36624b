"""`silomix reproduce lr` on people who are made up here: silos, noise, errors, claims."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from silomix.main import app
from silomix_core.accounting.bounds.noise_formulas import multi_pass_sigma
from silomix_core.task.task import UNIT
from silomix_lab.reproduce import insurance, lowy2023
from silomix_protocol.host.failure import Failure
from typer.testing import CliRunner

PEOPLE = 400
TASK = insurance.Coding.WIDE.task
HEADER = ("age", "sex", "bmi", "children", "smoker", "region", "charges")


def make_people(folder: Path) -> Path:
    """Charges follow from age, weight and smoking; the last line repeats the first."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(PEOPLE):
        age, bmi, smokes = int(rng.integers(18, 65)), rng.uniform(18, 45), rng.random() < 0.3
        charges = 200 * age + 300 * bmi + 20000 * smokes + 1000 * rng.normal()
        region = rng.choice(["northeast", "northwest", "southeast", "southwest"])
        sex, children = rng.choice(["female", "male"]), int(rng.integers(0, 6))
        smoker = "yes" if smokes else "no"
        rows.append((age, sex, f"{bmi:.3f}", children, smoker, region, f"{charges:.4f}"))
    with (folder / "insurance.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows, rows[0]])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_people(tmp_path_factory.mktemp("people"))


def test_silos_are_groups_by_charges_and_share_nobody_with_the_test_set(folder: Path) -> None:
    people = insurance.load(folder)
    assert len(people.charges) == PEOPLE  # who is there twice counts once
    split = insurance.split(folder, TASK, seed=3)
    assert (
        [len(silo) for silo in split.silos] == [people.records] * 3 == [PEOPLE * 8 // 10 // 3] * 3
    )
    lows = [silo.labels.min() for silo in split.silos]
    highs = [silo.labels.max() for silo in split.silos]
    assert highs[0] <= lows[1] < highs[1] <= lows[2]
    rows = [row.tobytes() for silo in split.silos for row in silo.features]
    rows += [row.tobytes() for row in split.test_features]
    assert len(set(rows)) == len(rows) == PEOPLE
    other = insurance.split(folder, TASK, seed=4)
    assert set(other.test_charges) != set(split.test_charges)


def test_a_record_becomes_what_the_bounds_say(tmp_path: Path) -> None:
    lines = [f"{age},male,35,10,yes,southeast,{age}.5" for age in range(40)]
    text = "\n".join([",".join(HEADER), "100,female,60,0,no,northwest,65000", *lines])
    (tmp_path / "insurance.csv").write_text(text)
    people = insurance.load(tmp_path)
    encoded = TASK.encode(people.listed(TASK)) * 3 / UNIT
    assert encoded[0, :-1] == pytest.approx([1, -1, 1, -1, -1, -1, 1, -1, -1], abs=1e-4)
    assert encoded[1, :-1] == pytest.approx([-1, 1, 0, 1, 1, -1, -1, 1, -1], abs=1e-4)
    task = insurance.Coding.NARROW_ONE_COLUMN.task
    encoded = task.encode(people.listed(task)) * np.sqrt(6) / UNIT
    assert encoded[0, :-1] == pytest.approx([1, -1, 1, -1, -1, -1 / 3], abs=1e-4)
    assert encoded[1, :-1] == pytest.approx([-1, 1, 0, 1, 1, 1 / 3], abs=1e-4)


def test_interactions_are_products_of_what_the_features_become(tmp_path: Path) -> None:
    lines = [f"{age},male,50,10,yes,southeast,{age}.5" for age in range(40)]
    text = "\n".join([",".join(HEADER), "65,female,18.5,0,no,northwest,65000", *lines])
    (tmp_path / "insurance.csv").write_text(text)
    people = insurance.load(tmp_path)
    task = insurance.Coding.NARROWER_SMOKER_BMI.task
    encoded = task.encode(people.listed(task)) * np.sqrt(7) / UNIT
    assert encoded[0, :-1] == pytest.approx([1, -1, -1, -1, -1, 0, 1, 0, 0, 1], abs=1e-4)
    assert encoded[1, :-1] == pytest.approx([-1, 1, 1, 1, 1, 0, 0, 1, 0, 1], abs=1e-4)
    assert insurance.Coding.NARROWER_SMOKER_ALL.task.dimension == 18


def test_autos_numbers_follow_from_the_noise(folder: Path) -> None:
    quiet, loud = (lowy2023.choice(folder, lowy2023.AUTO, epsilon) for epsilon in (50.0, 0.2))
    others = lowy2023.choice(folder, lowy2023.MB_SGD[0], 0.2)
    assert (others.clip, others.radius) == (quiet.clip, quiet.radius)
    assert loud.clip < quiet.clip
    assert loud.radius < quiet.radius
    made = lowy2023._study(folder, lowy2023.AUTO, 0.2)
    assert (made.mechanism.clip, made.setting.radius) == (loud.clip, loud.radius)
    assert made.setting.descent == loud.descent


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age,sex\n1,male\n", "the first line must be age,sex,bmi"),
        (",".join(HEADER) + "\n40,man,30,0,no,northeast,100\n", "line 2: not a record"),
        (",".join(HEADER) + "\n40,male,30,0,no,northeast\n", "line 2: not a record"),
        (",".join(HEADER) + "\n40,male,30,0,no,northeast,100\n", "1 different records are too few"),
    ],
)
def test_a_file_that_is_something_else_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "insurance.csv").write_text(text)
    with pytest.raises(Failure, match=says):
        insurance.load(tmp_path)


def test_the_printed_noise_counts_every_local_step(folder: Path) -> None:
    n = insurance.load(folder).records
    for method, events in ((lowy2023.PRINTED_MB_SGD[0], 15), (lowy2023.PRINTED_LOCAL_SGD[0], 75)):
        sigma = multi_pass_sigma(
            lipschitz=method.clip, records=n, batch=n, rounds=events, epsilon=2.5, delta=1 / n**2
        )
        assert lowy2023._study(folder, method, 2.5).mechanism.sigma() == pytest.approx(sigma)
    assert "ln(2/delta)" in (lowy2023.refusal(folder, lowy2023.PRINTED_MB_SGD[0], 20.0) or "")
    assert lowy2023.refusal(folder, lowy2023.MB_SGD[0], 20.0) is None


def test_the_command_writes_errors_over_the_mean_square_and_the_claims(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (lowy2023.MB_SGD[0], lowy2023.LOCAL_SGD[0], lowy2023.PRINTED_MB_SGD[0], *lowy2023.AUTOS)
    monkeypatch.setattr(lowy2023, "METHODS", few)
    monkeypatch.setattr(lowy2023, "EPSILONS", (2.5, 20.0))
    monkeypatch.setattr(lowy2023, "AIMS", {20.0: 50.0})
    result = CliRunner().invoke(
        app,
        [
            *("reproduce", "lr", "--data", str(folder), "--trials", "2"),
            *("--out", str(tmp_path), "--processes", "1"),
        ],
    )
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads((tmp_path / "lr.json").read_text())
    rows = {(row["algorithm"], row["noise"], row["epsilon"]): row for row in found["rows"]}
    refused = rows["plain-mb-sgd", "printed formula", 20.0]
    assert refused["errors"] == []
    assert "epsilon" in refused["refused"]
    # noise of 1000 in charges of 20000 or so; everybody at 32500 would be wrong by 40 % and more
    assert 0 < found["floor"] < 1
    auto, narrow = (rows[name, "exact", 20.0] for name in ("auto", "auto, narrow bounds"))
    assert found["floor"] < auto["error"] < 5
    assert found["floor"] < narrow["error"] < 5
    assert narrow["errors"] != auto["errors"]
    verdicts = {each["says"]: each["verdict"] for each in found["claims"]}
    assert verdicts["ours: auto: error is below its aims"] == "holds"
    assert len(verdicts) == 3 + 2 * len(insurance.Coding)
    crossed = rows["auto, region as a category, smoker × bmi", "exact", 20.0]
    assert auto["floor"] == found["floor"] != crossed["floor"]
    assert "ε = 20 | no privacy |" in (tmp_path / "lr.md").read_text()
    assert "| auto, narrow bounds |" in (tmp_path / "lr.md").read_text()
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")
