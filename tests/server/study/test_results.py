"""Progress and model: what a power cut or a kill leaves of them stops nobody."""

from pathlib import Path

import numpy as np
import pytest
from silomix_server.config import ServerConfig, load
from silomix_server.study.results import (
    MODEL,
    PROGRESS,
    append_progress,
    finished_model,
    progress,
    save_model,
)
from support.consortia import make_consortium


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return load(make_consortium(tmp_path / "c").server)


@pytest.mark.parametrize("torn", [b'{"round": 2, "err', bytes(60), b"2", b"\xff\xfe"])
def test_a_torn_line_of_progress_is_left_out_and_the_next_is_not(
    tmp_path: Path, torn: bytes
) -> None:
    append_progress(tmp_path, {"round": 1})
    with (tmp_path / PROGRESS).open("ab") as file:
        file.write(torn)
    assert progress(tmp_path) == [{"round": 1}]
    append_progress(tmp_path, {"round": 3})
    assert progress(tmp_path) == [{"round": 1}, {"round": 3}]


@pytest.mark.parametrize("part", [0, 100, -1])
def test_part_of_a_model_is_none(config: ServerConfig, part: int) -> None:
    study = config.study
    save_model(config.state, study, np.zeros(study.task.dimension))
    path = config.state / MODEL
    assert finished_model(config) == path
    path.write_bytes(path.read_bytes()[:part])
    assert finished_model(config) is None
