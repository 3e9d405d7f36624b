"""A study over the network from Python: server, mixes and silos as processes of this machine.

The demo's processes without its display; each round's line is handed on as soon as it is known.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from silomix_core.study.specification import Specification
from silomix_core.task.task import Task
from silomix_server.study.results import MODEL, progress

from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import ChildFailed
from silomix_lab.datasets.tables import Floats, SiloTable
from silomix_lab.demo.run_demo import (
    DemoFailed,
    lay_out,
    started_processes,
    while_running,
)
from silomix_lab.history import Callback, Line, round_line, scored


class StudyNotFinished(RuntimeError):
    """The processes ended without a model; the message says which failed first, and why."""


def run_here(
    folder: Path,
    task: Task,
    silos: Sequence[SiloTable],
    specification: Specification,
    *,
    mixes: int,
    holdout: SiloTable | None,
    callback: Callback | None,
) -> tuple[list[Line], Floats]:
    """Run the study; return the lines of all rounds, and the model."""
    try:
        made = lay_out(folder, task, silos, specification, mixes=mixes, holdout=holdout)
    except DemoFailed as impossible:
        raise ValueError(str(impossible)) from impossible
    course = _Course(made, callback)
    try:
        with started_processes(made, lambda _: None) as processes:
            for _ in while_running(processes):
                course.follow()
    except ChildFailed as failed:
        raise StudyNotFinished(f"{failed} (kept in a folder of your own: folder=...)") from failed
    with np.load(course.state / MODEL) as saved:
        weights = np.array(saved["weights"])
    course.follow()
    course.end(scored(weights, holdout, task))
    return course.lines, weights


class _Course:
    """The lines of the rounds so far, each added when it is complete.

    The coordinator scores the model of a round when it closes the next round.
    """

    def __init__(self, made: Consortium, callback: Callback | None) -> None:
        self.state = made.server.parent / "state"
        self.lines: list[Line] = []
        self._mechanism = made.study.mechanism()
        self._callback = callback

    def follow(self) -> None:
        for closed, after in list(pairwise(progress(self.state)))[len(self.lines) :]:
            self._add(closed, {key: after[key] for key in ("loss", "error") if key in after})

    def end(self, score: Line) -> None:
        self._add(progress(self.state)[-1], score)

    def _add(self, closed: Line, score: Line) -> None:
        line = round_line(int(closed["round"]), self._mechanism, int(closed["accepted"])) | score
        self.lines.append(line)
        if self._callback is not None:
            self._callback(line)
