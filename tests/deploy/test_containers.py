"""Dockerfile and compose file: well formed, locked down, and about the product as it is.

Images are built and run by deploy/containers/try, which needs root and a network; not here.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from silomix_lab.consortium import machines
from support.commands import command_of

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy" / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BIN = Path(sys.executable).parent


def composed() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]
    return services


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [BIN / "hadolint", "--format=json", CONTAINERS / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_the_compose_file_fits_the_compose_specification() -> None:
    done = subprocess.run(
        [
            *(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"),
            CONTAINERS / "compose.yaml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_image_is_nobodys_and_starts_the_product() -> None:
    last = DOCKERFILE.split("\nFROM ")[-1]
    assert re.findall(r"(?m)^USER (.*)$", last) == ["10001:10001"]
    assert 'ENTRYPOINT ["silomix"]' in last
    assert "ADD " not in DOCKERFILE
    assert "curl" not in DOCKERFILE
    assert f"silomix:{VERSION}" in DOCKERFILE


@pytest.mark.parametrize("party", ["silo", "mix", "server", "authority"])
def test_a_service_is_locked_down(party: str) -> None:
    service = composed()[party]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (service["mem_limit"], service["memswap_limit"]) == ("4g", "4g")
    assert service["pids_limit"] == 512
    assert service["ulimits"] == {"nofile": 65536, "core": 0}
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
    assert service["user"].split(":")[0] != "0"
    assert service["image"] == f"${{SILOMIX_IMAGE:-silomix:{VERSION}}}"
    assert [mount.rpartition(":")[2] for mount in service["volumes"]] == ["/party"]
    assert not {"privileged", "network_mode", "pid", "ipc", "devices"} & set(service)


@pytest.mark.parametrize("party", ["silo", "mix", "server", "authority"])
def test_a_service_runs_and_asks_commands_that_there_are(party: str) -> None:
    service = composed()[party]
    assert command_of(service["command"][:2]) is not None
    assert service["command"] == [party, "run", f"{party}.toml"]
    kind, program, *words = service["healthcheck"]["test"]
    assert (kind, program, words[2:]) == ("CMD", "silomix", [f"{party}.toml"])
    assert command_of(words[:2]) is not None


def test_published_ports_are_those_that_a_consortium_gets() -> None:
    addresses = machines.addresses_of(["server=s.example", "mix-1=m.example"], 1)
    assert addresses is not None
    ports = {party: set(service.get("ports", ())) for party, service in composed().items()}

    def port(address: str) -> str:
        number = address.rpartition(":")[2]
        return f"{number}:{number}"

    assert ports == {
        "silo": set(),
        "mix": {port(addresses.mixes[0])},
        "server": {port(addresses.fleet), port(addresses.channel)},
        "authority": {port(addresses.authority)},
    }
