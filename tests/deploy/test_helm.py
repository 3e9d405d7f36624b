"""The Helm chart: rendered by Helm itself, valid for Kubernetes, locked down, about the product."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from silomix_lab.consortium.machines import AUTHORITY_PORT, CHANNEL_PORT, FLEET_PORT, MIX_PORT
from silomix_protocol.host.ownership import check_state, read_own
from silomix_protocol.keys import SigningKey
from support.commands import command_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "silomix"
HELM = Path(sys.executable).parent / "helm"
KUBERNETES = ("1.25", "1.31", "1.36")

Manifest = dict[str, Any]


def helm(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, check=False)


def rendered(kind: str, *settings: str) -> dict[str, Manifest]:
    options = [part for each in settings for part in ("--set", each)]
    done = helm("template", f"my-{kind}", CHART, "--set", f"kind={kind},folder=keys", *options)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module", params=["mix", "server", "authority"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def manifests(kind: str) -> dict[str, Manifest]:
    return rendered(kind)


def test_helm_lints_the_chart_without_a_warning() -> None:
    done = helm("lint", CHART, "--strict", "--set", "folder=keys")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_what_is_rendered_is_valid_kubernetes(kind: str) -> None:
    for settings in ((), ("idle=true",), ("ports.metrics=9201", "storage.className=fast")):
        for manifest in rendered(kind, *settings).values():
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)


def test_nobody_deploys_without_saying_which_folder_or_a_party_that_there_is_not() -> None:
    for settings in ("kind=mix", "kind=silo,folder=x", "kind=mix,folder=x,prots.mix=1"):
        done = helm("template", "x", CHART, "--set", settings)
        assert done.returncode != 0
        assert "values don't meet the specifications" in done.stderr


def test_a_party_is_locked_down_and_never_two(manifests: dict[str, Manifest]) -> None:
    spec = manifests["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        limits = container["resources"]["limits"]
        assert limits == {"memory": "4Gi", "ephemeral-storage": "1Gi"}


def test_it_runs_commands_and_opens_ports_that_there_are(
    kind: str, manifests: dict[str, Manifest]
) -> None:
    (container,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [kind, "run", f"{kind}.toml"]
    assert command_of(container["args"][:2]) is not None
    program, *words = container["readinessProbe"]["exec"]["command"]
    assert (program, words[2:]) == ("silomix", [f"{kind}.toml"])
    assert command_of(words[:2]) is not None
    expected = {
        "mix": {MIX_PORT},
        "server": {FLEET_PORT, CHANNEL_PORT},
        "authority": {AUTHORITY_PORT},
    }[kind]
    assert {port["containerPort"] for port in container["ports"]} == expected
    assert {port["port"] for port in manifests["Service"]["spec"]["ports"]} == expected
    (rule,) = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == expected
    named = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"]["port"] in named


def test_metrics_are_open_inside_the_cluster_only_when_asked_for() -> None:
    manifests = rendered("mix", "ports.metrics=9201")
    (container,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == {MIX_PORT, 9201}
    assert {port["port"] for port in manifests["Service"]["spec"]["ports"]} == {MIX_PORT}


def test_chart_and_image_have_the_products_version(manifests: dict[str, Manifest]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    images = {each["image"] for each in (*pod["initContainers"], *pod["containers"])}
    assert images == {f"silomix:{version}"}


def test_the_folder_is_laid_out_anew_but_renewed_keys_stay(
    manifests: dict[str, Manifest], tmp_path: Path
) -> None:
    """The script of the init container, run here on folders of ours."""
    (init,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    secret, party = tmp_path / "secret", tmp_path / "party"
    secret.mkdir()
    party.mkdir()
    SigningKey.generate().save(secret / "sign.key")
    (secret / "sign.key").chmod(0o440)  # as a secret is mounted
    (secret / "tls.crt").write_text("enrolled")
    (secret / "revoked.crl").write_text("nobody")
    (secret / "mix.toml").write_text("old")
    shell, flags, script = init["command"]
    script = script.replace("/folder/", f"{secret}/").replace("/party/", f"{party}/")
    subprocess.run([shell, flags, script], check=True)
    key = (party / "sign.key").read_bytes()
    SigningKey.load(party / "sign.key")  # refuses what others could read
    (party / "tls.crt").unlink()
    (party / "tls.crt").write_text("renewed")
    (party / "revoked.crl").unlink()
    (party / "revoked.crl").write_text("silo-1")
    (party / "state").mkdir()
    (party / "state" / "mix.sqlite").write_text("kept")
    (secret / "mix.toml").write_text("new")
    for path in party.rglob("*"):  # as a kubelet may leave it
        path.chmod(0o2770 if path.is_dir() else 0o660)
    subprocess.run([shell, flags, script], check=True)
    SigningKey.load(party / "sign.key")
    assert (party / "sign.key").read_bytes() == key
    assert (party / "tls.crt").read_text() == "renewed"
    assert (party / "revoked.crl").read_text() == "silo-1", "a revocation was undone"
    assert (party / "mix.toml").read_text() == "new"
    assert (party / "state" / "mix.sqlite").read_text() == "kept"
    check_state(party / "state")
    assert read_own(party / "mix.toml") == b"new"
    assert shutil.which("install")
