"""A silo with a control variate: questions at different points, lists, deaths between any lines."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
from silomix_client.config.silo_config import load
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.keys import SigningKey

from support.deaths import die_at_line
from support.silos import (
    altered,
    approved_silo,
    asked,
    closed_round,
    committed_list,
    consortium_of,
    no_noise,
    open_desk,
    open_ledger,
    opened,
)

ONE_STEP = ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 1')
POINTS = [[0.0, 0.0, 0.0], [1.0, 0.0, -1.0], [0.0, 5.0, 0.0], [-2.0, 1.0, 1.0], [3.0, 3.0, 3.0]]


def answer_at(made: Consortium, desk: StudyDesk, number: int) -> StoredReport:
    """Each round asks at a point of its own."""
    return desk.answer(asked(made, number, POINTS[number - 1]))


def plain_gradients(made: Consortium) -> list[np.ndarray]:
    """What the same silo answers at these points where there are no control variates."""
    made = altered(made, (ONE_STEP[0], 'name = "dp-fedavg"\nlocal_steps = 1'))
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger, no_noise)
    found = [opened(made, answer_at(made, desk, number)) for number in range(1, 6)]
    ledger.close()
    return found


def settle(
    made: Consortium, ledger: Ledger, number: int, *, included: bool = True, void: bool = False
) -> channel_pb2.RoundCommitted:
    """Tell the silo the list of this round, and that it is over."""
    config = load(made.silos[0])
    report = ledger.account(made.study).last_report()
    assert report is not None
    assert report.descriptor.round == number
    own = report.trail[-1] if included else b"\1" * 32
    committed = committed_list(made, report.descriptor.digest, [bytes(32), own])
    key = SigningKey.load(config.folder / "sign.key")
    inclusion = Inclusion(made.study, config.name, ledger, key, config.state)
    inclusion.committed(committed)
    inclusion.closed(closed_round(made, report.descriptor, void=void))
    return committed


# Killed at every line ----------------------------------------------------------------------------


def kill_at_every_line(folder: str, expected: list[list[int]]) -> None:
    """Kill a silo before each line of its second answer; print how many there were.

    Round 1 was answered and used.  After each death the second answer is asked for again and found
    in its list (or not, by turns); the third is the difference from the last that was.
    """
    gradients, silo_toml = np.array(expected), Path(folder) / "silo-1" / "silo.toml"
    _first(silo_toml)
    lines = stored_lines = 0
    while True:
        lines += 1
        scratch = Path(folder).with_name(f"killed-{lines}")
        shutil.copytree(folder, scratch)
        died_at = _killed(scratch / "silo-1" / "silo.toml", lines)
        stored_lines += _judged(
            scratch / "silo-1" / "silo.toml", gradients, included=lines % 2 == 0
        )
        shutil.rmtree(scratch)
        if not died_at:
            print(json.dumps({"lines": lines, "stored": stored_lines}))
            return
        assert lines < 1000


def _first(silo_toml: Path) -> None:
    config = load(silo_toml)
    made, ledger = consortium_of(config), open_ledger(config)
    answer_at(made, open_desk(config, made.study, ledger, no_noise), 1)
    settle(made, ledger, 1)
    ledger.close()


def _killed(silo_toml: Path, line: int) -> bool:
    """Whether a child that answers round 2 was killed before it had done so."""
    process = os.fork()
    if process == 0:
        try:
            config = load(silo_toml)
            made, ledger = consortium_of(config), open_ledger(config)
            desk = open_desk(config, made.study, ledger, no_noise)
            question = asked(made, 2, POINTS[1])
            with die_at_line(line):
                desk.answer(question)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _judged(silo_toml: Path, gradients: np.ndarray, *, included: bool) -> bool:
    """Whether the killed silo had stored its second answer; and all is as it must be."""
    config = load(silo_toml)
    made, ledger = consortium_of(config), open_ledger(config)
    verify(ledger)
    stored = ledger.account(made.study).last_round() == 2
    desk = open_desk(config, made.study, ledger, no_noise)
    second = opened(made, answer_at(made, desk, 2))
    assert np.array_equal(second, gradients[1] - gradients[0]), "not the first, which was used"
    settle(made, ledger, 2, included=included)
    third = opened(made, answer_at(made, desk, 3))
    used = gradients[1 if included else 0]
    assert np.array_equal(third, gradients[2] - used), "not the difference from the last used"
    assert ledger.total().rounds == 3
    verify(ledger)
    ledger.close()
    return stored
