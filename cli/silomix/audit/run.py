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
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from silomix_core.accounting.events import ADJACENCY, PrivacyTarget
from silomix_core.mechanism import Minibatch

from silomix.audit.canary import TASK, neighbours
from silomix.audit.claim import Claim, not_covered
from silomix.audit.picture import draw
from silomix.audit.scratch import AuditFailed, approve, make
from silomix.audit.trials import Observed, observe
from silomix.audit.verdict import ALPHA, Check, Verdict, judge, power
from silomix.batches import check_batches
from silomix.consortium import Consortium
from silomix.demo.summary import PROTECTS_AGAINST

VIOLATED = 3  # exit status
_FEWEST, _MOST = 20, 100_000
_MOST_STUDIES = 20  # in one silo's ledger: every charge looks at all of them


@dataclass(frozen=True, slots=True)
class AuditOptions:
    algorithm: str = "noisy-mb-sgd"
    local_steps: int | None = None
    minibatch: Minibatch = field(default_factory=Minibatch)
    trials: int = 500
    rounds: int = 4
    epsilon: float = 6.0
    delta: float = 1e-5
    silo_command: str | None = None
    json: Path | None = None
    png: Path = Path("silomix-audit.png")

    @property
    def studies(self) -> int:
        """How many studies a silo process answers: approving one costs half a process's start."""
        return min(_MOST_STUDIES, 2 * round(sqrt(2 * self.trials) / 2))

    @property
    def command(self) -> list[str]:
        """What `approve …` and `run …` are put behind."""
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
    """The whole audit; its exit status."""
    console = Console(highlight=False, soft_wrap=True)
    _check(options)
    started = time.monotonic()
    claim, observed = _observe(options, console)
    verdict = judge(claim, observed, neighbours().direction)
    seconds = time.monotonic() - started
    powers = power(claim, options.trials)
    figures = _figures(options, verdict, powers, seconds)
    draw(verdict, options.png)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    _print(console, options, verdict, powers, seconds)
    return VIOLATED if verdict.violated else 0


def _check(options: AuditOptions) -> None:
    """What could be wrong with the options beside the study that they describe."""
    if not _FEWEST <= options.trials <= _MOST or options.trials % 2:
        raise AuditFailed(
            f"--trials: an even number from {_FEWEST} to {_MOST}, half for D, half D′"
        )
    if not 1 <= options.rounds <= 1000:
        raise AuditFailed("--rounds: from 1 to 1000")
    for name, path in (("--json", options.json), ("--png", options.png)):
        if path is not None and not path.resolve().parent.is_dir():
            raise AuditFailed(f"{name} {path}: there is no such folder")
        if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
            raise AuditFailed(f"{name} {path}: cannot be written")
    if find_spec("matplotlib") is None:
        raise AuditFailed("the picture needs matplotlib; install silomix[demo]")
    _ = options.command


def _claimed(options: AuditOptions, folder: Path) -> tuple[Consortium, Claim]:
    """The study that these options describe, and its claim, if the audit covers it."""
    try:
        check_batches(options.algorithm, options.minibatch)
        made = make(
            folder,
            options.algorithm,
            PrivacyTarget(options.epsilon, options.delta),
            rounds=options.rounds,
            local_steps=options.local_steps,
            minibatch=options.minibatch,
        )
        if (reason := not_covered(made.study)) is not None:
            raise AuditFailed(f"the audit does not cover {options.algorithm}: {reason}")
        return made, Claim.of(made.study)
    except ValueError as error:
        raise AuditFailed(str(error)) from error


def _warn(claim: Claim, trials: int, console: Console) -> None:
    _, by_any = power(claim, trials)
    if by_any < 0.99:
        console.print(
            f"warning: with {trials} trials, {_twice(claim)} would be noticed with "
            f"probability {100 * by_any:.0f} % only; use more trials"
        )


def _observe(options: AuditOptions, console: Console) -> tuple[Claim, Observed]:
    """All trials, in a scratch folder that is gone afterwards; SIGTERM is handled like Ctrl-C."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

    async def work(folder: Path) -> tuple[Claim, Observed]:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        made, claim = _claimed(options, folder / "consortium")
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
        return claim, observed

    with tempfile.TemporaryDirectory(prefix="silomix-audit-", ignore_cleanup_errors=True) as name:
        try:
            with progress:
                return asyncio.run(work(Path(name)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise AuditFailed("interrupted; nothing was kept") from None


def _figures(
    options: AuditOptions, verdict: Verdict, powers: tuple[float, float], seconds: float
) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "verdict": "violated" if verdict.violated else "consistent",
        "violations": [check.says for check in verdict.checks if not check.passed],
        "algorithm": options.algorithm,
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
        **_powers(claim, powers),
        "trials": verdict.trials,
        "rounds": claim.rounds,
        "answers": claim.answers,
        "steps": claim.steps,
        "phases": len(claim.parts),
        "records": claim.records,
        "dimension": TASK.dimension,
        "false_positives": [verdict.false_positives, len(verdict.first)],
        "false_negatives": [verdict.false_negatives, len(verdict.second)],
        "checks": {
            check.name: {"passed": check.passed, "says": check.says} for check in verdict.checks
        },
        "silo_command": options.command,
        "seconds": round(seconds, 1),
    }


def _print(
    console: Console,
    options: AuditOptions,
    verdict: Verdict,
    powers: tuple[float, float],
    seconds: float,
) -> None:
    claim, n, m = verdict.claim, len(verdict.first), len(verdict.second)
    lines = {
        "audited": f"{shlex.join(options.command)} run",
        "claim": f"epsilon {claim.target.epsilon:g} at delta {claim.target.delta:g} "
        f"(mu {claim.mu:.3f}) for {claim}; {ADJACENCY}",
        "against": PROTECTS_AGAINST,
        "attack": f"{verdict.trials} studies in {seconds:.0f} s; D taken for D′ "
        f"{verdict.false_positives} of {n} times, D′ for D {verdict.false_negatives} of {m} times",
        "measured": f"mu at least {verdict.mu_lower:.3f} and epsilon at least "
        f"{verdict.epsilon_lower:.3f} (whatever the noise is)",
        "if Gaussian": f"{verdict.sharper}; "
        f"noise {verdict.noise_estimate:.3f} times what is claimed",
        "confidence": f"{100 * (1 - ALPHA):g} % for all bounds together; {_twice(claim)} is found "
        f"with probability {_probability(powers[1])}",
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
    """Names only: what a failed check found is on a line of its own."""
    passed = [check.name for check in checks if check.passed]
    failed = [check.name for check in checks if not check.passed]
    if not failed:
        return f"{len(checks)} checks ok: {', '.join(passed)}"
    return f"{len(failed)} of {len(checks)} checks FAILED: {', '.join(failed)}; " + (
        f"ok: {', '.join(passed)}" if passed else "none ok"
    )


def _powers(claim: Claim, powers: tuple[float, float]) -> dict[str, float]:
    if claim.is_drawn:
        return {"power_twice_moved": powers[1]}
    return {"power_twice_mu": powers[1], "power_twice_mu_any_distribution": powers[0]}


def _twice(claim: Claim) -> str:
    if claim.is_drawn:
        return "a record that moves reports twice as far as it may, or is drawn twice as often,"
    return "half the noise, or any other way to twice the claimed mu,"


def _probability(value: float) -> str:
    return "above 99.99 %" if value > 0.9999 else f"{100 * value:.2f} %"
