"""What a study leaves in the server's state folder: a line per round, the model, what the silos'
held-out records say of it."""

import json
from contextlib import suppress
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from silomix_core.evaluation.private import Evaluation
from silomix_core.study.study import Study
from silomix_protocol.host import logs
from silomix_protocol.host.durable import write_durably

from silomix_server.config import ServerConfig

PROGRESS = "progress.jsonl"
MODEL = "model.npz"
EVALUATION = "evaluation.json"


def append_progress(state: Path, line: dict[str, object]) -> None:
    """Add a round's line for people who watch; the journal counts, so this waits for no disk."""
    with (state / PROGRESS).open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        torn = file.read(1) not in (b"\n", b"")  # torn by a power cut
        file.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def progress(state: Path) -> list[dict[str, float]]:
    """The line of every round so far, without lines half written or torn by a power cut."""
    try:
        lines = (state / PROGRESS).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def void_in_a_row(state: Path) -> int:
    """The number of void rounds up to the latest, in a row, among those that asked silos."""
    asked = [line for line in progress(state) if line["asked"]]
    return sum(1 for _ in takewhile(lambda line: line["void"], reversed(asked)))


def save_evaluation(state: Path, evaluation: Evaluation) -> None:
    text = json.dumps(evaluation.to_json(), indent=2) + "\n"
    write_durably(state / EVALUATION, text.encode("utf-8"))


def saved_evaluation(state: Path) -> dict[str, object] | None:
    """The evaluation that `save_evaluation` wrote, if the study has one."""
    try:
        found: dict[str, object] = json.loads((state / EVALUATION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def save_model(state: Path, study: Study, model: NDArray[np.float64]) -> None:
    """Save the weights in the order of `columns`, for features scaled as the study says.

    Those of several classes follow one another; those of a neural net are laid out as in
    `silomix_core.model.neural_net`, as the difference to its start.
    `silomix_core.evaluation.public.predict` takes the weights as they are.
    """
    content = BytesIO()
    np.savez(
        content,
        weights=model,
        columns=np.array([*study.task.coordinates, "(bias)"]),
        study=np.array(study.identity.hex()),
    )
    write_durably(state / MODEL, content.getvalue())


def finished_model(config: ServerConfig) -> Path | None:
    """The path of the configured study's model, if it was finished before."""
    path = config.state / MODEL
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file) as saved:
            return path if str(saved["study"]) == config.study.identity.hex() else None
    except (BadZipFile, ValueError, KeyError, EOFError) as error:  # the journal makes it again
        logs.warning("model_unreadable", file=path, reason=error)
        return None
