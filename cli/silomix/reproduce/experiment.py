"""What an experiment is: how it is run, and what it finds.

A file of this package holds one experiment as an `Experiment` and is listed in `catalogue.py`.
`run` may take as long as it needs; what it returns is shown and written by `run.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console

from silomix.trials import Spread


class Verdict(Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says (or what we say: "ours: …"), and by which figures it holds or not."""

    says: str
    verdict: Verdict
    measured: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown; the first column is text, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """notes: what a reader of the tables must know; figures: all of it, as JSON can hold it."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    claims: tuple[Claim, ...]
    figures: dict[str, object]
    draw: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Request:
    """As typed: where the data is, how many trials of each kind, where everything goes."""

    data: Path | None
    trials: int
    parts: tuple[str, ...]
    out: Path
    processes: int | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """needs: the data in words, none if it needs none; parts: what can be run on its own."""

    name: str
    paper: str
    shows: str
    needs: str | None
    parts: tuple[str, ...]
    run: Callable[[Request, Console], Findings]


def difference(first: Sequence[float], second: Sequence[float]) -> Spread | None:
    """Of two series of the same trials, pair by pair; none if one of them lacks trials."""
    if len(first) != len(second) or not first:
        return None
    return Spread.of([one - other for one, other in zip(first, second, strict=True)])


def below(says: str, bounds: Sequence[tuple[str, float, float | None, float]]) -> Claim:
    """A claim that every mean (label, mean, half-width of its interval) is below its limit.

    It holds if all intervals are, and fails if one of them is above.
    """
    uppers = [(mean + margin) < limit for _, mean, margin, limit in bounds if margin is not None]
    lowers = [(mean - margin) > limit for _, mean, margin, limit in bounds if margin is not None]
    verdict = Verdict.UNDECIDED
    if any(lowers):
        verdict = Verdict.FAILS
    elif bounds and len(uppers) == len(bounds) and all(uppers):
        verdict = Verdict.HOLDS
    measured = "; ".join(
        f"{label}: {mean:+.2f}" + (f" ± {margin:.2f}" if margin is not None else "")
        for label, mean, margin, _ in bounds
    )
    return Claim(says, verdict, measured or "no trials")
