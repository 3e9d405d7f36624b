"""Outcomes of trials in a file, one line each: a run that was stopped goes on where it was.

The first line says what they were made with; with anything else the file is refused.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from silomix.failures import Failure


class Kept:
    """Figures by the key of their trial."""

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

    def missing(self, keys: Iterable[str]) -> set[str]:
        return set(keys) - self.figures.keys()

    def add(self, key: str, figure: float) -> None:
        self.figures[key] = figure
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, figure]) + "\n")
