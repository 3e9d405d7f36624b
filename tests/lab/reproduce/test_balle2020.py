"""The bounds of the random check-ins paper: printed formulas, claims that can fail, the picture."""

import json
from dataclasses import replace
from decimal import Decimal, getcontext
from pathlib import Path

import pytest
from silomix.main import app
from silomix_lab.reproduce import balle2020
from silomix_lab.reproduce.experiment import ClaimVerdict
from typer.testing import CliRunner

getcontext().prec = 40
ROWS = balle2020.figure_2(epsilons_0=(0.2, 0.5, 0.8, 1.0, 1.5))


def test_the_older_bound_is_the_printed_one() -> None:
    """ε = 2e^{2ε₀}(e^ε₀ − 1)(e^{2e^{2ε₀}(e^ε₀ − 1)/n} − 1) + 2e^{2ε₀}(e^ε₀ − 1)√(2 ln(1/δ)/n)."""
    local, count, delta = Decimal("0.7"), Decimal(10**4), Decimal("1e-6")
    grow = 2 * (2 * local).exp() * (local.exp() - 1)
    printed = grow * ((grow / count).exp() - 1) + grow * (2 * (1 / delta).ln() / count).sqrt()
    assert balle2020.older_bound(0.7, 10**4) == pytest.approx(float(printed), rel=1e-12)


def test_every_claim_of_the_paper_holds_for_its_own_formulas() -> None:
    found = balle2020.claims(ROWS, balle2020.table_1())
    assert [claim.says for claim in found if claim.verdict is not ClaimVerdict.HOLDS] == []
    assert len(found) == 8


def test_a_claim_fails_when_the_figures_say_so() -> None:
    table = balle2020.table_1()

    def failing(rows: list[balle2020.ShufflingRow], lines: list[balle2020.Growth]) -> list[int]:
        return [
            index
            for index, claim in enumerate(balle2020.claims(rows, lines))
            if claim.verdict is not ClaimVerdict.HOLDS
        ]

    assert failing([replace(row, theorem=6 * row.older) for row in ROWS], table) == [0, 2]
    assert failing([replace(row, numerical=2 * row.theorem) for row in ROWS], table) == [7]
    steeper = [replace(line, measured_in_epsilon_0=2.8) for line in table]
    assert failing(ROWS, steeper) == [3, 4, 5, 6]


def test_the_numerical_bound_never_exceeds_the_local_guarantee() -> None:
    assert all(row.numerical <= row.epsilon_0 for row in ROWS)


def test_the_command_writes_tables_figures_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balle2020, "figure_2", lambda: ROWS)
    result = CliRunner().invoke(app, ["reproduce", "rc", "--out", str(tmp_path)])
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads((tmp_path / "rc.json").read_text())
    assert len(found["figure_2"]) == len(ROWS)
    assert [line["source"] for line in found["table_1"]][3] == "shuffling, Theorem 5.1"
    assert {each["verdict"] for each in found["claims"]} == {"holds"}
    text = (tmp_path / "rc.md").read_text()
    older, theorem = balle2020.older_bound(1.0, 1000), balle2020.theorem_bound(1.0, 1000)
    assert older > 1  # says nothing, and is shown so
    assert f"| 1000, 1 | ({older:.3g}) | " in text
    assert f"{theorem:.3g}" in text
    assert (tmp_path / "rc.png").read_bytes().startswith(b"\x89PNG")
