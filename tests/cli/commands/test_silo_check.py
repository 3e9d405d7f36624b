"""`silomix silo check` and `study show`: what a data steward is told, and that nothing is left."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from silomix.main import app
from silomix.text.data_spec import describe_specification
from silomix_core.task.feature import Feature
from silomix_lab.consortium.create import Consortium
from silomix_server.errors import InvalidServerConfig
from silomix_server.study.holdout import Holdout
from support.consortia import SMALL_TASK, make_consortium
from support.people import CLINIC, Clinic, Visit, visits
from typer.testing import CliRunner, Result


@pytest.fixture(scope="module")
def rows() -> list[Visit]:
    return visits(40, seed=2)


@pytest.fixture
def made(tmp_path: Path, rows: list[Visit]) -> Consortium:
    made = make_consortium(tmp_path / "c", records=(40, 50), task=CLINIC)
    clinic = Clinic(made.silos[0].parent, "")
    clinic.csv(rows)
    data = {"kind": "csv", "path": "visits.csv"}
    settings = {"name": "silo-1", "policy": "policy.toml", "data": data}
    made.silos[0].write_text(tomli_w.dumps(settings))
    return made


def check(made: Consortium) -> Result:
    study = made.folder / "study.toml"
    return CliRunner().invoke(app, ["silo", "check", str(made.silos[0]), str(study)])


def test_a_study_file_says_all_that_the_task_says(made: Consortium) -> None:
    assert made.study.task == CLINIC


def test_the_dry_run_shows_counts_ranges_and_missing_and_leaves_nothing(
    made: Consortium, rows: list[Visit]
) -> None:
    files = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    result = check(made)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    of_each: dict[object, list[Visit]] = {}
    for row in rows:
        of_each.setdefault(row["patient_id"], []).append(row)
    several = [len(mine) for mine in of_each.values() if len(mine) > 1]
    ages = [
        max((row["age"] for row in mine if row["age"] is not None), default=None)
        for mine in of_each.values()
    ]
    known = [age for age in ages if age is not None]
    beyond = sum(not 0 <= age <= 120 for age in known)
    smokers = [
        [row["smoker"] for row in mine if row["smoker"] is not None] for mine in of_each.values()
    ]
    for text in (
        f"rows {len(rows)} of 40 people; {len(several)} of them have several rows, one has "
        f"{max(several)}",
        f"age: {len(known)} values, {min(known)} to {max(known)}; {beyond} beyond the bounds, "
        "clamped",
        f"smoker: false: {sum(bool(each) and not any(each) for each in smokers)}, "
        f"true: {sum(map(any, smokers))}",
        f"{sum(not each for each in smokers)} missing, taken for false",
        "people 40: as the study says; your policy asks for at least 1",
        "nothing was written or sent",
    ):
        assert text in shown, text
    assert {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()} == files
    assert not (made.silos[0].parent / "state").exists()


def failed(made: Consortium) -> str:
    result = check(made)
    assert result.exit_code != 0
    return str(result.exception)


def test_the_dry_run_fails_as_an_approval_would(made: Consortium) -> None:
    path = made.silos[0].parent / "visits.csv"
    whole = path.read_text()
    path.write_text(whole.replace(",female,", ",woman,", 1))
    assert "column 'sex': not one of female, male, other: 'woman'" in failed(made)
    path.write_text(whole)
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text(policy.read_text().replace("minimum_people = 11", "minimum_people = 41"))
    assert failed(made).endswith("visits.csv: 40 people, your policy asks for at least 41")


def test_a_silo_that_the_study_does_not_name_yet_is_told_its_number(made: Consortium) -> None:
    made.silos[0].write_text(made.silos[0].read_text().replace("silo-1", "newcomer"))
    assert "people           40: tell the study lead" in check(made).output


def test_an_outline_without_keys_is_enough_to_count_people(made: Consortium) -> None:
    path = made.folder / "study.toml"
    study = tomllib.loads(path.read_text())
    outline = {key: study[key] for key in ("version", "name", "task")}
    path.write_text(tomli_w.dumps(outline | {"silos": [{"name": "silo-1"}]}))
    assert "people           40: tell the study lead" in check(made).output
    path.write_text(tomli_w.dumps(outline | {"silos": [{"name": "silo-1", "records": 41}]}))
    assert "40 people, the study says 41" in failed(made)


def test_an_outline_is_shown_the_way_to_a_study(made: Consortium) -> None:
    path = made.folder / "study.toml"
    study = tomllib.loads(path.read_text())
    study["silos"] = [{"name": "silo-1"}, {"name": "silo-2"}]
    path.write_text(tomli_w.dumps(study))
    result = CliRunner().invoke(app, ["study", "show", str(path)])
    told = str(result.exception)
    assert "missing key: silos[0].sign_key" in told
    assert "`silomix study assemble` puts keys into an outline" in told


def test_a_study_says_in_words_what_it_asks_of_the_data(made: Consortium) -> None:
    study = made.folder / "study.toml"
    result = CliRunner().invoke(app, ["study", "show", str(study)])
    shown = " ".join(result.output.split())
    for text in (
        "people rows that agree in patient_id are one person, in the order of taken_at",
        "age: a number, clamped to 0 to 120 a; missing counts as 60; of several rows the largest",
        "dose: a number, clamped to 0 to 500; missing counts as 0; of several rows their sum",
        "visits: a number, clamped to 0 to 20; missing counts as 0; of several rows counts how "
        "many rows have a value",
        "smoker: true or false; missing counts as false; of several rows true if one of them is",
        "sex: one of female, male, other; missing counts as none of them; of several rows the "
        "first counts",
        "ward: one of icu, surgery, medicine; missing counts as medicine; of several rows the last",
        "readmitted: 0 or 1; missing counts as 0; of several rows 1 if one of them is",
    ):
        assert text in shown, text


def test_a_study_without_a_person_column_says_that_a_row_is_a_person() -> None:
    shown = " ".join(" ".join(describe_specification(SMALL_TASK)).split())
    assert "every row is taken for another person" in shown
    assert "give one row per person" in shown


def test_where_codes_are_looked_for_is_shown() -> None:
    feature = Feature("sbp", 0, 1, 0, codes=("http://loinc.org|8480-6",), concepts=(3004249,))
    asked = replace(SMALL_TASK, features=(feature,))
    shown = " ".join(" ".join(describe_specification(asked)).split())
    assert "FHIR codes http://loinc.org|8480-6" in shown
    assert "OMOP concepts 3004249" in shown


def test_a_public_hold_out_has_one_row_for_each_person(tmp_path: Path) -> None:
    path = tmp_path / "holdout.csv"
    header = ",".join((*CLINIC.columns, CLINIC.label))
    path.write_text(f"{header}\n40,130,1,5,3,true,male,,1\n,,,,,,,icu,0\n")
    scores = Holdout(CLINIC, path).score(np.zeros(CLINIC.dimension))
    assert scores["loss"] == pytest.approx(0.6931, abs=1e-4)
    path.write_text(f"{header}\n40,130,1,5,3,true,man,,1\n")
    with pytest.raises(InvalidServerConfig, match=r"holdout\.csv: row 2: not one of female, male"):
        Holdout(CLINIC, path)
    path.write_text("age\n40\n")
    with pytest.raises(InvalidServerConfig, match=r"holdout\.csv: row 2: no column 'sbp'"):
        Holdout(CLINIC, path)
