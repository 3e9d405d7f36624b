"""What the server makes itself for Flower's Control API, held against the installed Flower."""

from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from silomix_protocol.keys import write_secret
from silomix_server.config import CONTROL_HEADER
from silomix_server.flower import flower_run
from silomix_server.flower.flower_run import _Headers, bundle


def unpacked(fab: bytes) -> dict[str, bytes]:
    with ZipFile(BytesIO(fab)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_a_bundle_is_what_flower_packs(tmp_path: Path) -> None:
    """Flower writes the same table again, in its own order of lines and quotes."""
    project = tmp_path / "pyproject.toml"
    project.write_text(flower_run._APP.format(path="/c/server.toml"))
    flowers = unpacked(build_fab_from_disk(tmp_path))
    project.write_bytes(flowers["pyproject.toml"])
    assert unpacked(bundle(tmp_path)) == flowers


def test_requests_show_the_secret_and_which_flower_asks(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", bytes(32))
    request = httpx.Request("POST", "https://127.0.0.1/v1/control/list-runs")
    context = ProtobufRequestContext("ListRuns", ListRunsRequest(), request)
    _Headers(tmp_path / "secret").intercept(context, lambda _: httpx.Response(200))
    said, problem = RuntimeVersionMetadata.from_metadata(list(request.headers.items()))
    assert problem is None
    assert said == RuntimeVersionMetadata.from_local_component("flwr CLI")
    assert request.headers[CONTROL_HEADER] == bytes(32).hex()
