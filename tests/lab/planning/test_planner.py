"""`silomix plan` as a person uses it: what is shown, written, drawn and refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from click.testing import Result
from silomix.main import app
from silomix_protocol.host.failure import Failure
from typer.testing import CliRunner

SHAPE = ("--records", "1734", "--silos", "25", "--dimension", "50")
EXAMPLE = (*SHAPE, "--epsilon", "3", "--delta", "3.33e-7", "--rounds", "100", "--clip", "1")
QUICK = ("--records", "60", "--silos", "4", "--dimension", "4", "--seeds", "2")


def silomix(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "silomix", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
        cwd=cwd,
    )


def in_process(*arguments: object) -> Result:
    """Without a picture, unless it says where."""
    if "--png" not in arguments:
        arguments = (*arguments, "--no-picture")
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", *map(str, arguments)])


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What the documented command prints and writes."""
    folder = tmp_path_factory.mktemp("plan")
    path = folder / "out.json"
    result = silomix(*EXAMPLE, "--json", path, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert str(path) in result.stdout
    assert "silomix-plan.png" in result.stdout
    height, width, *_ = matplotlib.image.imread(folder / "silomix-plan.png").shape
    assert height > 400
    assert width > 1000
    return result.stdout, json.loads(path.read_text())


def test_the_example_gives_the_noise_of_the_mechanism_and_of_the_papers(
    example: tuple[str, dict[str, Any]],
) -> None:
    shown, written = example
    assert round(written["sigma"], 4) == 0.0186
    assert round(written["sigma_paper"], 3) == 0.549
    assert len(written["cells"]) == 1
    assert "0.01861" in shown
    assert "0.5493" in shown


def test_the_example_claims_no_amplification_by_shuffling(
    example: tuple[str, dict[str, Any]],
) -> None:
    shown, written = example
    assert written["central_amplification"] == "none"
    assert written["central_reason"].startswith("no amplification claimed, because")
    assert written["epsilon_central"] == written["epsilon_local"] <= 3
    assert "no amplification claimed, because" in shown


def test_every_epsilon_says_its_delta_its_adjacency_and_whom_it_protects_against(
    example: tuple[str, dict[str, Any]],
) -> None:
    shown, written = example
    names = [figure["name"] for figure in written["figures"]]
    assert names == ["local", "shuffled", "sum"]
    for figure in written["figures"]:
        assert figure["delta"] == 3.33e-7
        assert figure["adjacency"] == "replace-one-record"
        assert figure["against"]
        assert figure["assumption"]
        assert (figure["epsilon"] is None) == (figure["reason"] is not None)
    for line in (line for line in shown.splitlines() if "ε = " in line):
        assert "δ = 3.33e-07, replace-one-record, against " in line
    assert "ε = 0.5966" not in shown  # μ/√20: what outsiders see of a mean, not of the usual rule
    assert "reports are not summed" in written["figures"][2]["reason"]


def test_the_example_recommends_from_public_numbers_only(
    example: tuple[str, dict[str, Any]],
) -> None:
    shown, written = example
    assert written["recommendation"]["rounds"] == 100
    assert written["recommendation"]["clip"] == 1
    assert written["recommendation"]["better_clip"] in (0.25, 0.5)
    assert "would do better here" in shown
    assert written["recommendation"]["sampling"] == "full"
    assert 0 < written["excess_error"] < 0.02
    assert written["simulation"]["records"] == 25 * 1734
    assert "no private data was used" in shown


def test_grids_give_all_cells_and_the_recommended_one_on_top(tmp_path: Path) -> None:
    path, picture = tmp_path / "out.json", tmp_path / "plan.png"
    grids = ("--epsilon", "0.5,20", "--rounds", "5,30")
    result = in_process(*QUICK, *grids, "--json", path, "--png", picture)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    pairs = [(cell["epsilon"], cell["rounds"]) for cell in written["cells"]]
    assert pairs == [(0.5, 5), (0.5, 30), (20, 5), (20, 30)]
    assert written["recommendation"]["epsilon"] == written["epsilon"] == 20
    top = {key: written[key] for key in written["cells"][0]}
    assert top in written["cells"]
    assert written["delta"] == 1 / 60**2  # unless given
    image = matplotlib.image.imread(picture)
    assert image.shape[1] > image.shape[0] > 400
    assert image[..., :3].std() > 0.05  # not blank
    assert str(picture) in result.output


def test_without_rounds_a_default_grid_is_planned() -> None:
    result = in_process(*SHAPE, "--epsilon", "1", "--no-simulation")
    assert result.exit_code == 0
    shown = [line.split("│")[2].strip() for line in result.output.splitlines() if "│" in line]
    assert shown == ["10", "20", "40", "60", "100", "200"]


def test_one_record_reports_of_many_silos_get_a_figure_below_the_local_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    shape = ("--records", 100, "--silos", 1000, "--dimension", 20, "--epsilon", 0.2)
    batches = ("--sampling", "without-replacement", "--ratio", 0.01, "--minimum-batch", 1000)
    result = in_process(
        *shape, *batches, "--rounds", 20, "--delta", 1e-6, "--no-simulation", "--json", path
    )
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["central_amplification"] == "shuffling"
    assert 0 < written["epsilon_central"] < written["epsilon_local"] <= 0.2
    assert written["simulation"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "x"), "--epsilon 'x': write numbers separated by commas, like 0.5,1,2"),
        (("--epsilon", "1,,2"), "--epsilon '1,,2': write numbers"),
        (("--epsilon", "nan"), "epsilon must be above 0"),
        (("--epsilon", "1", "--rounds", "1.5"), "--rounds '1.5': write whole numbers"),
        (("--epsilon", "1", "--rounds", "0"), "rounds 0: use a whole number from 1"),
        (("--epsilon", "1", "--delta", "2"), "delta must be above 0 and below 0.1"),
        (("--epsilon", "1", "--clip", "0"), "clip 0.0: use a number above 0"),
        (("--epsilon", "1", "--dimension", "1"), "dimension 1: use a whole number from 2"),
        (("--epsilon", "1", "--algorithm", "magic"), "unknown algorithm 'magic'; known: "),
        (("--epsilon", "1", "--sampling", "some"), "--sampling 'some': use one of full, poisson"),
        (("--epsilon", "1", "--sampling", "poisson"), "--sampling poisson needs a --ratio"),
        (("--epsilon", "1", "--ratio", "0.5"), "--sampling full has no --ratio"),
        (
            ("--epsilon", "1", "--sampling", "poisson", "--ratio", "2"),
            "--ratio 2.0: the batch ratio must be above 0",
        ),
        (("--epsilon", "1", "--minimum-batch", "26"), "minimum-batch 26: use a whole number"),
        (("--epsilon", "1", "--aggregation", "median"), "--aggregation 'median': use one of mean"),
        (("--epsilon", "1", "--bad-silos", "1"), "--bad-silos belongs to --aggregation trimmed"),
        (
            ("--epsilon", "1", "--aggregation", "trimmed-mean", "--bad-silos", "10"),
            "aggregation trimmed-mean",
        ),
        (("--epsilon", "1", "--records", "3*x"), "--records '3*x': use numbers such as 300"),
        (("--epsilon", "1", "--records", "3,4"), "--silos: --records 3,4 is of 2; not 25"),
        (("--epsilon", "1", "--records", "0,4"), "--records 0: use 1 to 100000000 records"),
        (("--epsilon", "1", "--records", "5*10001"), "--records 5*10001: use 1 to"),
        (("--epsilon", "1", "--weights", "size"), "--weights 'size': use one of records, equal"),
        (("--epsilon", "1", "--seeds", "0"), "--seeds 0: use at least 1, or --no-simulation"),
        (("--epsilon", "1", "--no-simulation", "--png", "x.png"), "--png x.png: without a simul"),
        (("--epsilon", "1", "--json", "/nowhere/x.json"), "/nowhere/x.json: not a file in an"),
        (
            ("--epsilon", "1", "--rounds", "2000", "--algorithm", "one-pass-mb-sgd"),
            "a silo of 1734 records has none left",
        ),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments: tuple[str, ...], message: str) -> None:
    result = in_process(*SHAPE, *arguments)
    assert isinstance(result.exception, Failure)
    assert str(result.exception).startswith(message)
    assert "\n" not in str(result.exception)
    assert result.output == ""


def test_a_refusal_is_one_line_and_status_1() -> None:
    result = silomix(*SHAPE, "--epsilon", "0")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "silomix: epsilon must be above 0 and at most 100, got 0.0\n"


def test_the_help_has_an_example_and_says_what_a_dimension_is() -> None:
    result = in_process("--help")
    assert "silomix plan --records 1734 --silos 25 --dimension 50" in result.output
    assert "Coordinates of the model, its bias included" in result.output


# Silos of different sizes ------------------------------------------------------------------------

UNEQUAL = ("--records", "300,4000*9", "--dimension", "13", "--epsilon", "1", "--rounds", "60")


def planned(tmp_path: Path, *more: object) -> tuple[str, dict[str, Any]]:
    path = tmp_path / "out.json"
    result = in_process(*UNEQUAL, "--no-simulation", "--json", path, *more)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split()), json.loads(path.read_text())


def test_each_size_of_silo_is_listed_with_what_it_spends_and_counts(tmp_path: Path) -> None:
    shown, written = planned(tmp_path)
    assert "10 silos of 300 to 4000 records" in shown
    assert "1 of 300 records: 0.826 % of the result, spends ε 1 at" in shown
    small, large = written["silos"]
    assert (small["silos"], small["records"], large["silos"]) == (1, 300, 9)
    assert small["epsilon"] == pytest.approx(large["epsilon"], rel=1e-6)
    assert small["share"] + 9 * large["share"] == pytest.approx(1.0)
    assert "times the noise" not in shown


def test_the_silo_for_whose_sake_everybody_has_noise_is_named(tmp_path: Path) -> None:
    shown, written = planned(tmp_path, "--weights", "equal")
    advice = "cost everybody 13 times the noise: weight by records, or leave it out"
    assert f"silo 1's 300 records {advice}" in shown
    small, large = written["silos"]
    assert large["epsilon"] < small["epsilon"] / 10
    _, by_records = planned(tmp_path)
    # of 36,300 records in all, against ten silos of 300
    assert written["sigma"] / by_records["sigma"] == pytest.approx(36_300 / 3_000, rel=1e-3)
