"""What the accountants and the ledger cost: calibrations, ε of a study, one charge.

    python benchmarks/accounting.py [--json FILE]

Calibration: from (ε, δ) to the noise of a study of 25 silos (n = 1734, d = 50, 100 rounds), nothing
cached.  The baseline is dp-accounting's own analytic calibration of one Gaussian release in this
process.  Ledger: durable charges (SQLite FULL) in a scratch folder on this machine's disk, beside a
bare durable insert of the same bytes.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from rich.console import Console
from rich.table import Table
from silomix_client.config.silo_config import MAIN, Policy
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import verify
from silomix_core.accounting import composition, renyi
from silomix_core.accounting.budget import Budget
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism import mechanism as mechanism_module
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.study.specification import Batching, Specification
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Addresses, create
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, issue

TARGET = PrivacyTarget(3.0, 3.33e-7)
SILOS, RECORDS, DIMENSION, ROUNDS = 25, 1734, 50, 100
BATCHES = {
    "full batch": (Minibatch(), 50),
    "Poisson, half": (Minibatch(Scheme.POISSON, 0.5), 1),
    "Poisson, 1 %": (Minibatch(Scheme.POISSON, 0.01), 1),
    "without replacement, half": (Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.5), 1),
}
CHARGES = 300


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    baseline = seconds(lambda: get_sigma_gaussian(TARGET.epsilon, TARGET.delta), 20)
    figures: dict[str, dict[str, float]] = {}
    table = Table(title=f"{SILOS} silos, n = {RECORDS}, d = {DIMENSION}, {ROUNDS} rounds")
    for column in ("", "calibration ms", "of the baseline", "sigma", "epsilon of it, ms"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("baseline: dp-accounting, one release", f"{1e3 * baseline:.2f}", "1.00", "", "")
    for name, (batch, times) in BATCHES.items():
        made = calibrated(batch)
        took = seconds(lambda batch=batch: calibrated(batch), times)
        silo = Participant(RECORDS, TARGET)
        back = seconds(lambda made=made, silo=silo: uncached(made.epsilon, silo), times)
        table.add_row(
            name, f"{1e3 * took:.2f}", f"{took / baseline:.2f}", f"{made.sigma():.4f}",
            f"{1e3 * back:.2f}",
        )  # fmt: skip
        figures[name] = {"calibration_s": took, "sigma": made.sigma(), "epsilon_s": back}
    Console().print(table)
    figures["ledger"] = ledger_figures()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def calibrated(batch: Minibatch) -> Mechanism:
    silos = [Participant(RECORDS + index, TARGET) for index in range(SILOS)]
    made: Mechanism = uncached(
        Mechanism.calibrate,
        silos,
        clip=1.0,
        dimension=DIMENSION,
        phases=[Phase(ROUNDS)],
        minibatch=batch,
    )
    return made


def uncached(function: Callable[..., object], *arguments: object, **options: object):
    for cached in (
        mechanism_module._calibrate,
        composition._largest_subsampled_mu,
        renyi._subsampled,
    ):
        cached.cache_clear()
    return function(*arguments, **options)


def ledger_figures() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        study, content, key = sample_study(Path(folder))
        ledger = Ledger(Path(folder), Policy({MAIN: Budget(study.target)}))
        ledger.approve(Approval(study, "silo-1", b"", bytes(32)), content, datetime.now(UTC))
        approval, account = ledger.approval(study.identity), ledger.account(study)
        charge, bare = [], []
        plain = sqlite3.connect(Path(folder) / "plain.sqlite", isolation_level=None)
        plain.execute("PRAGMA journal_mode=WAL")
        plain.execute("PRAGMA synchronous=FULL")
        plain.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, content BLOB)")
        for number in range(1, CHARGES + 1):
            report = StoredReport(descriptor(study, number, key), b"", bytes(4000), (bytes(32),))
            started = time.perf_counter()
            account.charge(approval, report, datetime.now(UTC))
            between = time.perf_counter()
            plain.execute("INSERT INTO rows VALUES (?, ?)", (number, report.onion))
            bare.append(time.perf_counter() - between)
            charge.append(between - started)
        checked = seconds(lambda: verify(ledger), 1)
        ledger.close()
        plain.close()
    result = {
        "charge_s": statistics.median(charge),
        "bare_insert_s": statistics.median(bare),
        "verify_s_per_1000": 1000 * checked / CHARGES,
    }
    table = Table(title=f"ledger, {CHARGES} durable charges of 4 kB reports, medians")
    for column in ("charge ms", "bare insert ms", "ratio", "verify 1000 entries, ms"):
        table.add_column(column, justify="right")
    ratio = result["charge_s"] / result["bare_insert_s"]
    table.add_row(
        f"{1e3 * result['charge_s']:.2f}", f"{1e3 * result['bare_insert_s']:.2f}",
        f"{ratio:.2f}", f"{1e3 * result['verify_s_per_1000']:.1f}",
    )  # fmt: skip
    Console().print(table)
    return result


def sample_study(folder: Path):
    task = Task(
        LossName.LOGISTIC, "y", (Feature("x", -1, 1, 0, DIMENSION - 1),), Scaling.UNIT_BALL, 0.3
    )
    made = create(
        folder / "consortium",
        task,
        (RECORDS,) * SILOS,
        Specification(
            name="benchmark",
            algorithm="noisy-mb-sgd",
            most_rounds=CHARGES,
            radius=50.0,
            clip=1.0,
            target=TARGET,
            batching=Batching(2, 5.0),
        ),
        Addresses("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", ("127.0.0.1:4",)),
        lease_rounds=1,
        lease_deadline_s=1.0,
        wait_for_silos_s=1.0,
    )
    key = SigningKey.load(made.server.parent / "sign.key")
    return made.study, (made.folder / "study.toml").read_bytes(), key


def descriptor(study: Study, number: int, key: SigningKey) -> Descriptor:
    keys = AttemptKeys(bytes(32), (bytes(32),) * len(study.mixes), bytes(32))
    return issue(study, number, 1, b"", keys, key)


def seconds(act: Callable[[], object], times: int) -> float:
    """Median of `times` runs."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
