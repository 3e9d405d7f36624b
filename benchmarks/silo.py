"""What privacy costs a silo: one process, one thread, no network.

    python benchmarks/silo.py           # all shapes (n, d), 100 000 × 1000 among them: 1 GB, 20 s
    python benchmarks/silo.py --quick   # two small shapes and fewer samples, some seconds

First table, for n records of d values.  The baseline, *plain*, is what federated learning without
privacy computes: scores X·w, logistic residuals r, gradient r·X, two matrix-vector products in
float64.  *Private* is a silo's whole answer up to encryption; its parts are

  sum    scores, residuals, clipping of every record, exact integer sum
  batch  the same for a random batch of half the records (a mask; the work must not depend on it)
  grid   the mean rounded to the grid
  noise  a fresh AES-256 key, its keystream, one discrete Gaussian sample for each value

Second table: samples per second of the discrete Gaussian (σ = 2²⁰, keystream included) and of what
it could be replaced by.  All figures are medians over runs that alternate, so that a busy machine
slows all columns alike: trust ratios, not milliseconds.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

os.environ["OMP_NUM_THREADS"] = "1"  # as silos run; read when numpy is imported
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from numpy.typing import NDArray
from silomix_client.random_stream import fresh_keystream
from silomix_core.discrete_gaussian import (
    SIGMA_UNITS,
    RandomBytes,
    discrete_gaussian,
    prepare_tables,
)
from silomix_core.model.clipped_sum import ClippedSum, Records, to_grid
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT
from support.exact import canonne_kamath_steinke, discrete_gaussian_cdf

SHAPES = ((1734, 50), (100_000, 50), (10_000, 1000), (100_000, 1000), (200, 10_000), (8, 1_000_000))
QUICK = ((1734, 50), (10_000, 1000))
LIMIT = 1.3  # of private to plain at 100 000 × 1000; docs/decisions/0008-silo-speed.md

Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds for one shape."""

    records: int
    dimension: int
    plain: float
    private: float
    ratio: float
    sum: float
    batch: float
    grid: float
    noise: float


@dataclass(frozen=True, slots=True)
class Rate:
    sampler: str
    million_per_s: float
    ours_is_times_faster: float


def main() -> None:
    options = _options()
    started = time.perf_counter()
    prepare_tables()
    tables_ms = 1000 * (time.perf_counter() - started)
    print("      n         d   plain ms  private ms  ratio |     sum   batch    grid   noise")
    costs = []
    for records, dimension in QUICK if options.quick else SHAPES:
        cost = cost_of(records, dimension, options.repeat)
        costs.append(cost)
        print(
            f"{cost.records:>7} {cost.dimension:>9} {cost.plain:>10.3f} {cost.private:>11.3f} "
            f"{cost.ratio:>6.2f} | {cost.sum:>7.3f} {cost.batch:>7.3f} {cost.grid:>7.3f} "
            f"{cost.noise:>7.3f}",
            flush=True,
        )
    print(f"\ntables for the noise, once for each process: {tables_ms:.0f} ms\n")
    rates = sampling_rates(10 if options.quick else 1, options.repeat)
    print("discrete Gaussian, million samples per second          ours is faster by")
    for rate in rates:
        print(f"  {rate.sampler:<44} {rate.million_per_s:>8.3f} {rate.ours_is_times_faster:>10.2f}")
    if options.json:
        result = {
            "costs_ms": [asdict(cost) for cost in costs],
            "rates": [asdict(rate) for rate in rates],
            "tables_ms": tables_ms,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    large = [cost for cost in costs if (cost.records, cost.dimension) == (100_000, 1000)]
    if any(cost.ratio > LIMIT for cost in large):
        sys.exit(f"private costs more than {LIMIT} times plain at 100 000 × 1000")


def cost_of(records: int, dimension: int, repeat: int) -> Cost:
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (records, dimension))
    features *= UNIT / np.sqrt(dimension)
    np.rint(features, out=features)
    labels = rng.choice([-1.0, 1.0], records)
    point, half = rng.normal(size=dimension), rng.random(records) < 0.5
    clipped = ClippedSum(Records(features, labels), loss(LossName.LOGISTIC), 0.25)
    units = SIGMA_UNITS / (0.0186 * records)  # grid steps in one unit of the mean
    total = clipped.at(point)

    def plain() -> object:
        residuals = -labels / (1 + np.exp(labels * (features @ (point / UNIT))))
        return residuals @ features

    def private() -> object:
        mean = to_grid(clipped.at(point), units)
        mean += discrete_gaussian(dimension, fresh_keystream())
        return mean

    medians = _medians(
        (
            plain,
            private,
            lambda: clipped.at(point),
            lambda: clipped.at(point, half),
            lambda: to_grid(total, units),
            lambda: discrete_gaussian(dimension, fresh_keystream()),
        ),
        repeat,
        inner=max(1, 2_000_000 // (records * dimension)),
    )
    plain_ms, private_ms, *parts_ms = (1000 * seconds for seconds in medians)
    return Cost(records, dimension, plain_ms, private_ms, private_ms / plain_ms, *parts_ms)


def sampling_rates(shorter: int, repeat: int) -> list[Rate]:
    fast, slow = 1_000_000 // shorter, 5_000 // shorter
    stream, before = fresh_keystream(), _searching_sampler()
    rng = np.random.default_rng(0)
    exact = canonne_kamath_steinke(2**20, Random(0))  # noqa: S311 - measured, never sent
    samplers: list[tuple[str, int, Act]] = [
        ("silomix", fast, lambda: discrete_gaussian(fast, stream)),
        ("silomix before: binary search in the tables", fast, lambda: before(fast, stream)),
        ("numpy's float64 normal (unsafe, no keystream)", fast, lambda: rng.normal(size=fast)),
        ("Canonne-Kamath-Steinke, exact, plain Python", slow, lambda: list(islice(exact, slow))),
    ]
    opendp = _opendp()
    if opendp is not None:
        samplers.insert(3, ("OpenDP make_gaussian", slow, lambda: opendp([0] * slow)))
    medians = _medians([act for _, _, act in samplers], repeat)
    rates = [count / s / 1e6 for (_, count, _), s in zip(samplers, medians, strict=True)]
    return [
        Rate(name, rate, rates[0] / rate)
        for (name, _, _), rate in zip(samplers, rates, strict=True)
    ]


def _searching_sampler() -> Callable[[int, RandomBytes], NDArray[np.int64]]:
    """Inversion by binary search, as it was before cells: the upper 64 bits, ties left out."""
    tables = []
    for variance, reach in ((768**2, 14 * 769), (2**24 - 9, 14 * 4096)):
        cdf = discrete_gaussian_cdf(variance, reach)[:-1]
        tables.append((np.array([entry >> 64 for entry in cdf], dtype=np.uint64), reach))

    def draw(count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
        parts = []
        for thresholds, reach in tables:
            uniform = np.frombuffer(random_bytes(8 * count), dtype="<u8")
            index = np.searchsorted(thresholds, uniform, side="right")
            assert not np.any(thresholds[np.maximum(index, 1) - 1] == uniform)
            parts.append(index.astype(np.int64) - reach)
        return parts[0] + 256 * parts[1]

    return draw


def _opendp() -> Callable[[list[int]], object] | None:
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    sampler: Callable[[list[int]], object] = dp.m.make_gaussian(*space, scale=SIGMA_UNITS)
    return sampler


def _medians(acts: tuple[Act, ...] | list[Act], repeat: int, inner: int = 1) -> list[float]:
    """Median seconds of each act; in every pass each has its turn, `inner` times in a row."""
    times: list[list[float]] = [[] for _ in acts]
    for turn in range(repeat + 1):
        for act, seen in zip(acts, times, strict=True):
            started = time.perf_counter()
            for _ in range(inner):
                act()
            if turn:  # the first is a warm-up
                seen.append((time.perf_counter() - started) / inner)
    return [statistics.median(seen) for seen in times]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two small shapes, fewer samples")
    parser.add_argument("--repeat", type=int, default=9, help="runs of each figure (default: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write both tables here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
