"""The audit, on real silo processes: the shipped build passes, builds with a known fault do not.

Every fault is a small script that changes the build and then runs its command line; the shipped
silo has no switch that could do it.  A correct silo is called violated with probability at most
0.1 %; a fault here is overlooked with probability below 2·10⁻⁵ (`audit_bounds.gaussian_detection`
at ε = 20, δ = 0.01: twice the claimed μ in 80 trials, three times in 30).

Whole commands are audited once as they are and once with a fault; the other audits approve their
studies themselves (`quick_approvals`), with processes for the silos alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from silomix.main import app
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.audit.run_audit import run_audit
from silomix_lab.audit.scratch import AuditFailed
from silomix_protocol.host.failure import Failure
from support.audits import AUDIT
from support.processes import start, wait_until
from support.specifications import changed as with_changes
from typer.testing import CliRunner

FAULTS = {
    "half the noise": """
from silomix_core.reports import reporter
draw = reporter.discrete_gaussian
reporter.discrete_gaussian = lambda *asked: draw(*asked) // 2
""",
    "sensitivity C/n": """
from silomix_core.mechanism import mechanism
grid = mechanism._grid
mechanism._grid = lambda silo, clip, *rest: grid(silo, clip / 2, *rest)
def sensitivity(self, silo, phase=0):
    moved = self.clip * self.units_per_sum(silo, phase)
    return moved + mechanism._rounding(self.minibatch, self.dimension)
mechanism.Mechanism.sensitivity_units = sensitivity
""",
    "no root of R": """
from math import sqrt
from silomix_core.mechanism import mechanism
from silomix_core.accounting import events
mu = mechanism.largest_mu
mechanism.largest_mu = lambda *study: mu(*study) * sqrt(9)
events.PrivacyEvent.mu = property(lambda event: event.sensitivity / event.noise / sqrt(9))
""",
    "the average is clipped, not the records": """
import numpy as np
from silomix_core.model import clipped_sum
at = clipped_sum.ClippedSum.at
def unclipped(self, point, *drawn):
    self._caps = np.full(len(self), 2.0**20)
    total, limit = at(self, point, *drawn), len(self) * 0.1 * 2**36
    return (total * min(1.0, limit / max(np.linalg.norm(total), 1))).astype(np.int64)
clipped_sum.ClippedSum.at = unclipped
""",
    "noise reused across rounds": """
from silomix_client.rounds import answer
from silomix_client.random_stream import stream_of
start = answer.StudyDesk.__init__
def same_noise(self, *args, **kwargs):
    start(self, *args, **kwargs)
    self._streams = lambda descriptor: lambda _label: stream_of(descriptor.study)
answer.StudyDesk.__init__ = same_noise
""",
    "charged late": """
from silomix_client.ledger import hash_chain
from silomix_client.ledger.study_account import StudyAccount
from silomix_client.rounds import lease
charge, send, waiting = StudyAccount.charge, lease.LeaseHolder._send, []
def later(self, *args):
    waiting.append((self, args))
    return hash_chain.ChainEntry(0, b"", {})
async def send_first(self, *args):
    await send(self, *args)
    for account, late in waiting:
        charge(account, *late)
    waiting.clear()
StudyAccount.charge = later
lease.LeaseHolder._send = send_first
""",
}
FAMILY_FAULTS = {
    "noise at the first local step only": """
from silomix_core.reports import reporter
draw, walk = reporter.discrete_gaussian, reporter.Reporter._walk
def noised_once(self, *asked):
    drawn = []
    def first(*asked):
        drawn.append(draw(*asked) * (not drawn))
        return drawn[-1]
    reporter.discrete_gaussian = first
    return walk(self, *asked)
reporter.Reporter._walk = noised_once
""",
    "checks in every time, charged once": """
from silomix_core.reports import reporter
reporter.Reporter.takes_part = lambda self, round_number: True
""",
}
Process = subprocess.CompletedProcess[str]
COMMAND = ("-m", "silomix", "audit")
WITH_PROCESSES = "no root of R"  # it changes what an approval reserves, too
CAUGHT = {  # rounds of a study and trials that suffice, and the checks that must fail
    "half the noise": (4, 20, {"noise"}),
    "sensitivity C/n": (4, 80, {"mu-gaussian"}),
    "no root of R": (9, 30, {"mu-gaussian", "charge", "ledger-intact"}),
    "the average is clipped, not the records": (4, 30, {"mu-gaussian"}),
    "noise reused across rounds": (4, 20, {"fresh-noise", "correlation-by-round"}),
    "charged late": (4, 20, {"charged-first"}),
}


def arguments(*more: object, command: Sequence[str] = COMMAND) -> list[str]:
    return [sys.executable, *command, *map(str, more)]


def audit(folder: Path, *more: object, command: Sequence[str] = COMMAND) -> Process:
    return subprocess.run(
        arguments(*more, command=command),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def quick_audit(scratch: Path, tmp_path: Path) -> Callable[..., Process]:
    """An audit with quick approvals; it leaves nothing in its scratch folder either."""
    script = str(Path(__file__).parent / "quick_approvals.py")
    return lambda *more: audit(tmp_path, *more, command=[script, "audit"])


def faulty_silo(folder: Path, fault: str) -> str:
    """The command of a silo whose build has this fault."""
    build = folder / "faulty build.py"
    build.write_text(f"{fault}\nfrom silomix.main import run\nrun()\n")
    return f"{sys.executable} '{build}' silo"


def test_the_shipped_silo_is_consistent(tmp_path: Path, scratch: Path) -> None:
    """With everybody but the canary at the kink of the hinge loss."""
    result = audit(
        tmp_path,
        *("--loss", "hinge", "--trials", 40, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "verdict      consistent" in result.stdout
    assert re.search(
        r"would notice with probability: .*: 1.25 times 1.70 %, 2 times 94.27 %, 2.16 times 99 %; "
        r"noise divided by 1.25 above 99.99 %, by 2 above 99.99 %; one other person more or less",
        result.stdout,
    )
    assert "\napproving 8 studies …\nattacking 40 studies, 4 rounds each …\n" in result.stdout
    assert "checks       11 checks ok: mu, epsilon, mu-gaussian, noise, others, " in result.stdout
    assert re.search(r"if Gaussian  mu \d\.\d+ ± 0\.\d+ \(standard error\)", result.stdout)
    assert result.stderr == ""
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["verdict"] == "consistent"
    assert figures["violations"] == []
    assert figures["trials"] == 40
    assert figures["confidence"] == pytest.approx(0.999)
    assert figures["loss"] == "hinge"
    assert [*figures["power"]] == ["1.25", "2"]
    assert figures["power"]["2"]["moved"] == pytest.approx(0.9427, abs=1e-3)
    assert figures["power"]["1.25"]["noise"] > 0.9999
    assert figures["noticed_factor"] == pytest.approx(2.16, abs=0.01)
    assert figures["power_one_of_the_crowd"] == pytest.approx(0.9955, abs=1e-3)
    assert figures["mu_lower_bound"] <= figures["mu_claimed"]
    assert figures["epsilon_lower_bound"] <= figures["epsilon_claimed"] == 20
    # The attack is not a toothless one: it measures what is claimed (5 standard errors).
    assert figures["mu_estimate"] == pytest.approx(figures["mu_claimed"], rel=0.7)
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.15)
    assert (tmp_path / "silomix-audit.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "audit.json",
        "scratch",
        "silomix-audit.png",
    ]


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("dp-fedavg", ("--local-steps", 3)),
        ("dp-scaffold", ("--local-steps", 3)),
        ("check-ins-averaged", ()),
        ("one-pass-mb-sgd", ()),
    ],
)
def test_one_of_each_family_is_consistent_and_measures_what_is_claimed(
    algorithm: str, more: tuple[object, ...], tmp_path: Path, quick_audit: Callable[..., Process]
) -> None:
    result = quick_audit(
        *("--algorithm", algorithm, *more, "--trials", 20, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["verdict"] == "consistent"
    assert figures["algorithm"] == algorithm
    # Fails a correct audit with probability below 10⁻⁶ (noncentral t of 18 degrees of freedom),
    # and the noise of 20 reports and more, of four blanks each, is five standard errors away.
    assert figures["mu_estimate"] > 0.3 * figures["mu_claimed"]
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.4)


def test_smoothed_and_drawn_are_consistent_and_measure_what_is_claimed(
    tmp_path: Path, quick_audit: Callable[..., Process]
) -> None:
    """Phases, random points and drawn batches at once, on real processes.

    That the canary is in no phase of all ten studies on D, or on D′, has probability below 10⁻⁹.
    """
    drawn = ("--sampling", "without-replacement", "--ratio", 0.5)
    result = quick_audit(
        *("--algorithm", "convolution-smoothing", *drawn, "--trials", 40, "--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 phases of which a record is in one, in which a record is drawn with" in result.stdout
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["checks"]["one-phase"]["passed"]
    assert figures["phases"] == 4
    # Fails a correct audit with probability below 10⁻⁶, as the noise of 160 reports does.
    assert figures["moved_estimate"] == pytest.approx(1, abs=5 * figures["moved_standard_error"])
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.14)
    assert (tmp_path / "silomix-audit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("fault", "options", "caught"),
    [
        (
            "noise at the first local step only",  # three times the claimed μ
            ("--algorithm", "dp-fedavg", "--local-steps", 9, "--trials", 30),
            {"mu-gaussian", "noise"},
        ),
        (
            "checks in every time, charged once",
            ("--algorithm", "check-ins-averaged", "--trials", 20),
            {"charged-first"},
        ),
    ],
)
def test_a_fault_of_one_family_is_violated(
    fault: str,
    options: tuple[object, ...],
    caught: set[str],
    tmp_path: Path,
    quick_audit: Callable[..., Process],
) -> None:
    result = quick_audit(
        *(*options, "--epsilon", 20, "--delta", 0.01, "--json", "audit.json"),
        *("--silo-command", faulty_silo(tmp_path, FAMILY_FAULTS[fault])),
    )
    assert result.returncode == 3, result.stdout + result.stderr
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert caught <= {name for name, check in figures["checks"].items() if not check["passed"]}


@pytest.mark.parametrize("fault", [each for each in FAULTS if each != WITH_PROCESSES])
def test_a_build_with_a_fault_is_violated(
    fault: str, tmp_path: Path, quick_audit: Callable[..., Process]
) -> None:
    result = quick_audit(*faulty(fault, tmp_path))
    _check_violated(fault, result.returncode, result.stdout, tmp_path)


def test_a_build_that_approves_its_own_fault_is_violated(tmp_path: Path, scratch: Path) -> None:
    result = audit(tmp_path, *faulty(WITH_PROCESSES, tmp_path))
    _check_violated(WITH_PROCESSES, result.returncode, result.stdout, tmp_path)


def faulty(fault: str, folder: Path) -> list[object]:
    """The arguments of an audit that finds the fault."""
    rounds, trials, _ = CAUGHT[fault]
    return [
        *("--rounds", rounds, "--trials", trials, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json", "--silo-command", faulty_silo(folder, FAULTS[fault])),
    ]


def _check_violated(fault: str, status: int, said: str, folder: Path) -> None:
    assert status == 3, said
    assert "verdict      violated" in said
    figures = json.loads((folder / "audit.json").read_text())
    assert figures["verdict"] == "violated"
    for name, check in figures["checks"].items():
        assert (f"violation    {name}: {check['says']}" in said) != check["passed"]
    failed = {name for name, check in figures["checks"].items() if not check["passed"]}
    assert CAUGHT[fault][2] <= failed


def _wait_for_a_silo(audit: "subprocess.Popen[Any]", scratch: Path) -> None:
    wait_until(
        lambda: audit.poll() is not None or any(scratch.rglob("silo.log")), "a silo was started"
    )
    assert audit.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_audit_leaves_nothing(
    number: signal.Signals, tmp_path: Path, scratch: Path
) -> None:
    audit = start(arguments("--trials", 20), tmp_path)
    try:
        _wait_for_a_silo(audit, scratch)
        children = psutil.Process(audit.pid).children(recursive=True)
        assert children
        audit.send_signal(number)
        _, said = audit.communicate(timeout=30)
    finally:
        audit.kill()
        audit.wait()
    assert audit.returncode == 1
    assert said == "silomix: interrupted; nothing was kept\n"
    assert not any(child.is_running() for child in children)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scratch"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 21}, "--trials: an even number"),
        ({"trials": 2}, "--trials: an even number"),
        ({"most_rounds": 0}, "--rounds: from 1 to 1000"),
        ({"algorithm": "sgd"}, "unknown algorithm 'sgd'"),
        ({"loss": "squared"}, "--loss: logistic or hinge, not 'squared'"),
        ({"local_steps": 3}, "--local-steps: noisy-mb-sgd has none to choose"),
        ({"algorithm": "dp-fedavg", "local_steps": 0}, "--local-steps: at least 1"),
        ({"algorithm": "dp-fedavg", "local_steps": 1001}, "local_steps must lie between 1 and"),
        (
            {"target": PrivacyTarget(6.0, 1e-40)},
            "epsilon=6 at delta=1e-40 cannot be kept with integer noise",
        ),
        ({"json": Path("nowhere/audit.json")}, "--json nowhere/audit.json: there is no such"),
        ({"png": Path()}, "--png .: cannot be written"),
        ({"silo_command": "no-such-program silo"}, "no such program"),
        ({"silo_command": "'torn"}, "No closing quotation"),
        ({"silo_command": ""}, "no such program"),
    ],
)
def test_what_cannot_be_audited_is_said_before_anything_starts(
    options: dict[str, Any], said: str, scratch: Path
) -> None:
    with pytest.raises(AuditFailed, match=re.escape(said)):
        run_audit(with_changes(AUDIT, **options))


def test_an_epsilon_of_no_study_is_refused() -> None:
    result = CliRunner().invoke(app, ["audit", "--epsilon", "-1"])
    assert isinstance(result.exception, Failure)
    assert "epsilon must be above 0" in str(result.exception)


def test_a_command_that_is_no_silo_is_one_line(tmp_path: Path, scratch: Path) -> None:
    result = audit(tmp_path, "--trials", 20, "--silo-command", "false")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line == (
        "silomix: the silo did not approve the audit's study: it printed nothing, exit status 1"
    )


def test_a_silo_that_stops_answering_is_no_verdict(
    tmp_path: Path, quick_audit: Callable[..., Process]
) -> None:
    refusing = (
        "from silomix_client import errors\n"
        "from silomix_client.rounds import answer\n"
        "def refuse(*_): raise errors.RefusedQuery('out of order')\n"
        "answer.StudyDesk.answer = refuse"
    )
    silo = faulty_silo(tmp_path, refusing)
    result = quick_audit("--trials", 20, "--silo-command", f"{silo} run")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("silomix: the silo answered 0 of 4 rounds")
    assert "verdict" not in result.stdout


def test_a_killed_audit_takes_its_silos_along(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    audit = subprocess.Popen(
        arguments("--trials", 20), cwd=tmp_path, env=os.environ | {"TMPDIR": str(folder)}
    )
    try:
        _wait_for_a_silo(audit, folder)
        children = psutil.Process(audit.pid).children(recursive=True)
    finally:
        audit.kill()
        audit.wait()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)
