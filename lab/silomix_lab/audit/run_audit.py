"""`silomix audit`, from its options to its verdict; nothing is left behind but the results."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from silomix_core.accounting.events import ADJACENCY
from silomix_core.study.specification import Specification
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName

from silomix_lab.audit.canary import has_crowd, neighbours
from silomix_lab.audit.claim import AuditClaim, not_covered
from silomix_lab.audit.scratch import AuditFailed, approve, make
from silomix_lab.audit.trials import Observed, observe
from silomix_lab.audit.verdict import (
    ALPHA,
    FACTORS,
    NOTICED,
    AuditVerdict,
    Check,
    Power,
    crowd_power,
    judge,
    noticed_factor,
    power,
)
from silomix_lab.audit.verdict_picture import draw
from silomix_lab.choices.minibatch import check_batches
from silomix_lab.choices.specification import check_local_steps
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.summary import PROTECTS_AGAINST

VIOLATED = 3  # exit status
_FEWEST, _MOST = 20, 100_000
_LOSSES = (LossName.LOGISTIC.value, LossName.HINGE.value)
_MOST_STUDIES = 20  # in one silo's ledger: every charge looks at all of them


@dataclass(frozen=True, slots=True)
class AuditOptions:
    specification: Specification  # but for the radius
    loss: str = LossName.LOGISTIC.value
    trials: int = 500
    silo_command: str | None = None
    json: Path | None = None
    png: Path = Path("silomix-audit.png")

    @property
    def studies(self) -> int:
        """How many studies a silo process answers: approving one costs half a process's start."""
        return min(_MOST_STUDIES, 2 * round(sqrt(2 * self.trials) / 2))

    @property
    def command(self) -> list[str]:
        """The command that `approve …` and `run …` are appended to."""
        if self.silo_command is None:
            return [sys.executable, "-m", "silomix", "silo"]
        try:
            command = shlex.split(self.silo_command)
        except ValueError as error:
            raise AuditFailed(f"--silo-command {self.silo_command!r}: {error}") from error
        if not command or shutil.which(command[0]) is None:
            raise AuditFailed(f"--silo-command {self.silo_command!r}: no such program")
        return command[:-1] if command[-1] == "run" and len(command) > 1 else command


def run_audit(options: AuditOptions) -> int:
    """Run the whole audit; return its exit status."""
    console = Console(highlight=False, soft_wrap=True)
    _check(options)
    started = time.monotonic()
    study, observed = _observe(options, console)
    verdict = judge(AuditClaim.of(study), observed, neighbours(study.task, study.silos[0].records))
    outcome = AuditOutcome(options, study, verdict, time.monotonic() - started)
    draw(verdict, outcome.powers, options.png)
    if options.json is not None:
        figures = json.dumps(_figures(outcome), indent=2)
        options.json.write_text(figures + "\n", encoding="utf-8")
    _print(console, outcome)
    return VIOLATED if verdict.violated else 0


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """All that an audit found, with its options."""

    options: AuditOptions
    study: Study
    verdict: AuditVerdict
    seconds: float

    @property
    def powers(self) -> tuple[Power, ...]:
        return tuple(power(self.verdict.claim, self.options.trials, each) for each in FACTORS)

    @property
    def noticed(self) -> float:
        return noticed_factor(self.verdict.claim, self.options.trials)

    @property
    def crowd(self) -> float | None:
        """The power to notice one person more or less in a crowd, if there is one."""
        if not has_crowd(self.study.task):
            return None
        return crowd_power(self.verdict.claim, self.options.trials)


def _check(options: AuditOptions) -> None:
    """Refuse options that are wrong whatever study they describe."""
    if not _FEWEST <= options.trials <= _MOST or options.trials % 2:
        raise AuditFailed(
            f"--trials: an even number from {_FEWEST} to {_MOST}, half for D, half D′"
        )
    if not 1 <= options.specification.most_rounds <= 1000:
        raise AuditFailed("--rounds: from 1 to 1000")
    for name, path in (("--json", options.json), ("--png", options.png)):
        if path is not None and not path.resolve().parent.is_dir():
            raise AuditFailed(f"{name} {path}: there is no such folder")
        if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
            raise AuditFailed(f"{name} {path}: cannot be written")
    if options.loss not in _LOSSES:
        raise AuditFailed(f"--loss: {' or '.join(_LOSSES)}, not {options.loss!r:.40}")
    if find_spec("matplotlib") is None:
        raise AuditFailed("the picture needs matplotlib; install silomix[demo]")
    _ = options.command


def _made(options: AuditOptions, folder: Path) -> tuple[Consortium, AuditClaim]:
    """Make the consortium of the study that these options describe; return it with the study's
    claim, or refuse a study that the audit does not cover."""
    try:
        check_batches(options.specification)
        check_local_steps(options.specification)
        made = make(folder, options.specification, LossName(options.loss))
        if (reason := not_covered(made.study)) is not None:
            raise AuditFailed(f"the audit does not cover {made.study.algorithm}: {reason}")
        return made, AuditClaim.of(made.study)
    except ValueError as error:
        raise AuditFailed(str(error)) from error


def _warn(claim: AuditClaim, trials: int, console: Console) -> None:
    twice = power(claim, trials, 2)
    if twice.moved < NOTICED:
        console.print(
            f"warning: with {trials} trials, {_lost(claim, 'twice')} would be noticed with "
            f"probability {_probability(twice.moved)} only; use more trials"
        )


def _observe(options: AuditOptions, console: Console) -> tuple[Study, Observed]:
    """Run all trials in a scratch folder that is gone afterwards; handle SIGTERM like Ctrl-C."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

    async def work(folder: Path) -> tuple[Study, Observed]:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        made, claim = _made(options, folder / "consortium")
        _warn(claim, options.trials, console)
        approving = f"approving {options.studies} studies"
        bar = progress.add_task(approving, total=None)
        if not console.is_terminal:  # there the bar says so
            console.print(f"{approving} …")
        scratch = await approve(made, options.command, studies=options.studies)
        console.print(f"attacking {options.trials} studies, {claim.rounds} rounds each …")
        progress.update(bar, description="attacking the silo", total=options.trials)
        observed = await observe(
            scratch, options.command, options.trials, lambda: progress.advance(bar)
        )
        return made.study, observed

    with tempfile.TemporaryDirectory(prefix="silomix-audit-", ignore_cleanup_errors=True) as name:
        try:
            with progress:
                return asyncio.run(work(Path(name)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise AuditFailed("interrupted; nothing was kept") from None


def _figures(outcome: AuditOutcome) -> dict[str, Any]:
    options, verdict = outcome.options, outcome.verdict
    claim = verdict.claim
    return {
        "verdict": "violated" if verdict.violated else "consistent",
        "violations": [check.says for check in verdict.checks if not check.passed],
        "algorithm": outcome.study.algorithm,
        "loss": outcome.study.task.loss.value,
        "adjacency": ADJACENCY,
        "protects_against": PROTECTS_AGAINST,
        "epsilon_claimed": claim.target.epsilon,
        "delta_claimed": claim.target.delta,
        "mu_claimed": claim.mu,
        "mu_lower_bound": verdict.mu_lower,
        "epsilon_lower_bound": verdict.epsilon_lower,
        **verdict.sharper.figures(),
        "noise_upper_bound": verdict.noise_upper,
        "noise_estimate": verdict.noise_estimate,
        "confidence": 1 - ALPHA,
        "false_alarm_at_most": ALPHA,
        "power": {f"{each.factor:g}": each.figures() for each in outcome.powers},
        "noticed_factor": outcome.noticed,
        "noticed_with_probability": NOTICED,
        "power_one_of_the_crowd": outcome.crowd,
        "trials": verdict.trials,
        "rounds": claim.rounds,
        "answers": claim.answers,
        "steps": claim.steps,
        "phases": len(claim.parts),
        "records": claim.records,
        "dimension": outcome.study.task.dimension,
        "false_positives": [verdict.false_positives, len(verdict.first)],
        "false_negatives": [verdict.false_negatives, len(verdict.second)],
        "checks": {
            check.name: {"passed": check.passed, "says": check.says} for check in verdict.checks
        },
        "silo_command": options.command,
        "seconds": round(outcome.seconds, 1),
    }


def _print(console: Console, outcome: AuditOutcome) -> None:
    options, verdict = outcome.options, outcome.verdict
    claim, n, m = verdict.claim, len(verdict.first), len(verdict.second)
    lines = {
        "audited": f"{shlex.join(options.command)} run",
        "claim": f"epsilon {claim.target.epsilon:g} at delta {claim.target.delta:g} "
        f"(mu {claim.mu:.3f}) for {claim}; {ADJACENCY}",
        "against": PROTECTS_AGAINST,
        "attack": f"{verdict.trials} studies in {outcome.seconds:.0f} s; D taken for D′ "
        f"{verdict.false_positives} of {n} times, D′ for D {verdict.false_negatives} of {m} times",
        "measured": f"mu at least {verdict.mu_lower:.3f} and epsilon at least "
        f"{verdict.epsilon_lower:.3f} (whatever the noise is)",
        "if Gaussian": f"{verdict.sharper}; "
        f"noise {verdict.noise_estimate:.3f} times what is claimed",
        "confidence": f"{100 * (1 - ALPHA):g} % for all bounds together",
        "would notice": _noticed(outcome),
        "checks": _brief(verdict.checks),
        "picture": str(options.png),
    }
    for name, text in lines.items():
        console.print(f"{name:<13}{text}", markup=False)
    for check in verdict.checks:
        if not check.passed:
            console.print(f"{'violation':<13}{check.name}: {check.says}", markup=False, style="red")
    word = "violated" if verdict.violated else "consistent"
    console.print(f"{'verdict':<13}{word}", markup=False, style="bold")


def _brief(checks: Sequence[Check]) -> str:
    """The checks by name only: what a failed check found is on a line of its own."""
    passed = [check.name for check in checks if check.passed]
    failed = [check.name for check in checks if not check.passed]
    if not failed:
        return f"{len(checks)} checks ok: {', '.join(passed)}"
    return f"{len(failed)} of {len(checks)} checks FAILED: {', '.join(failed)}; " + (
        f"ok: {', '.join(passed)}" if passed else "none ok"
    )


def _noticed(outcome: AuditOutcome) -> str:
    """The breaches that would have been noticed, and how surely."""
    claim, powers = outcome.verdict.claim, outcome.powers
    moved = [(each.factor, _probability(each.moved)) for each in powers]
    moved.append((outcome.noticed, f"{100 * NOTICED:g} %"))
    words = f"with probability: {_lost(claim, 'so many times')}: "
    words += ", ".join(f"{factor:.3g} times {chance}" for factor, chance in moved)
    noise = (f"by {each.factor:g} {_probability(each.noise)}" for each in powers)
    words += f"; noise divided {', '.join(noise)}"
    if outcome.crowd is not None:
        words += f"; one other person more or less {_probability(outcome.crowd)}"
    return words


def _lost(claim: AuditClaim, times: str) -> str:
    often = f", or is drawn {times} as often" if claim.is_drawn else ""
    return f"a record that moves reports {times} as far as is claimed{often}"


def _probability(value: float) -> str:
    return "above 99.99 %" if value > 0.9999 else f"{100 * value:.2f} %"
