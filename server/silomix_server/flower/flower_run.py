"""A study as a Flower run: register the silos' keys, start the run, read how it ended.

Speaks the SuperLink's Control API through flwr's own client.  The app bundle (FAB) of the run
holds no code, only the name of the installed ServerApp and the path of its configuration.  The
headers and the bundle are made here: Flower's own makers of them load its command line and a web
server, which took a third of this process's start.
"""

import os
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from silomix_core.study.study import Silo, Study
from silomix_protocol.keys import read_secret

from silomix_server.config import CONTROL_HEADER
from silomix_server.errors import StartFailed

_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "silomix-study"
version = "1.0.0"
description = "Names the installed silomix coordinator; carries no code."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "silomix"

[tool.flwr.app.components]
serverapp = "silomix_server.flower.app:app"
clientapp = "silomix_server.flower.app:no_client_app"

[tool.flwr.app.config]
server-config = "{path}"
"""


@dataclass(frozen=True, slots=True)
class RunStatus:
    finished: bool
    completed: bool
    details: str


class _Headers:
    """Shows the control door's secret with every request, and which Flower asks."""

    def __init__(self, secret: Path) -> None:
        self._headers = {
            CONTROL_HEADER: read_secret(secret).hex(),
            "flwr-package-name": "flwr",
            "flwr-package-version": version("flwr"),
            "flwr-component-name": "flwr CLI",
        }

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._headers)
        return call_next(context)


class FlowerRuns:
    """The Control API of one SuperLink."""

    def __init__(self, address: str, authority: Path, secret: Path) -> None:
        self._client = ControlHttpClient.from_server_address(
            address, False, authority.read_bytes(), [_Headers(secret)]
        )

    def ready(self) -> bool:
        """Whether the SuperLink answers yet."""
        try:
            self._client.ListRuns(ListRunsRequest(limit=1))
        except httpx.TransportError:
            return False
        return True

    def register(self, study: Study) -> None:
        """Make the SuperLink accept exactly the keys of the study's silos (known keys stay)."""
        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key): node.node_id for node in listed if _enrolled(node)}
        wanted = {_pem(silo): silo.name for silo in study.silos}
        for key in known.keys() - wanted.keys():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
        for key in wanted.keys() - known.keys():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=wanted[key]))

    def start(self, folder: Path, server_config: Path) -> int:
        """Start the run of the coordinator and return its id."""
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text(_APP.format(path=server_config), encoding="utf-8")
        fab = bundle(folder)
        request = StartRunRequest(fab=fab_to_proto(Fab(sha256(fab).hexdigest(), fab, {})))
        try:
            return int(self._client.StartRun(request).run_id)
        except httpx.HTTPStatusError as error:
            raise StartFailed(f"the SuperLink refused the run: {error.response.text}") from error

    def status(self, run_id: int) -> RunStatus:
        run = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]
        return RunStatus(
            finished=run.status.status == "finished",
            completed=run.status.sub_status == "completed",
            details=run.status.details or run.status.sub_status,
        )

    def stop(self, run_id: int) -> None:
        self._client.StopRun(StopRunRequest(run_id=run_id))

    def close(self) -> None:
        self._client.close()


def bundle(folder: Path) -> bytes:
    """Pack the files of a folder as Flower packs an app: a list of them last, with their hashes."""
    packed, listed = BytesIO(), []
    with ZipFile(packed, "w", ZIP_DEFLATED) as fab:
        for path in sorted(each for each in folder.iterdir() if each.is_file()):
            content = path.read_bytes()
            fab.writestr(path.name, content)
            listed.append(f"{path.name},{sha256(content).hexdigest()},{8 * len(content)}")
        fab.writestr(".info/CONTENT", "\n".join(listed))
    return packed.getvalue()


def _enrolled(node: NodeInfo) -> bool:
    return not node.unregistered_at


def _pem(silo: Silo) -> bytes:
    key = serialization.load_der_public_key(silo.node_key)
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
