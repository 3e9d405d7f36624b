"""The trials: silo processes one after the other, each of which answers some studies.

While one process answers, the next one starts.  The order of studies within a process is random.
"""

import asyncio
import random
import secrets
import subprocess
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import SiloError
from silomix_client.ledger.entries import Spending
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify

from silomix_lab.audit.attacker import Attack, Attacker
from silomix_lab.audit.canary import points
from silomix_lab.audit.played_fleet import Fleet, Node, serving
from silomix_lab.audit.scratch import (
    ApprovedStudy,
    AuditFailed,
    Scratch,
    ended,
    running,
    said,
    together,
)

_JOIN_S = 60.0
_TRIAL_S = 120.0
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the attacker has of one trial."""

    second: bool  # the silo held D′
    part: int  # the phase that has the canary
    reports: NDArray[np.int64]  # (rounds in which the silo did not abstain, d)
    charged_first: tuple[bool, ...]  # for each report: the ledger had its charge on arrival
    charged_rounds: int  # in the ledger in the end
    charged_epsilon: float  # recomputed from the events in the ledger


@dataclass(frozen=True, slots=True)
class Observed:
    transcripts: tuple[Transcript, ...]
    broken_ledgers: tuple[str, ...]  # what was wrong with ledgers that did not verify


async def observe(
    scratch: Scratch, command: Sequence[str], trials: int, progress: Callable[[], None]
) -> Observed:
    """Attack the silo `trials` times; `progress` is called after each."""
    lanes = _Lanes(scratch, command, trials, progress)
    server = scratch.made.server.parent
    address = scratch.made.study.server.fleet_address
    async with serving(lanes.fleet, address, server), lanes.attacker.serving():
        await together(lanes.work() for _ in range(_AT_ONCE))
    return Observed(tuple(lanes.transcripts), tuple(lanes.broken))


class _Lanes:
    """Silo processes that run side by side; they share the fleet and the attacker."""

    def __init__(
        self, scratch: Scratch, command: Sequence[str], trials: int, progress: Callable[[], None]
    ) -> None:
        self.fleet = Fleet()
        self.attacker = Attacker(scratch.made, scratch.made.study.mechanism())
        self.transcripts: list[Transcript] = []
        self.broken: list[str] = []
        self._scratch, self._command, self._trials = scratch, command, trials
        self._progress = progress
        self._starting = asyncio.Lock()  # one process joins at a time: we know which it is
        size = len(scratch.studies)
        self._batches = iter(
            [range(first, min(first + size, trials)) for first in range(0, trials, size)]
        )

    async def work(self) -> None:
        for batch in self._batches:
            await self._run_process(batch)

    async def _run_process(self, batch: range) -> None:
        config = self._scratch.copied(batch.start)
        studies = list(self._scratch.studies[: len(batch)])
        random.shuffle(studies)
        ledger = Ledger(config.state, config.policy)
        try:
            async with self._silo(config) as silo:
                for trial, approved in zip(batch, studies, strict=True):
                    self.transcripts.append(await self._trial(silo, ledger, approved, trial))
                    self._progress()
            self._check(ledger)
        finally:
            ledger.close()

    @asynccontextmanager
    async def _silo(self, config: SiloConfig) -> AsyncIterator["_Silo"]:
        """Start `silo run` as a process, and wait until it has joined the fleet."""
        log = config.folder / "silo.log"
        async with AsyncExitStack() as stack:
            async with self._starting:
                arriving = self.fleet.expect()
                arguments = [*self._command, "run", str(config.folder / "silo.toml")]
                child = await stack.enter_async_context(running(arguments, log))
                if not await _first(child, arriving, _JOIN_S):
                    raise AuditFailed(f"the silo did not join: {said(log)}")
            silo = _Silo(child, arriving.result(), log)
            try:
                yield silo
            finally:
                self.fleet.dismiss(silo.node)

    async def _trial(
        self, silo: "_Silo", ledger: Ledger, approved: ApprovedStudy, trial: int
    ) -> Transcript:
        study = approved.study
        attack = Attack(
            lease=secrets.token_hex(8),
            study=study,
            points=points(study, trial, self._trials),
            charged_rounds=lambda: ledger.spending(study.identity).rounds,
        )
        async with self.attacker.attacking(attack):
            silo.node.offer(
                {"lease": attack.lease, "study": study.identity.hex(), "deadline_s": str(_TRIAL_S)}
            )
            replied = asyncio.ensure_future(silo.node.replied.wait())
            try:
                await _first(silo.child, replied, _TRIAL_S)
            finally:
                replied.cancel()
            if attack.failure is not None or len(attack.reports) != study.rounds:
                raise AuditFailed(
                    f"the silo answered {len(attack.reports)} of {study.rounds} rounds "
                    f"({attack.failure or 'then it stopped'}); it said: {said(silo.log)}"
                )
        spending = ledger.spending(study.identity)
        return Transcript(
            second=approved.second,
            part=approved.part,
            reports=_sums(attack),
            charged_first=tuple(attack.charged_first),
            charged_rounds=spending.rounds,
            charged_epsilon=_epsilon(spending, study.target.delta),
        )

    def _check(self, ledger: Ledger) -> None:
        """Note a ledger that breaks its own rules: a finding, not a failure of the audit."""
        try:
            verify(ledger)
        except SiloError as error:
            self.broken.append(str(error))


@lru_cache(maxsize=64)
def _epsilon(spending: Spending, delta: float) -> float:
    """The ε of a spending; cached, as trials are charged alike and drawn batches take a second."""
    return spending.epsilon(delta)


def _sums(attack: Attack) -> NDArray[np.int64]:
    """The sums of noised gradients that were sent; with control variates each report is the
    difference between its sum and the sum before."""
    told = [values for values in attack.reports if values is not None]
    if not told:
        raise AuditFailed("the silo abstained in every round: there is nothing to judge it by")
    sent = np.array(told)
    return sent.cumsum(axis=0) if attack.study.has_control else sent


@dataclass(frozen=True, slots=True)
class _Silo:
    child: subprocess.Popen[bytes]
    node: Node
    log: Path


async def _first(
    child: subprocess.Popen[bytes], wanted: "asyncio.Future[Any]", timeout_s: float
) -> bool:
    """Wait for `wanted`; False if the process ended before it, or time was up."""
    gone = asyncio.create_task(ended(child))
    try:
        await asyncio.wait({gone, wanted}, timeout=timeout_s, return_when=FIRST_COMPLETED)
    finally:
        gone.cancel()
    return wanted.done()
