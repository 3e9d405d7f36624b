"""What an experiment is: how it is run, and what it finds.

A file of this package holds one experiment as an `Experiment` and is listed in `experiments.py`.
`run` may take as long as it needs; `run_experiment.py` shows and writes what it returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console

from silomix_lab.parallel import Spread


class ClaimVerdict(Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """What a paper says (or what we say: "ours: …"), and by which figures it holds or not."""

    says: str
    verdict: ClaimVerdict
    measured: str


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of cells as they are shown; the first column is text, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What an experiment found.

    notes: what a reader of the tables must know; figures: all findings, as JSON can hold them.
    """

    tables: tuple[ResultTable, ...]
    notes: tuple[str, ...]
    claims: tuple[PaperClaim, ...]
    figures: dict[str, object]
    draw: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class ExperimentRequest:
    """The request as typed: where the data is, how many trials of each kind, where results go."""

    data: Path | None
    trials: int
    parts: tuple[str, ...]
    out: Path
    processes: int | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A paper's experiment, and how it is run.

    needs: the data in words, None if it needs none; parts: what can be run on its own.
    """

    name: str
    paper: str
    shows: str
    needs: str | None
    parts: tuple[str, ...]
    run: Callable[[ExperimentRequest, Console], Findings]


def difference(first: Sequence[float], second: Sequence[float]) -> Spread | None:
    """The difference of two series of the same trials, pair by pair; None if one lacks trials."""
    if len(first) != len(second) or not first:
        return None
    return Spread.of([one - other for one, other in zip(first, second, strict=True)])


def below(says: str, bounds: Sequence[tuple[str, float, float | None, float]]) -> PaperClaim:
    """A claim that every mean (label, mean, half-width of its interval) is below its limit.

    It holds if all intervals are below, and fails if one of them is above.
    """
    uppers = [(mean + margin) < limit for _, mean, margin, limit in bounds if margin is not None]
    lowers = [(mean - margin) > limit for _, mean, margin, limit in bounds if margin is not None]
    verdict = ClaimVerdict.UNDECIDED
    if any(lowers):
        verdict = ClaimVerdict.FAILS
    elif bounds and len(uppers) == len(bounds) and all(uppers):
        verdict = ClaimVerdict.HOLDS
    measured = "; ".join(
        f"{label}: {mean:+.2f}" + (f" ± {margin:.2f}" if margin is not None else "")
        for label, mean, margin, _ in bounds
    )
    return PaperClaim(says, verdict, measured or "no trials")
