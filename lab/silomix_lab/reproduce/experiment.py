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


@dataclass(frozen=True, slots=True)
class ClaimedBound:
    """A mean that a claim says to be below a limit."""

    label: str
    found: Spread
    limit: float = 0.0

    def is_below(self) -> bool:
        margin = self.found.margin
        return margin is not None and self.found.mean + margin < self.limit

    def is_above(self, looks: int) -> bool:
        """Whether it is above, seen in one of so many looks."""
        margin = self.found.margin_among(looks)
        return margin is not None and self.found.mean - margin > self.limit

    def __str__(self) -> str:
        margin = "" if self.found.margin is None else f" ± {self.found.margin:.2f}"
        return f"{self.label}: {self.found.mean:+.2f}{margin}"


def below(says: str, bounds: Sequence[ClaimedBound]) -> PaperClaim:
    """A claim that every mean is below its limit.

    It holds if all 95 % intervals are below: where one mean is not, that happens in 2.5 % of runs
    at most.  It fails if one mean is above, by intervals wide enough for so many looks: where none
    is, that happens in 2.5 % of runs at most, too, not in 16 % as for seven looks at 95 % each.
    """
    verdict = ClaimVerdict.UNDECIDED
    if any(each.is_above(len(bounds)) for each in bounds):
        verdict = ClaimVerdict.FAILS
    elif bounds and all(each.is_below() for each in bounds):
        verdict = ClaimVerdict.HOLDS
    return PaperClaim(says, verdict, "; ".join(map(str, bounds)) or "no trials")
