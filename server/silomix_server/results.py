"""What a study leaves in the server's state folder: a line per round, the model, what the silos'
held-out records say of it."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.private_evaluation import Evaluation
from silomix_core.study import Study

from silomix_server.config import ServerConfig

PROGRESS = "progress.jsonl"
MODEL = "model.npz"
EVALUATION = "evaluation.json"


def append_progress(state: Path, line: dict[str, object]) -> None:
    with (state / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def progress(state: Path) -> list[dict[str, float]]:
    """Every round so far; a line that is still being written is left out."""
    try:
        text = (state / PROGRESS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def save_evaluation(state: Path, evaluation: Evaluation) -> None:
    text = json.dumps(evaluation.to_json(), indent=2) + "\n"
    (state / EVALUATION).write_text(text, encoding="utf-8")


def saved_evaluation(state: Path) -> dict[str, object] | None:
    """What `save_evaluation` wrote, if the study has an evaluation."""
    try:
        found: dict[str, object] = json.loads((state / EVALUATION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def save_model(state: Path, study: Study, model: NDArray[np.float64]) -> None:
    """Weights in the order of `columns`, for features scaled as the study says.

    Of several classes one after the other; of a network as `silomix_core.network` has them, less
    its start.  `silomix_core.evaluation.predict` takes them as they are.
    """
    np.savez(
        state / MODEL,
        weights=model,
        columns=np.array([*study.task.coordinates, "(bias)"]),
        study=np.array(study.identity.hex()),
    )


def finished_model(config: ServerConfig) -> Path | None:
    """Where the model of the configured study is, if it was finished before."""
    path = config.state / MODEL
    if not path.exists():
        return None
    with np.load(path) as saved:
        return path if str(saved["study"]) == config.study.identity.hex() else None
