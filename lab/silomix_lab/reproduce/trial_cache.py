"""Outcomes of trials in a file, one line each: a run that was stopped goes on where it was.

The first line says which version and data made them; a file made with others is refused.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console
from silomix_protocol.host.failure import Failure

from silomix_lab.parallel import run_all


class Keyed(Protocol):
    @property
    def key(self) -> str: ...


Trial = TypeVar("Trial", bound=Keyed)


class TrialCache:
    """The figures of trials by the trial's key, kept in a file."""

    def __init__(self, path: Path, made_with: str) -> None:
        self._path = path
        self.figures: dict[str, float] = {}
        if not path.exists():
            path.write_text(json.dumps({"made_with": made_with}) + "\n", encoding="utf-8")
            return
        lines = path.read_text(encoding="utf-8").split("\n")
        if json.loads(lines[0]) != {"made_with": made_with}:
            raise Failure(
                f"{path} was made with another version or other data; use another "
                "--out, or delete it"
            )
        for line in lines[1:-1]:  # what follows the last line break was cut off
            key, figure = json.loads(line)
            self.figures[key] = figure
        path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")

    def add(self, key: str, figure: float) -> None:
        self.figures[key] = figure
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, figure]) + "\n")

    def complete(
        self,
        trials: Sequence[Trial],
        run: Callable[[Trial], list[tuple[str, float]]],
        processes: int | None,
        console: Console,
    ) -> None:
        """Run the trials that are not kept yet; `run` gives keys and figures, its own last."""
        todo = [trial for trial in trials if trial.key not in self.figures]
        console.print(f"{len(trials)} trials, {len(trials) - len(todo)} of them kept from before")
        for figures in run_all(run, todo, processes, console):
            for key, figure in figures:
                self.add(key, figure)
