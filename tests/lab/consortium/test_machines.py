"""A consortium for real machines: every folder stands alone, and everybody finds everybody."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from ipaddress import ip_address
from pathlib import Path

import click
import pytest
import typer
from cryptography import x509
from silomix.main import app
from silomix_client.approval.approve import review
from silomix_client.config.silo_config import load as load_silo
from silomix_lab.consortium.create import Addresses
from silomix_lab.consortium.machines import addresses_of
from silomix_protocol.host.failure import Failure
from silomix_server.config import load as load_server
from silomix_shuffler.config import load as load_mix
from support.operator_commands import silomix

HOSTS = ("server=server.example.org", "mix-1=192.0.2.7", "mix-2=2001:db8::5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every party's folder, moved away from the others, as on machines of their own."""
    place = tmp_path_factory.mktemp("machines")
    options = [part for host in HOSTS for part in ("--host", host)]
    done = silomix("consortium", "init", "c", "--silos", "3", "--mixes", "2", *options, cwd=place)
    assert done.returncode == 0, done.stderr
    for party in ("server", "mix-1", "mix-2", "silo-1", "silo-2", "silo-3"):
        (place / party / "here").mkdir(parents=True)
        shutil.move(place / "c" / party, place / party / "here" / party)
    shutil.rmtree(place / "c")
    return place


def home(folder: Path, party: str) -> Path:
    return folder / party / "here" / party


def names_in_certificate(party: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate((party / "tls.crt").read_bytes())
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = extension.get_values_for_type(x509.IPAddress)
    return {*extension.get_values_for_type(x509.DNSName), *map(str, addresses)}


def test_every_folder_alone_is_all_that_its_machine_needs(folder: Path) -> None:
    server = load_server(home(folder, "server") / "server.toml")
    assert (server.fleet_listen, server.channel_listen) == ("0.0.0.0:9092", "0.0.0.0:9094")
    assert server.control_listen == "127.0.0.1:9093"
    for name, listen in (("mix-1", "0.0.0.0:9101"), ("mix-2", "[::]:9101")):
        mix = load_mix(home(folder, name) / "mix.toml")
        assert (mix.studies, mix.listen) == ((server.study,), listen)
        assert mix.metrics_listen == "127.0.0.1:9201"  # what `silomix mix health` asks
    for name in ("silo-1", "silo-2", "silo-3"):
        path = home(folder, name)
        reviewed = review(load_silo(path / "silo.toml"), (path / "study.toml").read_bytes())
        assert reviewed.study == server.study


def test_the_study_sends_everybody_where_the_certificates_are_good_for(folder: Path) -> None:
    study = load_server(home(folder, "server") / "server.toml").study
    assert study.server.fleet_address == "server.example.org:9092"
    assert study.server.channel_address == "server.example.org:9094"
    assert [mix.address for mix in study.mixes] == ["192.0.2.7:9101", "[2001:db8::5]:9101"]
    assert "server.example.org" in names_in_certificate(home(folder, "server"))
    assert "192.0.2.7" in names_in_certificate(home(folder, "mix-1"))
    assert str(ip_address("2001:db8::5")) in names_in_certificate(home(folder, "mix-2"))


def commands(text: str) -> list[list[str]]:
    """The words of every command that a text shows on a line of its own."""
    return [
        shlex.split(line.split("  ")[0])
        for line in map(str.strip, text.splitlines())
        if line.startswith("silomix ")
    ]


@pytest.mark.parametrize("party", ["server", "mix-1", "silo-1"])
def test_each_readme_names_commands_and_files_that_there_are(folder: Path, party: str) -> None:
    text = (home(folder, party) / "README.txt").read_text()
    shown = commands(text)
    assert len(shown) >= 2
    for _, group, name, *arguments in shown:
        command = typer.main.get_command(app)
        assert isinstance(command, click.Group)
        inner = command.commands[group]
        assert isinstance(inner, click.Group)
        assert name in inner.commands
        for argument in arguments:
            assert argument == "FILE" or (home(folder, party) / argument).exists()
    for key in re.findall(r"\w+_listen|\blisten\b", text):
        (config,) = (path for path in home(folder, party).glob(f"{party.split('-')[0]}.toml"))
        assert key in tomllib.loads(config.read_text())


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (("server=a.example",), "say where mix-1, mix-2 will run"),
        ((*HOSTS, "silo-1=b.example"), "nobody connects to a silo"),
        (("server=a b", *HOSTS[1:]), "NAME=HOST"),
        (("server", *HOSTS[1:]), "NAME=HOST"),
    ],
)
def test_hosts_that_make_no_sense_are_refused_in_words(hosts: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Failure, match=re.escape(reason)):
        addresses_of(hosts, 2)


def test_a_consortium_is_laid_out_without_the_demos_extras(tmp_path: Path) -> None:
    """As the offline bundle installs it."""
    blocked = "sys.modules.update(dict.fromkeys(['psutil', 'sklearn', 'matplotlib', 'pandas']))"
    code = f"import sys; {blocked}; from silomix.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "consortium", "init", "c"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "silo-3" / "README.txt").exists()


def test_two_mixes_on_one_host_get_two_ports() -> None:
    addresses = addresses_of(["server=h.example", "mix-1=h.example", "mix-2=h.example"], 2)
    assert addresses is not None
    assert addresses.mixes == ("h.example:9101", "h.example:9102")


def test_what_others_find_on_this_machine_only_listens_there_only() -> None:
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        assert Addresses.listen(address) == address
