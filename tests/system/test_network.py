"""A study whose hospitals are behind proxies: one that connects, and one that looks into TLS.

Real processes; the proxies are real too (support/proxies.py).
"""

import asyncio
import stat
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import tomli_w
from silomix_client.network.connection_status import standing
from silomix_client.network.outbound import network_of
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Process, Processes, Role
from silomix_lab.demo.run_demo import free_ports
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.enrolment.enrolment import Enrolment
from silomix_protocol.enrolment.renewal import Keeper
from support.authorities import authority_process
from support.consortia import make_consortium
from support.parties import beside
from support.processes import (
    LIMIT_S,
    approve_all,
    server_logs,
    silomix,
    spending,
    wait_until,
)
from support.proxies import Proxy, proxy

LOGIN = "silo:p@ss:wörd"
ROUNDS = 4


def configure(path: Path, **keys: object) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    path.write_text(tomli_w.dumps(table | keys), encoding="utf-8")


def put_behind_login(made: Consortium, silo: Path, url: str) -> None:
    login = silo.parent / "proxy.login"
    login.write_text(LOGIN, encoding="utf-8")
    login.chmod(0o600)
    configure(silo, network={"proxy": url, "proxy_login": "proxy.login"})


def put_behind_inspection(made: Consortium, silo: Path, url: str, authority: Authority) -> None:
    (silo.parent / "inspection.pem").write_bytes(authority.pem)
    study = made.study
    places = {
        "server": beside(study.server.channel_address),
        "mix-1": beside(study.mixes[0].address),
    }
    inspected = [{"party": party, "address": place} for party, place in places.items()]
    network = {"proxy": url, "ca": "inspection.pem", "inspected": inspected}
    configure(silo, network=network)
    configure(made.server, inspected_listen=places["server"])
    configure(made.mixes[0], inspected_listen=places["mix-1"])


def test_a_study_runs_through_a_proxy_with_a_login_and_through_tls_inspection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round has both reports; the environment's proxy settings change nothing.

    Before that, a silo says what it waits for: a proxy that refuses, then a server that is not
    there.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1,127.0.0.2")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    made = make_consortium(tmp_path / "c", records=(40, 50), mixes=1, rounds=ROUNDS)
    study, logs = made.study, made.folder / "logs"
    logs.mkdir()
    inspection = Authority.create("inspection", datetime.now(UTC))
    with proxy(login=LOGIN) as plain, proxy(authority=inspection) as inspecting:
        put_behind_login(made, made.silos[0], plain.url)
        put_behind_inspection(made, made.silos[1], inspecting.url, inspection)
        approve_all(made)
        authority = Enrolment.load(made.silos[0].parent).address
        for silo in made.silos:
            (silo.parent / "revoked.crl").unlink()  # then they ask for it when they start
        with Processes(logs) as processes:
            first = start_waiting(made, processes, plain)
            for role, config in others(made):
                processes.start(role, config)
            server = processes.start(Role.SERVER, made.server)
            assert server.child.wait(LIMIT_S) == 0, first.log.read_text()
            assert "leases_waiting" in first.log.read_text()
            assert "reports_connected party=mix-1" in first.log.read_text()
    state = made.silos[0].parent / "state"
    assert standing(state) is None
    assert not (state / "links.json").exists(), "an orderly end leaves nothing to misread"
    assert [each.rounds for each in spending(made)] == [ROUNDS] * 2
    party, mix = study.server, study.mixes[0]
    dialled = {party.fleet_address, party.channel_address, mix.address}
    assert set(plain.asked) == dialled | {authority}
    looked_into = {beside(party.channel_address), beside(mix.address), party.fleet_address}
    assert set(inspecting.asked) == looked_into | {authority}
    assert b"lease" in inspecting.seen, "the inspecting proxy did not look into anything"
    text = "".join(log.read_text() for log in [*logs.glob("*.log"), *server_logs(made)])
    assert "wörd" not in text
    assert quote("wörd") not in text


def start_waiting(made: Consortium, processes: Processes, way_out: Proxy) -> Process:
    """Start the first silo alone: what it waits for is told in its file."""

    def reason() -> str:
        found = standing(made.silos[0].parent / "state")
        return " ".join(each.reason for each in found.links) if found is not None else ""

    way_out.refuses.add(made.study.server.fleet_address)
    silo = processes.start(Role.SILO, made.silos[0])
    wait_until(lambda: "403" in reason(), "the refusal of the proxy is told")
    way_out.refuses.clear()
    wait_until(lambda: "502" in reason(), "the server that is not there is told")
    return silo


def others(made: Consortium) -> list[tuple[Role, Path]]:
    mixes = [(Role.MIX, config) for config in made.mixes]
    return mixes + [(Role.SILO, config) for config in made.silos[1:]]


@pytest.mark.parametrize("inspects", [False, True])
def test_a_silo_joins_renews_and_learns_who_is_revoked_through_its_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inspects: bool
) -> None:
    """The authority is asked through the proxy only, which is in the silo.toml that is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address, inspection = f"127.0.0.1:{free_ports(1)[0]}", Authority.create("i", datetime.now(UTC))
    done("authority", "init", "a", "--address", address)
    done("authority", "invite", "a/authority.toml", "silo-1", "--kind", "silo")
    login, ca, folder = tmp_path / "login", tmp_path / "i.pem", tmp_path / "silo-1"
    login.write_text(LOGIN, encoding="utf-8")
    login.chmod(0o600)
    ca.write_bytes(inspection.pem)
    with (
        authority_process(tmp_path / "a" / "authority.toml"),
        proxy(login=LOGIN, authority=inspection if inspects else None) as running,
    ):
        words = ["--proxy", running.url, "--proxy-login", str(login)]
        words += ["--ca", str(ca)] if inspects else []
        done("join", "silo-1.invitation", "--into", str(folder), *words)
        assert running.asked == [address]
        login.unlink()
        ca.unlink()
        first = (folder / "tls.crt").read_bytes()
        done("renew", str(folder / "silo.toml"))
        assert running.asked == [address] * 2
        assert (folder / "tls.crt").read_bytes() != first
        (folder / "revoked.crl").unlink()
        monkeypatch.delenv("no_proxy")  # as a silo's process does
        keeper = Keeper(folder, network_of(folder / "silo.toml").web)
        asyncio.run(keeper.look())
        assert running.asked == [address] * 3
        assert (folder / "revoked.crl").exists()
    assert stat.S_IMODE((folder / "proxy.login").stat().st_mode) == 0o600
    sign_key = (folder / "sign.key").read_bytes()
    assert bool(running.seen) is inspects
    assert sign_key not in running.seen


def done(*words: str) -> str:
    result = silomix(*words, cwd=Path())
    assert result.returncode == 0, result.stderr
    return result.stdout
