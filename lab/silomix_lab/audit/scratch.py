"""The audit's own consortium, in a folder that is deleted afterwards: one silo, many studies.

The silo's operator is played through the audited build's own `silo approve`.  Every study is a
population with a data set (D or D′) and a lifetime budget of its own, exactly the claimed (ε, δ)
(for drawn batches as much more as the Rényi accountant asks for): so each trial has a fresh budget.
A silo process later runs on a copy of the approved folder: a fresh ledger for every process.

Where the study splits the records into phases, the attacker is told which of them has the canary:
the guarantee does not rest on the split being secret.  (It is read from the scratch ledger, whose
key the split follows from.)  Studies whose canary is in no phase would say nothing and are not
attacked.
"""

import asyncio
import shutil
import subprocess
import tomllib
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.data.snapshot import FOLDER as SNAPSHOTS
from silomix_client.data.snapshot import thaw
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.random_stream import stream_of
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.mechanism.minibatches import partition
from silomix_core.study.reader import parse_study
from silomix_core.study.specification import Batching, Specification
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_server.flower.child_processes import end, spawn

from silomix_lab.audit.canary import (
    Neighbours,
    canary_row,
    neighbours,
    radius_for,
    records_for,
    task_for,
    write_people,
)
from silomix_lab.consortium.create import Addresses, Consortium, create
from silomix_lab.consortium.processes import tail
from silomix_lab.demo.run_demo import free_ports

_APPROVE_S = 120.0
_AT_ONCE = 2


class AuditFailed(Exception):
    """The audit could not be carried out; nothing is known about the silo."""


@dataclass(frozen=True, slots=True)
class ApprovedStudy:
    study: Study
    second: bool  # whether its data set is D′
    part: int = 0  # the phase that has the canary


@dataclass(frozen=True, slots=True)
class Scratch:
    """An approved silo that has answered nothing yet."""

    made: Consortium
    studies: tuple[ApprovedStudy, ...]

    def copied(self, number: int) -> SiloConfig:
        """Copy the silo to a folder of its own; return the configuration of the copy."""
        silo = self.made.silos[0]
        folder = self.made.folder / "processes" / str(number) / silo.parent.name
        shutil.copytree(silo.parent, folder)
        return load(folder / silo.name)


async def approve(made: Consortium, command: Sequence[str], *, studies: int) -> Scratch:
    """Let the audited build approve `studies` studies like the one made, D and D′ in turn."""
    folder, silo, task = made.folder, made.silos[0].parent, made.study.task
    data: Neighbours = neighbours(task, made.study.silos[0].records)
    write_people(data.first, task, silo / "data.csv", seed=0)
    names = [f"trial-{number + 1}" for number in range(studies)]
    for number, name in enumerate(names):
        people = data.second if number % 2 else data.first
        write_people(people, task, silo / f"{name}.csv", seed=number)
    _add_populations(silo / "policy.toml", names)
    template = (folder / "study.toml").read_bytes()
    approved = []
    for number, name in enumerate(names):
        content = template.replace(b'name = "audit"', f'name = "audit {name}"'.encode(), 1)
        (folder / f"{name}.toml").write_bytes(content)
        approved.append(ApprovedStudy(parse_study(content), second=number % 2 == 1))
    turns = asyncio.Semaphore(_AT_ONCE)
    await together(_approve(command, made, name, turns) for name in names)
    return Scratch(made, _with_canary(approved, load(made.silos[0])))


def _with_canary(
    approved: Sequence[ApprovedStudy], config: SiloConfig
) -> tuple[ApprovedStudy, ...]:
    """The studies whose canary is in a phase, with D and D′ in turn."""
    ledger = Ledger(config.state, config.policy)
    try:
        parts = [_part(ledger.approval(each.study.identity), config) for each in approved]
    finally:
        ledger.close()
    found = [
        replace(each, part=part)
        for each, part in zip(approved, parts, strict=True)
        if part is not None
    ]
    firsts = [each for each in found if not each.second]
    seconds = [each for each in found if each.second]
    pairs = zip(firsts, seconds, strict=False)  # as many of one as of the other
    kept = tuple(each for pair in pairs for each in pair)
    if not kept:
        raise AuditFailed("by chance the canary is in no phase of these studies; run it again")
    return kept


def _part(approval: Approval, config: SiloConfig) -> int | None:
    """The phase that has the canary, if there is one."""
    study = approval.study
    if len(study.phases) == 1 and study.phases[0].share == 1:
        return 0
    records = thaw(study.identity, approval.snapshot, config.state / SNAPSHOTS)
    rows = partition(len(records), study.phases, stream_of(approval.partition))
    canary = canary_row(records)
    return next((number for number, part in enumerate(rows) if canary in part), None)


def make(
    folder: Path,
    specification: Specification,
    loss: LossName = LossName.LOGISTIC,
) -> Consortium:
    """Make the consortium of a study to audit, with the radius that shows most; ValueError if there
    is no such study."""
    entry = algorithm(specification.algorithm)
    task = task_for(entry, loss)
    fleet, channel, control, *mixes = (f"127.0.0.1:{port}" for port in free_ports(5))
    audited = replace(
        specification,
        name="audit",
        radius=radius_for(entry, task),
        batching=Batching(minimum=1, deadline_s=60.0),
    )
    addresses = Addresses(fleet, channel, control, tuple(mixes))
    return create(folder, task, (records_for(entry, task),), audited, addresses)


def _add_populations(path: Path, names: Sequence[str]) -> None:
    """Add populations to a policy, each with the budget of the policy itself: that of one study."""
    policy = tomllib.loads(path.read_text(encoding="utf-8"))
    budget = {key: policy[key] for key in ("epsilon", "delta")}
    populations = [{"name": name, "data": f"{name}.csv", **budget} for name in names]
    path.write_text(tomli_w.dumps(policy | {"populations": populations}), encoding="utf-8")


async def _approve(
    command: Sequence[str], made: Consortium, name: str, turns: asyncio.Semaphore
) -> None:
    log = made.folder / f"{name}.log"
    study = made.folder / f"{name}.toml"
    arguments = ["approve", str(made.silos[0]), str(study), "--population", name, "--yes"]
    async with turns, running([*command, *arguments], log) as child:
        try:
            async with asyncio.timeout(_APPROVE_S):
                await ended(child)
        except TimeoutError:
            raise AuditFailed(f"`silo approve` takes longer than {_APPROVE_S:g} s") from None
        if child.returncode != 0:
            silent = f"it printed nothing, exit status {child.returncode}"
            why = said(log) if tail(log, 1) else silent
            raise AuditFailed(f"the silo did not approve the audit's study: {why}")


@asynccontextmanager
async def running(arguments: list[str], log: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a process of the audited build; end it however the block is left."""
    try:
        # from this thread: the kernel's signal at the parent's death follows the starting thread
        child = spawn(arguments, log)
    except OSError as error:
        raise AuditFailed(f"cannot start {arguments[0]}: {error.strerror}") from error
    try:
        yield child
    finally:
        await asyncio.shield(asyncio.to_thread(end, child))


async def together(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all jobs at once; the first that fails ends the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def ended(child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:  # noqa: ASYNC110 a Popen tells nobody
        await asyncio.sleep(0.02)


def said(log: Path) -> str:
    """The last words of a process: its last message of silomix, if there is one."""
    lines = tail(log, 5)
    own = [line for line in lines if line.startswith("silomix: ")]
    return (own or lines or ["nothing"])[-1].removeprefix("silomix: ")
