"""A small valid study as a tree of plain values, to be changed by tests and written as TOML."""

import re
from base64 import b64encode
from typing import Any

import tomli_w
from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study

Tree = dict[str, Any]
Path = tuple[str | int, ...]  # to a value in a study file: keys, and places in lists


def study_tree(silos: int = 3) -> Tree:
    return {
        "version": 1,
        "name": "small",
        "task": {
            "loss": "logistic",
            "label": "outcome",
            "scaling": "unit-ball",
            "bias": 0.3,
            "features": [
                {"name": "age", "low": 0, "high": 100, "missing": 40},
                {"name": "lab", "low": -1.0, "high": 1.0, "count": 2},
            ],
        },
        "algorithm": {"name": "noisy-mb-sgd", "rounds": 5, "radius": 50},
        "privacy": {"clip": 0.25, "epsilon": 2.0, "delta": 1e-5},
        "batch": {"minimum": 2, "deadline_s": 5},
        "silos": [
            {
                "name": f"silo-{index}",
                "records": 40 + 10 * index,
                "sign_key": _key(32, index),
                "node_key": _key(120, index),
            }
            for index in range(silos)
        ],
        "mixes": [
            {
                "name": "mix-1",
                "address": "127.0.0.1:7001",
                "sign_key": _key(32, 50),
            }
        ],
        "server": {
            "name": "server",
            "fleet_address": "127.0.0.1:9092",
            "channel_address": "127.0.0.1:9093",
            "sign_key": _key(32, 60),
        },
    }


def study_bytes(tree: Tree) -> bytes:
    return tomli_w.dumps(tree).encode()


def parse(tree: Tree) -> Study:
    return parse_study(study_bytes(tree))


def at(tree: Tree, path: Path) -> Any:
    """The value at this path, e.g. ("silos", 0, "records")."""
    place: Any = tree
    for step in path:
        place = place[step]
    return place


def with_value(path: Path, value: object) -> Tree:
    """A valid tree but for one value."""
    tree = study_tree()
    at(tree, path[:-1])[path[-1]] = value
    return tree


def written(path: Path) -> str:
    """The path as our error messages write it: silos[0].records."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def naming(path: Path) -> str:
    """A pattern of the name by which a refusal speaks of this value."""
    return re.escape(written(path))


def _key(size: int, seed: int) -> str:
    return b64encode(bytes([seed]) * size).decode()
