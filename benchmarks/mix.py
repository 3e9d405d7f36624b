"""What a report costs at a mix: one real `silomix mix run`, real TLS, real disk, and two floors.

    python benchmarks/mix.py                        # d = 50, 10⁴, 10⁶; batches of 25, 100, 1000
    python benchmarks/mix.py --quick                # the small ones, two minutes
    python benchmarks/mix.py --quick --json out.json

Hops of a chain of three, gate and tokens on, every silo in every batch:

  first  every silo over its own TLS connection and long-lived stream, a receipt for each report,
         the batch forwarded to the next mix
  later  the previous mix's batch over one stream, opened, permuted, forwarded
  last   the same, but collected by the coordinator

Figures are for one report at one hop.  CPU: user and system time of the mix process, from the
opening of a round to its batch on the way and everything about it on disk; median over rounds.
Floors, measured in the same run, in turns with the mix:

  crypto  only what the protocol demands, CPU time of one thread.  First: verify the silo's
          signature, SHA-256 of the onion, HPKE open, SHA-256 of what was inside, sign the receipt;
          later and last: SHA-256, HPKE open, SHA-256.  Once for the batch: expand the seal key,
          verify the descriptor and what each mix before stated, sign a statement.
  gRPC    a server that receives and sends the same messages over the same connections and does
          nothing else (benchmarks/echo.py), CPU time of that process.

Ratio: CPU over the sum of the floors, round by round (a machine's speed changes within seconds, and
the three of a round follow one another), the median of them.  Wall: from the first byte sent to the
last byte of the batch handed on; the senders share the machine's cores with the mix.
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from around_a_mix import (
    Coordinator,
    Hop,
    Sink,
    Traffic,
    arriving,
    consortium,
    report_length,
    sender,
    signer,
    traffic,
)
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Processes, Role
from silomix_lab.demo.run_demo import free_ports
from silomix_protocol.keys import SealKey, verify
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import sign_receipt
from silomix_server.flower.child_processes import end, spawn

DIMENSIONS, BATCHES = (50, 10_000, 1_000_000), (25, 100, 1000)
QUICK = {(50, 25), (50, 100), (10_000, 25), (10_000, 100), (1_000_000, 25)}
MOST_DISK_BYTES = 2 * 10**9
REPORTS_WANTED, QUICK_REPORTS = 1500, 1000  # of each size, in as many rounds as that takes
SETTLED_S = 0.05  # what a mix does after its batch was taken

MOST_RATIO = 1.7
MOST_RSS_MB = 300.0  # 100 reports of 4 MB
MOST_WALL_S = 3.0  # 1000 reports at d = 10⁴


@dataclass(frozen=True, slots=True)
class Line:
    hop: str
    dimension: int
    batch: int
    report_bytes: int
    rounds: int
    cpu_ms_per_report: float
    floor_ms_per_report: float
    floor_crypto_ms: float
    floor_grpc_ms: float
    ratio: float
    reports_per_s: float
    wall_s: float
    peak_rss_mb: float


@dataclass(slots=True)
class Samples:
    """One entry for each round; CPU in seconds for the whole batch."""

    cpu_s: list[float] = field(default_factory=list)
    echo_s: list[float] = field(default_factory=list)
    crypto_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """CPU over the floors of the same round."""
        rounds = zip(self.cpu_s, self.echo_s, self.crypto_s, strict=True)
        return [cpu / (echo + crypto) for cpu, echo, crypto in rounds]


def main() -> None:
    options = _options()
    _allow_many_connections()
    print(
        "hop         d  batch  rounds |   CPU ms   floor = crypto +   gRPC  ratio |"
        "  reports/s   wall s  peak MB"
    )
    lines = []
    for hop in options.hop:
        for dimension, batch in _sizes(options):
            if 4 * dimension * batch > MOST_DISK_BYTES:
                gigabytes = 4 * dimension * batch / 1e9
                print(f"{hop:<5} {dimension:>7} {batch:>6}  skipped: {gigabytes:.0f} GB on disk")
                continue
            wanted = QUICK_REPORTS if options.quick else REPORTS_WANTED
            rounds = max(3, min(30, wanted // batch)) if dimension < 10**6 else 9
            lines.append(measure(Hop[hop.upper()], dimension, batch, rounds))
            _print(lines[-1])
    _print_aims(lines)
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def measure(hop: Hop, dimension: int, batch: int, rounds: int) -> Line:
    """One size at one hop, in a folder of its own that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="silomix-bench-") as name:
        made = consortium(Path(name) / "consortium", batch, dimension, rounds + 1)
        samples = asyncio.run(_rounds(Path(name), made, hop, rounds))
        length = report_length(made, hop.value)
    per_report = {
        kind: 1000 * statistics.median(seconds) / batch
        for kind, seconds in asdict(samples).items()
        if kind.endswith("_s")
    }
    floor = per_report["crypto_s"] + per_report["echo_s"]
    return Line(
        hop=hop.name.lower(),
        dimension=dimension,
        batch=batch,
        report_bytes=length,
        rounds=rounds,
        cpu_ms_per_report=round(per_report["cpu_s"], 4),
        floor_ms_per_report=round(floor, 4),
        floor_crypto_ms=round(per_report["crypto_s"], 4),
        floor_grpc_ms=round(per_report["echo_s"], 4),
        ratio=round(statistics.median(samples.ratios()), 3),
        reports_per_s=round(1000 / per_report["wall_s"], 1),
        wall_s=round(statistics.median(samples.wall_s), 3),
        peak_rss_mb=round(max(samples.rss_mb), 1),
    )


async def _rounds(folder: Path, made: Consortium, hop: Hop, rounds: int) -> Samples:
    """Rounds through the mix and through the echo in turns; the first one is a warm-up."""
    sink = Sink(made, hop.value + 1) if hop is not Hop.LAST else None
    if sink is not None:
        await sink.start()
    mix = made.study.mixes[hop.value]
    with Processes(folder) as processes, _echo(folder, made, hop) as (echo_pid, echo_address):
        mix_pid = processes.start(Role.MIX, made.mixes[hop.value]).child.pid
        coordinator = Coordinator(made, mix.name, mix.address)
        at_echo = Coordinator(made, mix.name, echo_address)
        keys = await coordinator.keys(rounds + 1)
        to_mix = sender(made, hop, mix.address, sink)
        to_echo = sender(made, hop, echo_address, sink)
        await to_mix.connect()
        await to_echo.connect()
        samples, crypto = Samples(), _crypto(made, hop)
        for number, each in enumerate(keys, start=1):
            ready = traffic(made, hop, number, each)
            if number == 2:
                samples = Samples()
            _reset_peak(mix_pid)
            with _cpu_seconds(mix_pid, samples.cpu_s):
                await coordinator.open(ready.descriptor)
                await _timed(to_mix.send, ready, samples.wall_s)
                await asyncio.sleep(SETTLED_S)
            samples.rss_mb.append(_peak_rss_mb(mix_pid))
            with _cpu_seconds(echo_pid, samples.echo_s):
                await at_echo.open(ready.descriptor)
                await to_echo.send(ready)
                await asyncio.sleep(SETTLED_S)
            samples.crypto_s.append(crypto())
        processes.check()
        await asyncio.gather(to_mix.close(), to_echo.close())
        await asyncio.gather(coordinator.close(), at_echo.close())
    if sink is not None:  # after the mix: its process would wait for the next try to connect
        await sink.stop()
    return samples


async def _timed(send: Callable[[Traffic], object], ready: Traffic, seconds: list[float]) -> None:
    started = time.perf_counter()
    await send(ready)  # type: ignore[misc]
    seconds.append(time.perf_counter() - started)


@contextmanager
def _echo(folder: Path, made: Consortium, hop: Hop) -> Iterator[tuple[int, str]]:
    """Process id and address of an echo in the place of the mix at this hop."""
    mixes = made.study.mixes
    (port,) = free_ports(1)
    following = mixes[hop.value + 1 : hop.value + 2]
    arguments = [
        str(made.folder / mixes[hop.value].name),
        mixes[hop.value].name,
        f"127.0.0.1:{port}",
        str(len(made.silos)),
        str(report_length(made, hop.value + 1)),
        *(text for each in following for text in (each.name, each.address)),
    ]
    program = str(Path(__file__).with_name("echo.py"))
    child = spawn([sys.executable, program, *arguments], folder / "echo.log")
    try:
        yield child.pid, f"127.0.0.1:{port}"
    finally:
        end(child)


def _crypto(made: Consortium, hop: Hop) -> Callable[[], float]:
    """CPU seconds of the cryptography for one batch: call for another sample of it."""
    digest, key = RoundDigest(bytes(32)), SealKey.generate()
    silo, first_mix = made.study.silos[0], made.study.mixes[0]
    silo_key, mix_key = signer(made, silo.name), signer(made, first_mix.name)
    reports = arriving(made, hop, key.public, digest, 25)
    signatures = [silo_key.sign("report", digest, sha256(each).digest()) for each in reports]
    statement = mix_key.sign("batch", digest)

    def once() -> float:
        started = time.thread_time()
        for report, signature in zip(reports, signatures, strict=True):
            came_in = sha256(report).digest()
            if hop is Hop.FIRST:
                verify(silo.sign_key, signature, "report", digest, came_in)
            sha256(open_layer(report, key, hop.value, digest)).digest()
            if hop is Hop.FIRST:
                sign_receipt(digest, 0, came_in, mix_key)
        for_reports = (time.thread_time() - started) * len(made.silos) / len(reports)
        started = time.thread_time()
        SealKey.from_raw(key.raw)
        for _ in range(1 + hop.value):
            verify(first_mix.sign_key, statement, "batch", digest)
        mix_key.sign("batch", digest)
        return for_reports + time.thread_time() - started

    return once


# The measured process ---------------------------------------------------------------------------


@contextmanager
def _cpu_seconds(pid: int, seconds: list[float]) -> Iterator[None]:
    """User and system time of all threads of a process, to the nanosecond."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3), which Python does not have
    started = time.clock_gettime(clock)
    yield
    seconds.append(time.clock_gettime(clock) - started)


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _peak_rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _allow_many_connections() -> None:
    """Two connections for each of 1000 silos, here and, inherited, in the mix and the echo."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# The table --------------------------------------------------------------------------------------


def _print(line: Line) -> None:
    print(
        f"{line.hop:<5} {line.dimension:>7} {line.batch:>6} {line.rounds:>7} | "
        f"{line.cpu_ms_per_report:>8.3f} {line.floor_ms_per_report:>7.3f} = "
        f"{line.floor_crypto_ms:>6.3f} + {line.floor_grpc_ms:>6.3f} {line.ratio:>6.2f} | "
        f"{line.reports_per_s:>10.1f} {line.wall_s:>8.3f} {line.peak_rss_mb:>8.1f}",
        flush=True,
    )


def _print_aims(lines: list[Line]) -> None:
    worst = max(lines, key=lambda line: line.ratio)
    place = f"{worst.hop}, d = {worst.dimension}, {worst.batch} reports"
    print(f"\nlargest ratio          {worst.ratio:>7.2f}  aim {MOST_RATIO:g}  ({place})")
    for line in lines:
        if (line.dimension, line.batch) == (1_000_000, 100):
            aim = f"aim {MOST_RSS_MB:g} MB  ({line.hop}, 100 reports of 4 MB)"
            print(f"largest resident size {line.peak_rss_mb:>8.1f}  {aim}")
        if (line.dimension, line.batch) == (10_000, 1000):
            aim = f"aim {MOST_WALL_S:g} s  ({line.hop}, 1000 reports, d = 10⁴)"
            print(f"through the hop       {line.wall_s:>8.2f}  {aim}")


def _sizes(options: argparse.Namespace) -> list[tuple[int, int]]:
    sizes = [(dimension, batch) for dimension in options.dimension for batch in options.batch]
    return [size for size in sizes if not options.quick or size in QUICK]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    hops = ["first", "later", "last"]
    parser.add_argument("--hop", nargs="+", choices=hops, default=hops[:2])
    parser.add_argument("--dimension", type=int, nargs="+", default=list(DIMENSIONS), metavar="D")
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), metavar="N")
    parser.add_argument("--quick", action="store_true", help="the small sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
