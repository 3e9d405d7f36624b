"""An operator looks while the silo answers: no look ever finds anything wrong that is not.

One silo is a real process that answers round after round; beside it, studies are approved and
revoked.  Meanwhile everything that could cry tampering is asked again and again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from silomix_client.approval.approve import approve, review, revoke
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.doctor.checks import examine
from silomix_client.doctor.finding import Severity
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import check_snapshots, verify
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.hostile import (
    Event,
    HostileServer,
    Script,
    besieged,
    in_turn,
    lease_of,
    whole_round,
)
from support.silos import NOW, approved_silo, asked, stretch_of, study_file, tokens_for

ROUNDS, LEASE_ROUNDS = 600, 20
LOOKS, CHANGES = 210, 10


def test_hundreds_of_looks_during_a_study_raise_no_alarm(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "consortium", rounds=ROUNDS, epsilon=2.0, minimum_batch=1)
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text("epsilon = 100.0\ndelta = 1e-5\nminimum_batch = 1\n", encoding="utf-8")
    config = approved_silo(made)
    answered = asyncio.run(_looked_at(made, config))
    assert answered >= LEASE_ROUNDS
    with closing(Ledger(config.state, config.policy)) as ledger:
        assert ledger.account(made.study).last_round() == answered
        assert len(ledger.approvals()) == 1 + CHANGES


async def _looked_at(made: Consortium, config: SiloConfig) -> int:
    """How many rounds the silo answered while it was looked at."""
    async with besieged(made) as siege:
        looking = asyncio.create_task(asyncio.to_thread(_look, config))
        changing = asyncio.create_task(asyncio.to_thread(_change, made))
        first = 1
        try:
            while not looking.done() and first < ROUNDS:
                script = in_turn(_announced(made, first), _rounds(made, first))
                outcome = await siege.lease(lease_of(made), script, announced=False)
                assert outcome.reply["answered"] == str(LEASE_ROUNDS), outcome.log
                first += LEASE_ROUNDS
        finally:
            await asyncio.gather(looking, changing)
        return first - 1


def _announced(made: Consortium, first: int) -> Script:
    """The stretch of a lease, and its tokens."""

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made, first, LEASE_ROUNDS))
        request = (await server.words.get()).tokens
        yield Event(tokens=tokens_for(made.study, request))

    return script


def _rounds(made: Consortium, first: int) -> Script:
    script = whole_round(made, asked(made, first))
    for number in range(first + 1, first + LEASE_ROUNDS):
        script = in_turn(script, whole_round(made, asked(made, number)))
    return script


def _look(config: SiloConfig) -> None:
    for _ in range(LOOKS // 3):
        for look in (_ledger, _log, _doctor):
            look(config)


def _ledger(config: SiloConfig) -> None:
    with closing(Ledger(config.state, config.policy)) as ledger:
        verify(ledger)
        check_snapshots(ledger)


def _log(config: SiloConfig) -> None:
    with closing(Ledger(config.state, config.policy)) as ledger:
        assert not audit_check.verify(config.state, ledger).notes


def _doctor(config: SiloConfig) -> None:
    """Everything before the connections."""
    for finding in examine(config):
        assert finding.severity is not Severity.FAILED, finding
        if finding.subject == "budget":
            break


def _change(made: Consortium) -> None:
    """Other studies come and go."""
    config = load(made.silos[0])
    for number in range(CHANGES):
        content = study_file(made).replace(b'name = "test"', f'name = "other {number}"'.encode())
        reviewed = review(config, content)
        approve(config, reviewed, NOW)
        revoke(config, reviewed.study, NOW)
