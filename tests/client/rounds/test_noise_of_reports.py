"""The noise of real reports, read as a server that opened every layer reads it.

The keystream is the shipped one, so nothing here can be seeded; each statistical test states how
often it fails although nothing is wrong.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import silomix_client
from numpy.typing import NDArray
from scipy import stats
from silomix_client.random_stream import fresh_keystream
from silomix_core.discrete_gaussian import SIGMA_UNITS, discrete_gaussian
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.silos import (
    approved_silo,
    asked,
    no_noise,
    open_desk,
    open_ledger,
    opened,
)

ROUNDS = 240
FALSE_ALARM = 1e-6  # of each statistical test below
SOURCES = sorted(Path(silomix_client.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    names = [f"x{index}" for index in range(20)]
    features = tuple(Feature(name, -1.0, 1.0, 0.0) for name in names)
    task = Task(LossName.LOGISTIC, "outcome", features, Scaling.UNIT_BALL, 0.3)
    folder = tmp_path_factory.mktemp("wide") / "consortium"
    return make_consortium(folder, records=(30, 30), mixes=1, rounds=ROUNDS + 1, task=task)


@pytest.fixture(scope="module")
def noise(wide: Consortium) -> NDArray[np.int64]:
    """(ROUNDS, d): what reports hold beyond the exact mean, at points that have the same one."""
    config = approved_silo(wide)
    ledger = open_ledger(config)
    point = np.full(21, 0.5)
    quiet = open_desk(config, wide.study, ledger, no_noise).answer(asked(wide, 1, point))
    exact = opened(wide, quiet)
    desk = open_desk(config, wide.study, ledger)
    rows = []
    for round_number in range(2, ROUNDS + 2):
        nearly = point * (1 + round_number * 2.0**-50)  # no question is answered twice
        report = desk.answer(asked(wide, round_number, nearly))
        rows.append(opened(wide, report) - exact)
    ledger.close()
    return np.array(rows)


def uncorrelated(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Student's test of a zero correlation between independent centred Gaussian samples."""
    x, y = first.ravel(), second.ravel()
    r = float(x @ y / np.sqrt((x @ x) * (y @ y)))
    t = r * np.sqrt((len(x) - 1) / (1 - r * r))
    return bool(2 * stats.t.sf(abs(t), len(x) - 1) > FALSE_ALARM)


@pytest.mark.slow
def test_the_noise_has_exactly_the_standard_deviation_that_is_charged(
    noise: NDArray[np.int64],
) -> None:
    """χ² on 5040 residuals: half the noise, or the noise of a clip of C/n, cannot pass."""
    statistic = float(((noise / SIGMA_UNITS) ** 2).sum())
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    assert low < statistic < high
    assert high / noise.size < 1.12  # the test has power: 6 % of the standard deviation


def test_every_coordinate_has_the_same_noise(noise: NDArray[np.int64]) -> None:
    statistics = ((noise / SIGMA_UNITS) ** 2).sum(axis=0)
    tail = FALSE_ALARM / 2 / noise.shape[1]
    low, high = stats.chi2.ppf([tail, 1 - tail], noise.shape[0])
    assert low < statistics.min()
    assert statistics.max() < high


def test_the_noise_is_gaussian_around_the_exact_mean(noise: NDArray[np.int64]) -> None:
    result = stats.kstest(noise.ravel() / SIGMA_UNITS, "norm")
    assert result.pvalue > FALSE_ALARM
    centre = noise.mean() / SIGMA_UNITS * np.sqrt(noise.size)
    assert 2 * stats.norm.sf(abs(centre)) > FALSE_ALARM


def test_the_noise_of_a_round_tells_nothing_about_that_of_the_next(
    noise: NDArray[np.int64],
) -> None:
    values = noise.astype(np.float64)
    assert uncorrelated(values[0::2], values[1::2])
    assert uncorrelated(values[: ROUNDS // 2], values[ROUNDS // 2 :])


def test_the_noise_of_a_coordinate_tells_nothing_about_that_of_its_neighbour(
    noise: NDArray[np.int64],
) -> None:
    values = noise.astype(np.float64)
    assert uncorrelated(values[:, 0:20:2], values[:, 1:20:2])


def test_noise_is_never_reused(noise: NDArray[np.int64]) -> None:
    """5040 draws from a range of some 2²² values: all rounds differ, in either sign too.

    Two honest rounds agree with probability below 2⁻⁴⁰⁰.
    """
    seen = {tuple(row) for row in noise.tolist()}
    assert len(seen) == ROUNDS
    assert not any(tuple(-row) in seen for row in noise)


# No switch ---------------------------------------------------------------------------------------


def test_every_keystream_is_a_new_one() -> None:
    streams = {fresh_keystream()(32) for _ in range(200)}
    assert len(streams) == 200


def test_a_keystream_goes_on_and_does_not_repeat() -> None:
    stream = fresh_keystream()
    pieces = {stream(16) for _ in range(1000)}
    assert len(pieces) == 1000
    assert not np.array_equal(discrete_gaussian(8, stream), discrete_gaussian(8, stream))


def test_no_environment_variable_makes_two_keystreams_equal() -> None:
    names = ("SEED", "SILOMIX_SEED", "SILOMIX_NOISE", "NUMPY_SEED", "SILOMIX_TEST", "DEBUG")
    environment = {**os.environ, **dict.fromkeys(names, "1"), "PYTHONHASHSEED": "0"}
    code = "from silomix_client.random_stream import fresh_keystream as f; print(f()(32).hex())"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    streams = {child.communicate(timeout=60)[0] for child in children}
    assert len(streams) == 2
    assert all(len(stream.strip()) == 64 for stream in streams)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_of_the_silo_reads_a_seed_or_a_switch(path: Path) -> None:
    """No environment but Flower's own settings, no seeded generator, nothing called a seed."""
    text = path.read_text(encoding="utf-8")
    words = {
        name.lower()
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else [node.arg]
            if isinstance(node, ast.arg | ast.keyword) and node.arg
            else [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else []
        )
    }
    names = {word for word in words if " " not in word}
    assert not {word for word in names if "seed" in word}
    assert not names & {"default_rng", "randomstate", "getenv", "argv", "pcg64"}
    if path.name not in ("fleet.py", "database_url.py"):  # Flower's settings; names of variables
        assert "environ" not in names
    assert ("keystream" in names) == (path.name == "answer.py")
