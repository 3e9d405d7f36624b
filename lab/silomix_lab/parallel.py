"""Many trials on all cores with a progress bar, and the mean and spread of their figures."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Trial = TypeVar("Trial")
Outcome = TypeVar("Outcome")


def run_all(
    run: Callable[[Trial], Outcome],
    trials: Sequence[Trial],
    processes: int | None,
    console: Console,
) -> Iterator[Outcome]:
    """Run all trials and yield each outcome as it comes.

    `run` must be importable, because worker processes call it.
    """
    workers = min(processes or os.cpu_count() or 1, len(trials))
    if workers <= 1:
        yield from map(run, trials)
        return
    columns = (TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker has a core of its own
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        waiting = [pool.submit(run, trial) for trial in trials]
        with Progress(*columns, console=console, transient=True) as progress:
            shown = progress.add_task("", total=len(trials))
            try:
                for done in as_completed(waiting):
                    progress.advance(shown)
                    yield done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over trials, their standard deviation, half the width of the mean's 95 % interval.

    The last two are None for a single trial.
    """

    mean: float
    deviation: float | None
    margin: float | None
    trials: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        mean, trials = float(np.mean(values)), len(values)
        if trials < 2:
            return cls(mean, None, None)
        deviation = float(np.std(values, ddof=1))
        return cls(mean, deviation, _margin(deviation, trials, 1), trials)

    def margin_among(self, looks: int) -> float | None:
        """Half the width of an interval of which so many all hold with 95 % (Bonferroni)."""
        return None if self.deviation is None else _margin(self.deviation, self.trials, looks)


def _margin(deviation: float, trials: int, looks: int) -> float:
    from scipy.stats import t

    return float(t.isf(0.025 / looks, trials - 1)) * deviation / sqrt(trials)
