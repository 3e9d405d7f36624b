"""`silomix silo doctor` finds each fault that a test plants, and nothing where there is none.

The parties are real and in a process of their own; so are the proxies in between.
"""

import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.doctor import checks
from silomix_client.doctor.checks import examine
from silomix_client.doctor.finding import Finding, Severity, Surroundings
from silomix_client.doctor.probes import Answer
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import Fate
from silomix_client.ledger.witnessed_height import Witness
from silomix_client.network.outbound import OutboundNetwork
from silomix_client.rounds.stop_rule import StopRule, forget
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import free_ports
from silomix_protocol.certificates.certificates import Authority, IssuedCertificate
from silomix_protocol.connections.route import Proxy
from silomix_protocol.enrolment.enrolment import Enrolment
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.heights import Height
from support.authorities import authority_process
from support.consortia import make_consortium
from support.heights import some_height
from support.operator_commands import silomix
from support.parties import beside, greeters
from support.processes import approve_all
from support.proxies import proxy
from support.silos import copied, written

NOW = datetime.now(UTC)
PLENTY = Surroundings(free_bytes=lambda folder: 10**12)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    made = make_consortium(tmp_path_factory.mktemp("doctor") / "consortium")
    with greeters(made, inspected=True), authority_process(made.authority):
        yield made


@pytest.fixture
def made(served: Consortium, tmp_path: Path) -> Consortium:
    """A consortium whose server and first mix are there, with folders of its own."""
    return copied(served, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return load(made.silos[0])


def content(made: Consortium) -> bytes:
    return (made.folder / "study.toml").read_bytes()


def findings(
    config: SiloConfig, study: bytes | None, machine: Surroundings = PLENTY
) -> list[Finding]:
    return list(examine(config, study, machine))


def failed(found: list[Finding]) -> dict[str, Finding]:
    """What failed, by subject; each says what to do."""
    wrong = {each.subject: each for each in found if each.severity is Severity.FAILED}
    assert all(each.advice for each in wrong.values())
    return wrong


def only_failure(config: SiloConfig, study: bytes, machine: Surroundings = PLENTY) -> Finding:
    wrong = failed(findings(config, study, machine))
    assert len(wrong) == 1, wrong
    return next(iter(wrong.values()))


def moved(study: bytes, old: str, new: str) -> bytes:
    """The study with another address."""
    text = study.decode()
    assert old in text
    return text.replace(old, new).encode()


def through(running_port: int, login: tuple[str, str] = ("", "")) -> OutboundNetwork:
    return OutboundNetwork(Proxy("127.0.0.1", running_port, *login))


def consortium_authority(made: Consortium) -> Authority:
    folder = made.folder / "authority"
    certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    return Authority(certificate, key)  # type: ignore[arg-type]


# All is well -------------------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is_wrong(made: Consortium, config: SiloConfig) -> None:
    found = findings(config, content(made))
    assert {each.severity for each in found} == {Severity.OK}, found
    subjects = {each.subject for each in found}
    parts = {"keys", "certificate", "revocation list", "disk", "data", "budget", "clock"}
    parts |= {"connection authority", "connection server", "connection mix-1"}
    assert parts <= subjects
    server = made.study.server
    seen = " ".join(each.seen for each in found)
    for address in (server.fleet_address, server.channel_address, made.study.mixes[0].address):
        assert address in seen
    assert made.study.mixes[1].address not in seen, "a silo dials the first mix only"
    assert not (config.folder / "state").exists(), "the doctor wrote something"


def test_an_approved_study_is_looked_at_without_its_file(
    made: Consortium, config: SiloConfig
) -> None:
    approve_all(made)
    found = findings(config, None)
    assert {each.severity for each in found} == {Severity.OK}, found
    assert f"data {made.study.short_id}" in {each.subject for each in found}


def test_the_command_says_ok_and_its_exit_status_is_the_verdict(made: Consortium) -> None:
    study = made.folder / "study.toml"
    well = silomix("silo", "doctor", str(made.silos[0]), str(study), cwd=made.folder)
    assert (well.returncode, well.stderr) == (0, "")
    assert "failed" not in well.stdout
    (made.silos[0].parent / "sign.key").chmod(0o644)
    ill = silomix("silo", "doctor", str(made.silos[0]), str(study), cwd=made.folder)
    assert ill.returncode == 1
    assert "chmod 600" in ill.stdout
    made.silos[0].write_text("nonsense = 1\n")
    unreadable = silomix("silo", "doctor", str(made.silos[0]), cwd=made.folder)
    assert unreadable.returncode == 1
    assert unreadable.stdout.startswith("failed   configuration")


# This machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off_s", "verdict", "side"),
    [
        (400.0, Severity.FAILED, "ahead of"),
        (10.0, Severity.FAILED, "ahead of"),
        (-400.0, Severity.FAILED, "behind"),
        (-60.0, Severity.WARNING, "behind"),
    ],
)
def test_a_wrong_clock_is_found(
    made: Consortium, config: SiloConfig, off_s: float, verdict: Severity, side: str
) -> None:
    machine = replace(PLENTY, now=lambda: time.time() + off_s)
    found = findings(config, content(made), machine)
    (clock,) = (each for each in found if each.subject == "clock")
    assert clock.severity is verdict
    match = re.fullmatch(r"(\d+) s (.*) the others", clock.seen)
    assert match is not None, clock
    seconds, told = match.groups()
    assert told == side
    assert abs(float(seconds) - abs(off_s)) <= 2.0, "HTTP tells whole seconds"
    assert "time server" in clock.advice


def test_a_full_disk_is_found(made: Consortium, config: SiloConfig) -> None:
    full = replace(PLENTY, free_bytes=lambda folder: 30 * 10**6)
    assert "30 MB free" in only_failure(config, content(made), full).seen
    little = replace(PLENTY, free_bytes=lambda folder: 300 * 10**6)
    (disk,) = (each for each in findings(config, content(made), little) if each.subject == "disk")
    assert disk.severity is Severity.WARNING


@pytest.mark.parametrize("name", ["tls.key", "sign.key", "node.key"])
def test_a_key_that_others_can_read_is_found(
    made: Consortium, config: SiloConfig, name: str
) -> None:
    (config.folder / name).chmod(0o640)
    finding = failed(findings(config, content(made)))["keys"]
    assert f"{name}: readable by others" in finding.seen
    assert finding.advice.startswith("chmod 600")


def test_a_missing_key_is_found(made: Consortium, config: SiloConfig) -> None:
    (config.folder / "node.key").unlink()
    assert "node.key: No such file" in failed(findings(config, content(made)))["keys"].seen


# Certificates ------------------------------------------------------------------------------------


def renew(config: SiloConfig, issued: IssuedCertificate) -> None:
    (config.folder / "tls.crt").write_bytes(issued.certificate)
    (config.folder / "tls.key").write_bytes(issued.key)


def test_an_expired_certificate_of_this_silo_is_found(made: Consortium, config: SiloConfig) -> None:
    authority = consortium_authority(made)
    renew(config, authority.issue("silo-1", (), NOW - timedelta(days=100), serves=False))
    wrong = failed(findings(config, content(made)))
    assert "tls.crt: expired on" in wrong["certificate"].seen
    assert "expired" in wrong["tls mix-1"].advice, "what the mix makes of it is found too"


def test_a_certificate_that_ends_soon_is_a_warning(made: Consortium, config: SiloConfig) -> None:
    authority = consortium_authority(made)
    renew(config, authority.issue("silo-1", (), NOW - timedelta(days=80), serves=False))
    found = findings(config, content(made))
    warnings = [each for each in found if each.severity is Severity.WARNING]
    assert [each.subject for each in warnings] == ["certificate"]
    assert not failed(found)


def test_a_certificate_of_another_name_or_authority_is_found(
    made: Consortium, config: SiloConfig
) -> None:
    renew(config, consortium_authority(made).issue("silo-9", (), NOW, serves=False))
    assert "silo-9" in failed(findings(config, content(made)))["certificate"].seen
    renew(config, Authority.create("other", NOW).issue("silo-1", (), NOW, serves=False))
    seen = failed(findings(config, content(made)))["certificate"].seen
    assert "not issued by ca.crt" in seen


def test_the_wrong_authority_is_found(made: Consortium, config: SiloConfig) -> None:
    other = Authority.create("other", NOW)
    (config.folder / "ca.crt").write_bytes(other.pem)
    renew(config, other.issue("silo-1", (), NOW, serves=False))
    wrong = failed(findings(config, content(made)))
    assert set(wrong) == {"revocation list", "tls server", "tls mix-1"}
    assert "is not the consortium's" in wrong["tls mix-1"].seen


@contextmanager
def tls_server(folder: Path, issued: IssuedCertificate) -> Iterator[str]:
    """Something with this certificate that never gets farther than TLS; where it is."""
    (folder / "crt").write_bytes(issued.certificate)
    (folder / "key").write_bytes(issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    with create_server(("127.0.0.1", 0)) as listener:

        def accept_once() -> None:
            stream, _ = listener.accept()
            with (
                stream,
                suppress(OSError),  # whoever connects does not accept us
                context.wrap_socket(stream, server_side=True) as secured,
            ):
                secured.recv(1)

        thread = threading.Thread(target=accept_once, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("name", "age", "said"),
    [("mix-1", 100, "has expired"), ("mix-1", -10, "is not valid yet"), ("mix-7", 0, "not mix-1")],
)
def test_a_partys_certificate_that_is_not_right_is_found(
    made: Consortium, config: SiloConfig, tmp_path: Path, name: str, age: int, said: str
) -> None:
    authority = consortium_authority(made)
    issued = authority.issue(name, ("127.0.0.1",), NOW - timedelta(days=age), serves=True)
    with tls_server(tmp_path, issued) as address:
        study = moved(content(made), made.study.mixes[0].address, address)
        assert said in failed(findings(config, study))["tls mix-1"].seen


def test_a_study_that_the_silo_stopped_answering_is_found(
    made: Consortium, config: SiloConfig
) -> None:
    approve_all(made)
    counted = StopRule(config.state, made.study.identity)
    for number in (b"1", b"2"):
        assert of_study(made, findings(config, None)) == []
        counted.judge(RoundDigest(number), Fate.MISSING)
    (finding,) = of_study(made, findings(config, None))
    assert finding.severity is Severity.FAILED
    assert "silomix silo resume" in finding.advice
    forget(config.state, made.study.identity)


def of_study(made: Consortium, found: list[Finding]) -> list[Finding]:
    return [each for each in found if each.subject == f"reports {made.study.short_id}"]


# The authority -----------------------------------------------------------------------------------


def move_authority(config: SiloConfig, address: str) -> None:
    replace(Enrolment.load(config.folder), address=address).save()


def of(subject: str, found: list[Finding]) -> Finding:
    (finding,) = (each for each in found if each.subject == subject)
    return finding


def test_an_authority_that_cannot_be_reached_fails_once_the_certificate_is_due(
    made: Consortium, config: SiloConfig
) -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    move_authority(config, closed)
    found = findings(config, None)
    finding = of("port authority", found)
    assert finding.severity is Severity.WARNING
    assert "connection refused" in finding.seen
    assert closed in finding.advice
    issued = consortium_authority(made).issue("silo-1", (), NOW - timedelta(days=61), serves=False)
    renew(config, issued)
    assert of("port authority", findings(config, None)).severity is Severity.FAILED
    move_authority(config, "authority.nowhere.invalid:9090")
    assert "in enrolment.toml" in of("dns authority", findings(config, None)).advice


def test_what_is_not_the_authority_is_found(made: Consortium, config: SiloConfig) -> None:
    move_authority(config, made.study.mixes[0].address)
    assert "is not authority" in of("tls authority", findings(config, None)).seen


def test_the_authority_tells_the_time_without_any_study(config: SiloConfig) -> None:
    machine = replace(PLENTY, now=lambda: time.time() + 400)
    clock = of("clock", findings(config, None, machine))
    assert clock.severity is Severity.FAILED
    assert clock.seen.endswith("s ahead of the others")


def test_a_list_of_the_revoked_that_is_old_or_missing_is_found(
    made: Consortium, config: SiloConfig
) -> None:
    path, authority = config.folder / "revoked.crl", consortium_authority(made)
    life = timedelta(hours=72)
    for age, verdict in ((0, Severity.OK), (2, Severity.WARNING), (73, Severity.FAILED)):
        path.write_bytes(authority.revocation_list(1, (), (), NOW - timedelta(hours=age), life))
        assert of("revocation list", findings(config, None)).severity is verdict
    path.unlink()
    finding = only_failure(config, content(made))
    assert finding.subject == "revocation list"
    assert "silomix renew" in finding.advice


def test_a_revoked_silo_is_told_so(tmp_path: Path) -> None:
    own = make_consortium(tmp_path / "own")
    with authority_process(own.authority):
        revoked = silomix(
            "authority", "revoke", str(own.authority), "silo-1", "--yes", cwd=tmp_path
        )
        assert revoked.returncode == 0, revoked.stderr
        wrong = failed(findings(load(own.silos[0]), None))
        assert wrong["membership"].seen == "the authority revoked silo-1"
        assert "membership" not in failed(findings(load(own.silos[1]), None))


# The way out -------------------------------------------------------------------------------------


def test_an_unknown_name_is_found(made: Consortium, config: SiloConfig) -> None:
    address = made.study.mixes[0].address
    study = moved(content(made), address, "mix.nowhere.invalid:9101")
    finding = failed(findings(config, study))["dns mix-1"]
    assert "mix.nowhere.invalid is not known" in finding.seen


def test_a_closed_port_is_found(made: Consortium, config: SiloConfig) -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    study = moved(content(made), made.study.mixes[0].address, closed)
    finding = failed(findings(config, study))["port mix-1"]
    assert "connection refused" in finding.seen
    assert closed in finding.advice


def test_everything_goes_through_the_proxy(made: Consortium, config: SiloConfig) -> None:
    login = "way-out", "p@ss:w%rd/ü"
    with proxy(login=":".join(login)) as running:
        found = findings(replace(config, network=through(running.port, login)), content(made))
        assert {each.severity for each in found} == {Severity.OK}, found
        server, mix = made.study.server, made.study.mixes[0]
        authority = Enrolment.load(config.folder).address
        dialled = {server.fleet_address, server.channel_address, mix.address, authority}
        assert set(running.asked) == dialled
        assert running.asked.count(authority) == 2, "the list was asked for past the proxy"
        assert running.asked.count(mix.address) == 2, "the greeting went past the proxy"
    assert not any(login[1] in each.seen + each.advice for each in found)


def test_a_proxy_that_is_not_there_is_found(made: Consortium, config: SiloConfig) -> None:
    network = through(free_ports(1)[0])
    finding = only_failure(replace(config, network=network), content(made))
    assert finding.subject == "proxy"
    assert "connection refused" in finding.seen


def test_a_proxy_that_wants_a_login_is_found(made: Consortium, config: SiloConfig) -> None:
    with proxy(login="user:right") as running:
        without = replace(config, network=through(running.port))
        wrong = failed(findings(without, content(made)))
        assert set(wrong) == {"proxy server", "proxy mix-1"}
        assert "asks for a login" in wrong["proxy mix-1"].seen
        assert "network.proxy_login" in wrong["proxy mix-1"].advice
        mistyped = replace(config, network=through(running.port, ("user", "wrong")))
        seen = failed(findings(mistyped, content(made)))["proxy mix-1"].seen
        assert "does not accept the login" in seen
        assert "wrong" not in seen


def test_a_proxy_that_refuses_one_address_is_found(made: Consortium, config: SiloConfig) -> None:
    mix = made.study.mixes[0].address
    with proxy() as running:
        running.refuses.add(mix)
        finding = only_failure(replace(config, network=through(running.port)), content(made))
    assert finding.subject == "proxy mix-1"
    assert f"refuses to connect to {mix} (403)" in finding.seen


def test_what_a_proxy_cannot_reach_is_found(made: Consortium, config: SiloConfig) -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    study = moved(content(made), made.study.mixes[0].address, closed)
    with proxy() as running:
        wrong = failed(findings(replace(config, network=through(running.port)), study))
    assert "502" in wrong["port mix-1"].seen


def test_a_proxy_that_looks_into_tls_is_found_and_can_be_lived_with(
    made: Consortium, config: SiloConfig
) -> None:
    inspection = Authority.create("inspection of the hospital", NOW)
    study, mix = made.study, made.study.mixes[0]
    with proxy(authority=inspection) as running:
        network = through(running.port)
        wrong = failed(findings(replace(config, network=network), content(made)))
        assert set(wrong) == {"tls server", "tls mix-1"}
        assert "TLS inspection" in wrong["tls mix-1"].advice
        addresses = {
            "server": beside(study.server.channel_address),
            "mix-1": beside(mix.address),
        }
        known = replace(network, authorities=inspection.pem, inspected=addresses)
        found = findings(replace(config, network=known), content(made))
        assert {each.severity for each in found} == {Severity.OK}, found
        looked_into = [each for each in found if "inspection of the hospital" in each.seen]
        assert len(looked_into) == 4


# Versions, study, data, budget -------------------------------------------------------------------


def test_another_version_is_found(
    made: Consortium, config: SiloConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_protocol.connections.version.VERSION", 2)
    wrong = failed(findings(config, content(made)))
    assert set(wrong) == {"version server", "version mix-1"}
    for finding in wrong.values():
        assert "you speak version 2 of the protocol" in finding.seen
        assert "this is version 1" in finding.seen


def test_a_server_that_runs_another_study_is_found(made: Consortium, config: SiloConfig) -> None:
    study = content(made) + b"\n# another file, another study\n"
    wrong = failed(findings(config, study))
    assert set(wrong) == {"enrolment server", "version mix-1"}
    assert made.study.short_id in wrong["enrolment server"].seen


def test_a_study_that_does_not_name_this_silos_key_is_found(
    made: Consortium, config: SiloConfig
) -> None:
    (config.folder / "sign.key").write_bytes((made.silos[1].parent / "sign.key").read_bytes())
    assert "another signing key" in failed(findings(config, content(made)))["study"].seen


def test_a_missing_column_is_found(made: Consortium, config: SiloConfig) -> None:
    data = config.folder / "data.csv"
    data.write_text(data.read_text().replace("dose", "doses", 1))
    finding = only_failure(config, content(made))
    assert finding.subject == "data"
    assert "data.csv" in finding.seen
    assert "dose" in finding.seen


def test_an_exhausted_budget_is_found(made: Consortium, config: SiloConfig) -> None:
    policy = config.folder / "policy.toml"
    policy.write_text("epsilon = 0.5\ndelta = 1e-5\nminimum_batch = 1\n")
    finding = only_failure(load(made.silos[0]), content(made))
    assert finding.subject == "budget"
    assert "policy" in finding.seen
    policy.write_text("epsilon = 2.0\ndelta = 1e-5\nminimum_batch = 1\n")
    approve_all(made)
    policy.write_text("epsilon = 0.01\ndelta = 1e-5\nminimum_batch = 1\n")
    lowered = only_failure(load(made.silos[0]), content(made))
    assert lowered.subject == f"budget {made.study.short_id}"
    assert "round 1 would exceed" in lowered.seen


def test_a_changed_snapshot_is_found(made: Consortium, config: SiloConfig) -> None:
    approve_all(made)
    (snapshot,) = (config.folder / "state" / "snapshots").iterdir()
    snapshot.chmod(0o600)
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"x")
    assert set(failed(findings(config, None))) == {f"data {made.study.short_id}"}


# The ledger, as others know it -------------------------------------------------------------------


def shown_by_all(monkeypatch: pytest.MonkeyPatch, height: Height) -> None:
    """Server and mix are greeted as they are, and show this height."""
    real = checks.greet

    def shows(*target: Any) -> Answer:
        return replace(real(*target), height=height.to_wire())

    monkeypatch.setattr(checks, "greet", shows)


def test_a_ledger_behind_what_others_show_is_found_and_nothing_is_kept(
    made: Consortium, config: SiloConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve_all(made)
    before = written(config)
    shown_by_all(monkeypatch, some_height(made, "silo-1", 9))
    found = findings(config, None)
    assert failed(found).keys() == {"ledger"}
    seen = [each.seen for each in found if each.subject == "ledger"]
    assert [each.split()[0] for each in seen] == ["server", "mix-1"]
    assert all("of 9 entries, and this one has 1: it was put back" in each for each in seen)
    assert "restore" in failed(found)["ledger"].advice
    assert written(config) == before


def test_a_silo_whose_state_is_gone_is_told_that_there_was_one(
    made: Consortium, config: SiloConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_by_all(monkeypatch, some_height(made, "silo-1", 9))
    assert "and this one has 0" in failed(findings(config, content(made)))["ledger"].seen
    assert not (config.folder / "state").exists(), "the doctor wrote something"


def test_a_height_that_fits_is_fine_and_one_that_nobody_signed_a_warning(
    made: Consortium, config: SiloConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve_all(made)
    key = SigningKey.load(config.folder / "sign.key")
    with closing(Ledger(config.state, config.policy)) as ledger:
        own = Height.of(Witness(ledger, config.name, key).height())
    shown_by_all(monkeypatch, own)
    verdicts = {each.seen: each.severity for each in findings(config, None)}
    assert verdicts["mix-1 knows it up to entry 1, which is there"] is Severity.OK
    shown_by_all(monkeypatch, replace(own, entries=7))
    found = {each.subject: each for each in findings(config, None)}
    assert found["ledger"].severity is Severity.WARNING
    assert "never signed" in found["ledger"].seen


@pytest.mark.slow
def test_evidence_that_was_kept_is_found_though_nobody_shows_it_any_more(
    made: Consortium, config: SiloConfig
) -> None:
    approve_all(made)
    key = SigningKey.load(config.folder / "sign.key")
    with closing(Ledger(config.state, config.policy)) as ledger:
        Witness(ledger, config.name, key).hear(some_height(made, "silo-1", 9).to_wire(), "mix-1")
    found = failed(findings(config, None))
    assert found.keys() == {"ledger"}
    assert found["ledger"].seen.startswith("mix-1 has this silo's signature")
    result = silomix("silo", "ledger", str(made.silos[0]), cwd=made.folder)
    assert result.returncode == 1
    assert "verified 1 entry" in result.stdout, "whole, and yet not the last"
    assert "mix-1 has this silo's signature on a ledger of 9 entries" in result.stderr
