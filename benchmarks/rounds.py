"""What a round costs: real processes, TLS everywhere, two mixes, by number of silos and dimension.

    python benchmarks/rounds.py                          # the whole table
    python benchmarks/rounds.py --quick                  # N = 2 and 10, d = 50
    python benchmarks/rounds.py --quick --against flower # the ratio to stock Flower, same run
    python benchmarks/rounds.py --quick --without gate tokens  # what those two cost

Columns: median and p90 milliseconds from one closed round to the next, CPU milliseconds per round
in each role (all its processes together), peak resident MB of the largest process of each role.
"""

import argparse
import json
import secrets
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
from silomix_client.config.silo_config import load as load_silo
from silomix_client.data.snapshot import freeze
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.model.clipped_sum import Records
from silomix_core.study.specification import Batching, Specification
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Addresses, Consortium, create
from silomix_lab.consortium.processes import Processes, Role
from silomix_lab.demo.run_demo import free_ports
from stock_flower import measure as measure_stock_flower

MIXES = 2
WARM_UP = 3
LIMIT_S = 900.0
SIZES = {50: (1734, 60), 10_000: (200, 30), 1_000_000: (8, 8)}  # d: records, rounds


@dataclass(frozen=True, slots=True)
class Line:
    silos: int
    dimension: int
    rounds: int
    median_ms: float
    p90_ms: float
    cpu_ms_per_round: dict[str, float]
    peak_rss_mb: dict[str, float]
    stock_flower_ms: float | None = None
    times_faster: float | None = None


def main() -> None:
    options = _options()
    lines = []
    for dimension in options.dimension:
        for silos in options.silos:
            line = run_once(silos, dimension, frozenset(options.without), options.rounds)
            if options.against == "flower":
                line = _compare(line, options.flower_rounds)
            lines.append(line)
            _print(line, first=len(lines) == 1)
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def run_once(
    silos: int, dimension: int, without: frozenset[str] = frozenset(), rounds: int | None = None
) -> Line:
    """One study of that shape, in a folder of its own that is deleted afterwards."""
    records, usual_rounds = SIZES[dimension]
    rounds = rounds or usual_rounds
    with tempfile.TemporaryDirectory(prefix="silomix-bench-") as name:
        folder = Path(name) / "consortium"
        made = _consortium(folder, silos, dimension, records, rounds, without)
        for index, config in enumerate(made.silos):
            _approve(made, config, dimension, records, index)
        with Processes(Path(name)) as processes:
            server = processes.start(Role.SERVER, made.server)
            for config in made.mixes:
                processes.start(Role.MIX, config)
            for config in made.silos:
                processes.start(Role.SILO, config)
            progress = made.server.parent / "state" / "progress.jsonl"
            first: tuple[int, dict[str, float]] | None = None
            last: tuple[int, dict[str, float]] = (0, {})
            end = time.monotonic() + LIMIT_S
            while server.child.poll() is None:
                processes.check()
                processes.measure()
                done = _rounds_done(progress)
                if WARM_UP <= done < rounds:
                    last = (done, _cpu_seconds(processes))
                    first = first or last
                if time.monotonic() > end:
                    raise TimeoutError(f"not done after {LIMIT_S:g} s: N={silos}, d={dimension}")
                time.sleep(0.1)
            processes.check()
        closed = [json.loads(line)["closed_at"] for line in progress.read_text().splitlines()]
        peaks = {role: round(peak, 1) for role, peak in processes.peak_rss_mb.items()}
    times = sorted(np.diff(closed)[WARM_UP - 1 :] * 1000)
    return Line(
        silos=silos,
        dimension=dimension,
        rounds=len(times),
        median_ms=round(statistics.median(times), 1),
        p90_ms=round(float(np.quantile(times, 0.9)), 1),
        cpu_ms_per_round=_cpu_per_round(first, last),
        peak_rss_mb=peaks,
    )


def _consortium(
    folder: Path, silos: int, dimension: int, records: int, rounds: int, without: frozenset[str]
) -> Consortium:
    task = Task(
        loss=LossName.LOGISTIC,
        label="y",
        features=(Feature("x", -1.0, 1.0, 0.0, count=dimension - 1),),
        scaling=Scaling.UNIT_BALL,
        bias=0.3,
    )
    parts = {each: each not in without for each in ("gate", "tokens")}
    specification = Specification(
        name="benchmark",
        algorithm="noisy-mb-sgd",
        most_rounds=rounds,
        radius=50.0,
        clip=0.25,
        target=PrivacyTarget(5.0, 1e-5),
        batching=Batching(max(1, silos // 2), 120.0, **parts),
    )
    ports = [f"127.0.0.1:{port}" for port in free_ports(3 + MIXES)]
    return create(
        folder,
        task,
        (records,) * silos,
        specification,
        Addresses(ports[0], ports[1], ports[2], tuple(ports[3:])),
        lease_rounds=rounds,
        wait_for_silos_s=120.0,
    )


def _approve(made: Consortium, config: Path, dimension: int, records: int, seed: int) -> None:
    """An approval on generated records (a CSV with a million columns would measure the parser)."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (records, dimension - 1))
    settings = load_silo(config)
    ledger = Ledger(settings.state, settings.policy)
    encoded = Records(made.study.task.encode(features), rng.choice([-1.0, 1.0], records))
    snapshot = freeze(encoded, made.study.identity, settings.state / "snapshots")
    content = (made.folder / "study.toml").read_bytes()
    approval = Approval(made.study, settings.name, snapshot, secrets.token_bytes(32))
    ledger.approve(approval, content, datetime.now(UTC))
    ledger.close()


def _rounds_done(progress: Path) -> int:
    return progress.read_bytes().count(b"\n") if progress.exists() else 0


def _cpu_seconds(processes: Processes) -> dict[str, float]:
    """User and system time so far, by role."""
    total: dict[str, float] = {}
    for role, pid in processes.members():
        times = psutil.Process(pid).cpu_times()
        total[role] = total.get(role, 0.0) + times.user + times.system
    return total


def _cpu_per_round(
    first: tuple[int, dict[str, float]] | None, last: tuple[int, dict[str, float]]
) -> dict[str, float]:
    if first is None or last[0] <= first[0]:
        return {}
    rounds = last[0] - first[0]
    return {role: round(1000 * (last[1][role] - first[1][role]) / rounds, 1) for role in last[1]}


def _compare(line: Line, rounds: int) -> Line:
    """The same number of silos and values as plain Flower messages on a stock deployment."""
    with tempfile.TemporaryDirectory(prefix="stock-flower-") as name:
        seconds = measure_stock_flower(line.silos, line.dimension, rounds, Path(name))
    stock_ms = 1000 * statistics.median(seconds)
    values = asdict(line) | {
        "stock_flower_ms": round(stock_ms),
        "times_faster": round(stock_ms / line.median_ms, 1),
    }
    return Line(**values)


def _print(line: Line, *, first: bool) -> None:
    if first:
        print("     N         d  rounds  median ms   p90 ms  CPU ms per round / peak MB by role")
    roles = sorted(set(line.cpu_ms_per_round) | set(line.peak_rss_mb))
    details = ", ".join(
        f"{role} {line.cpu_ms_per_round.get(role, float('nan')):.0f}/{line.peak_rss_mb[role]:.0f}"
        for role in roles
    )
    ratio = ""
    if line.times_faster is not None:
        ratio = (
            f"  stock Flower {line.stock_flower_ms:.0f} ms: {line.times_faster:.0f} times faster"
        )
    print(
        f"{line.silos:>6} {line.dimension:>9} {line.rounds:>7} {line.median_ms:>10.1f} "
        f"{line.p90_ms:>8.1f}  {details}{ratio}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--silos", type=int, nargs="+", default=[2, 10, 25], metavar="N")
    parser.add_argument("--dimension", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--rounds", type=int, metavar="N", help="of a study; more: less noise")
    parser.add_argument("--quick", action="store_true", help="N = 2 and 10, d = 50")
    parser.add_argument(
        "--without", nargs="+", default=[], choices=["gate", "tokens"], help="leave these out"
    )
    parser.add_argument("--against", choices=["flower"], help="also run stock Flower")
    parser.add_argument("--flower-rounds", type=int, default=3, help="rounds of stock Flower")
    parser.add_argument("--json", type=Path, help="write the table here, too")
    options = parser.parse_args()
    if options.quick:
        options.silos, options.dimension = [2, 10], [50]
    return options


if __name__ == "__main__":
    sys.exit(main())
