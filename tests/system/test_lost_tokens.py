"""A silo that dies while it fetches its tokens, where the study cannot do without it."""

import signal
from contextlib import closing
from pathlib import Path

import pytest
from silomix_client.config.silo_config import load
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Role
from silomix_server.config import load as load_server
from silomix_server.mixes.token_desk import TokenRegister
from silomix_server.study.results import finished_model
from support.consortia import make_consortium
from support.processes import LIMIT_S, approve_all, progress, running, spending
from support.silos import open_ledger

FATAL = Path(__file__).parents[1] / "support" / "fatal_tokens"
ROUNDS = 12


def test_a_silo_killed_while_it_fetches_tokens_comes_back_and_the_study_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two silos, batches of two: without this silo's tokens no round can be played."""
    made = make_consortium(
        tmp_path / "c", records=(40, 50), mixes=1, rounds=ROUNDS, minimum_batch=2, deadline_s=3.0
    )
    approve_all(made)
    monkeypatch.setenv("PYTHONPATH", str(FATAL))
    monkeypatch.setenv("SILOMIX_TEST_KILLED", str(made.silos[0]))
    with running(made) as system:
        assert system.silos[0].child.wait(LIMIT_S) == -signal.SIGKILL
        assert tokens(made) == (ROUNDS, 0), "given and not stored"
        monkeypatch.undo()
        again = system.processes.start(Role.SILO, made.silos[0])
        if system.server_status():  # the lease died with the silo: "run the server again to go on"
            system.restart_server()  # as systemd does
            assert system.server_status() == 0, system.all_logs()
        assert "tokens_refused" not in again.log.read_text()
    assert finished_model(load_server(made.server))
    last = progress(made)[-1]
    assert (last["round"], last["accepted"]) == (ROUNDS, 2)
    assert all(0 < entry.rounds <= ROUNDS for entry in spending(made))


def tokens(made: Consortium) -> tuple[int, int]:
    """How many the server gave silo-1, and how many silo-1 has."""
    state = load_server(made.server).state
    with closing(TokenRegister(state / f"tokens-{made.study.short_id}.sqlite")) as register:
        given = register.issued("silo-1", range(1, ROUNDS + 1))
    with closing(open_ledger(load(made.silos[0]))) as ledger:
        return len(given), len(ledger.account(made.study).rounds_with_token())
