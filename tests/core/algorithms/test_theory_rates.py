"""The benchmark of rates: its risk is exact, and the algorithms ask for the theorems' rounds."""

import importlib.util
import sys
from itertools import product
from math import sqrt
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def _loaded() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "theory.py"
    spec = importlib.util.spec_from_file_location("theory_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["theory_benchmark"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


theory = _loaded()


@pytest.mark.parametrize("strength", [0.01, 0.3, 0.5])
def test_the_risk_is_that_of_all_records_there_can_be(strength: float) -> None:
    """Against all 2⁸ records, each with its probability; the series leaves at most 6·10⁻⁶."""
    rng = np.random.default_rng(1)
    model = rng.normal(size=9)
    model *= theory.RADIUS / np.linalg.norm(model)
    signs = np.array(list(product([-1.0, 1.0], repeat=8)))
    chances = np.where(signs > 0, (1 + strength) / 2, (1 - strength) / 2).prod(axis=1)
    scores = signs @ model[:-1] / sqrt(8)
    expected = float(chances @ np.logaddexp(0, -scores))
    assert theory.risk(model, strength) == pytest.approx(expected, abs=6e-6)
    assert theory.least_risk(9, strength) < expected


def test_localized_acceleration_asks_for_the_fourth_root_of_the_rounds_of_the_others() -> None:
    """Gao et al. 2024, Tables 1 and 2 at d = n: N^¼n^¼ against N·n; logarithms bend by 0.02."""
    found = {
        (line.algorithm, line.figure, line.grows): line.measured for line in theory.count_lines()
    }
    for grows in ("silos", "records"):
        assert found["localized-accelerated", "rounds", grows] == pytest.approx(0.25, abs=0.02)
        assert found["localized-subgradient", "rounds", grows] == pytest.approx(1, abs=0.01)
        assert found["localized-accelerated", "gradient evaluations", grows] == pytest.approx(
            1.25, abs=0.06
        )
        assert found["one-pass-accelerated", "gradient evaluations", grows] == pytest.approx(
            1, abs=0.02
        )


@pytest.mark.slow
def test_four_times_the_records_of_a_noisy_study_quarter_its_worst_excess_risk() -> None:
    """The theorem's slope in n, −1, within ±0.5: far from no gain at all."""

    def worst(records: int) -> float:
        size = theory.Size(4, records, 8, 0.5)
        return max(
            float(np.mean([theory.Run("noisy-mb-sgd", size, s, k).excess() for k in range(4)]))
            for s in (0.5, 0.25, 0.125, 0.0625)
        )

    few, many = worst(256), worst(1024)
    assert 0 < many < few
    assert np.log(few / many) / np.log(4) == pytest.approx(1, abs=0.5)
