"""What a round costs on a stock Flower deployment: the named baseline of our round benchmark.

`measure` starts a real `flower-superlink` and one real `flower-supernode` per silo, runs a tiny
app on them and returns the seconds of each round as its ServerApp saw them: `dimension` float64
zeros to every node, as many back, no work in between. Waiting for the nodes is not counted.

"Stock" is the installed flwr with its defaults: subprocess isolation (a process per message),
HTTPS from SuperNode to SuperLink, no SuperNode authentication (so no signatures are paid for).
Runtime dependency installation is off (it wants the network); there is a database, as we have.
Loopback addresses only, every wait is bounded, and no process outlives the call (Linux: /proc).

    python benchmarks/stock_flower.py --silos 10 --rounds 2 --dimension 50
"""

import argparse
import datetime
import hashlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

HOST = "127.0.0.1"
START_LIMIT_S = 60
END_LIMIT_S = 30
BIN = Path(sys.executable).parent

PYPROJECT = """\
project = { name = "stock-round", version = "1.0.0", license = "Apache-2.0", dependencies = [] }
[tool.flwr.app]
publisher = "silomix"
components = { serverapp = "server_app:app", clientapp = "client_app:app" }
[tool.flwr.app.config]
"""

SERVER_APP = """\
import json, time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    plan = context.run_config
    nodes = all_nodes(grid, plan["silos"], time.monotonic() + plan["nodes-limit-s"])
    seconds = [timed_round(grid, nodes, plan) for _ in range(plan["rounds"])]
    Path(plan["result"]).write_text(json.dumps(seconds))

def all_nodes(grid, silos, deadline):
    while len(nodes := list(grid.get_node_ids())) < silos:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(nodes)} of {silos} nodes came in time")
        time.sleep(0.2)
    return nodes

def timed_round(grid, nodes, plan):
    start = time.perf_counter()
    point = RecordDict({"point": ArrayRecord([np.zeros(plan["dimension"])])})
    messages = [Message(point, dst_node_id=node, message_type="train") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=plan["round-limit-s"]))
    sizes = [r.content["answer"].to_numpy_ndarrays()[0].size for r in replies if r.has_content()]
    if sizes != [plan["dimension"]] * len(nodes):
        errors = [r.error.reason for r in replies if r.has_error()]
        raise RuntimeError(f"{len(nodes)} messages; replies of sizes {sizes}, errors {errors}")
    return time.perf_counter() - start
"""

CLIENT_APP = """\
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
import numpy as np
app = ClientApp()

@app.train()
def train(message, context):
    [point] = message.content["point"].to_numpy_ndarrays()
    return Message(RecordDict({"answer": ArrayRecord([np.zeros_like(point)])}), reply_to=message)
"""


class StockFlowerError(RuntimeError):
    """The deployment did not start, finish or end as it should; the message has the log's tail."""


def measure(silos: int, dimension: int, rounds: int, folder: Path) -> list[float]:
    """Seconds of each round. `folder` must be new or empty: an old database holds old nodes."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if min(silos, dimension, rounds) < 1 or any(folder.iterdir()):
        raise ValueError("needs at least one silo, dimension and round, and an empty folder")
    limits = {"nodes-limit-s": 60 + 10 * silos, "round-limit-s": 60 + 6 * silos}
    _write_app(folder, {"silos": silos, "dimension": dimension, "rounds": rounds} | limits)
    _write_certificates(folder)
    deployment = _Deployment(folder)
    try:
        deployment.start(silos)
        run_limit_s = limits["nodes-limit-s"] + rounds * limits["round-limit-s"]
        _run_app(deployment, START_LIMIT_S + run_limit_s)
    finally:
        _end(deployment)
    return [float(seconds) for seconds in json.loads((folder / "seconds.json").read_text())]


def _write_app(folder: Path, plan: dict[str, int]) -> None:
    (folder / "app").mkdir()
    config: dict[str, int | str] = {**plan, "result": str(folder / "seconds.json")}
    # For integers and paths, JSON is TOML.
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
    (folder / "app/pyproject.toml").write_text(PYPROJECT + lines)
    (folder / "app/server_app.py").write_text(SERVER_APP)
    (folder / "app/client_app.py").write_text(CLIENT_APP)


def _write_certificates(folder: Path) -> None:
    """A throw-away CA (ca.pem; its key is not kept) and the SuperLink's server.pem, server.key."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _certificate("throw-away CA", ca_key, ca_key, is_ca=True)
    server = _certificate("SuperLink", key, ca_key, is_ca=False)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, form, serialization.NoEncryption())
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    (folder / "server.key").touch(mode=0o600)
    (folder / "server.key").write_bytes(secret)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey, *, is_ca: bool
) -> x509.Certificate:
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "throw-away CA")]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - hour,
        not_valid_after=now + 24 * hour,
    )
    builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
    return builder.add_extension(host, critical=False).sign(ca_key, hashes.SHA256())


class _Deployment:
    """The processes that were started, by name; also those started before an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, silos: int) -> None:
        port, *node_ports = _free_ports(1 + silos)
        self.address = f"{HOST}:{port}"
        link = f"flower-superlink --host {HOST} --port {port} --database superlink.db"
        link += " --ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key"
        self._spawn("superlink", link + " --disable-runtime-dependency-installation")
        self._wait_for_superlink(port)  # a node that comes earlier backs off for seconds
        for number, node_port in enumerate(node_ports):
            node = f"flower-supernode --superlink {self.address} --root-certificates ca.pem"
            self._spawn(f"supernode-{number}", f"{node} --host {HOST} --port {node_port}")

    def _spawn(self, name: str, command: str) -> None:
        program, *arguments = command.split()
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / program, *arguments],
                cwd=self.folder,
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_superlink(self, port: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            self.check_alive()
            with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(0.1)
        raise self.failure("the SuperLink did not listen in time")

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise self.failure(f"{name} exited with status {process.returncode}", name)

    def failure(self, reason: str, name: str = "superlink") -> StockFlowerError:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        telling = [line for line in lines if "/v1/" not in line and "ListRuns" not in line]
        return StockFlowerError("\n".join([reason, f"--- end of {name}.log ---", *telling[-30:]]))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:  # all are held before one is let go: no port comes twice
        held = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in held]


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        # flwr starts its helpers by bare name: they must be those of this virtual environment.
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "FLWR_HOME": str(folder / ".flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }


def _run_app(deployment: _Deployment, limit_s: float) -> None:
    """Starts the app's run and returns when it has completed."""
    deadline = time.monotonic() + limit_s
    fab = build_fab_from_disk(deployment.folder / "app")
    request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})))
    try:
        with closing(_control_client(deployment)) as client:
            run_id = client.StartRun(request).run_id
            while not _has_completed(deployment, client, run_id):
                deployment.check_alive()
                if time.monotonic() > deadline:
                    raise deployment.failure("the run did not finish in time")
                time.sleep(1)
    except httpx.HTTPError as error:
        raise deployment.failure(f"the Control API failed: {error!r}") from error


def _control_client(deployment: _Deployment) -> ControlHttpClient:
    return ControlHttpClient.from_server_address(
        deployment.address,
        insecure=False,
        root_certificates=(deployment.folder / "ca.pem").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )


def _has_completed(deployment: _Deployment, client: ControlHttpClient, run_id: int) -> bool:
    status = client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
    if status.status == "finished" and status.sub_status != "completed":
        raise deployment.failure(f"the run ended as {status.sub_status}: {status.details}")
    return bool(status.status == "finished")


def _end(deployment: _Deployment) -> None:
    """Kills without grace: nothing that the deployment could still write is wanted."""
    deadline = time.monotonic() + END_LIMIT_S
    while groups := _process_groups(deployment.folder):
        if time.monotonic() > deadline:
            raise StockFlowerError(f"process groups {sorted(groups)} did not end")
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(0.1)
    for process in deployment.processes.values():
        process.wait(END_LIMIT_S)


def _process_groups(folder: Path) -> set[int]:
    """Groups of all processes with our FLWR_HOME, which every descendant inherits.

    The groups that we started are not all: the SuperLink puts its SuperExec, parent of the
    ServerApp, into a session of its own. A walk from parent to child would lose orphans.
    """
    mark = f"FLWR_HOME={folder / '.flwr'}".encode()
    groups = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                groups.add(os.getpgid(int(process.name)))
    return groups - {os.getpgrp()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds per round of a stock Flower deployment")
    for name, default in {"silos": 10, "rounds": 2, "dimension": 50}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="new or empty, kept; otherwise a temporary one")
    asked = parser.parse_args()
    # SIGTERM, too, shall pass through the `finally` that ends the processes.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="stock-flower-") as scratch:
        folder = asked.folder or Path(scratch)
        seconds = measure(asked.silos, asked.dimension, asked.rounds, folder)
    for number, one in enumerate(seconds, start=1):
        print(f"stock_round round={number} silos={asked.silos} seconds={one:.2f}")


if __name__ == "__main__":
    main()
