"""A silo's way out: what silo.toml may say of it, and that nothing else has a say."""

from pathlib import Path

import pytest
from silomix_client.config.silo_config import load
from silomix_client.errors import InvalidSiloConfig
from silomix_client.network.outbound import sentence
from silomix_lab.consortium.create import Consortium
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.connections.route import Proxy
from support.consortia import make_consortium
from support.silos import NOW

INSPECTION = Authority.create("inspection", NOW).pem


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("network") / "consortium")


@pytest.fixture
def silo(made: Consortium) -> Path:
    """The silo.toml of a silo, as it was before every test."""
    config = made.silos[0]
    content = config.read_text(encoding="utf-8")
    (config.parent / "inspection.pem").write_bytes(INSPECTION)
    login = config.parent / "proxy.login"
    login.write_text("user:p@ss:word\n")
    login.chmod(0o600)
    config.write_text(content.partition("[network]")[0], encoding="utf-8")
    return config


def configured(silo: Path, network: str) -> Path:
    silo.write_text(silo.read_text() + "\n[network]\n" + network)
    return silo


def test_without_a_network_table_a_silo_connects_directly(silo: Path) -> None:
    network = load(silo).network
    assert (network.proxy, network.authorities, network.inspected) == (None, b"", {})
    assert network.address("mix-1", "mix.example:9101") == "mix.example:9101"


def test_proxy_login_authority_and_inspected_addresses_are_read(silo: Path) -> None:
    network = load(
        configured(
            silo,
            'proxy = "http://proxy.example:3128"\nproxy_login = "proxy.login"\n'
            'ca = "inspection.pem"\n'
            '[[network.inspected]]\nparty = "mix-1"\naddress = "mix.example:9102"\n',
        )
    ).network
    assert network.proxy == Proxy("proxy.example", 3128, "user", "p@ss:word")
    assert network.proxy.url == "http://user:p%40ss%3Aword@proxy.example:3128"
    assert network.address("mix-1", "mix.example:9101") == "mix.example:9102"
    assert network.address("server", "server.example:9094") == "server.example:9094"
    assert "p@ss" not in repr(network)
    assert "p%40ss" not in repr(network)


def test_an_inspecting_authority_is_believed_only_where_inspection_is_declared(silo: Path) -> None:
    network = load(
        configured(
            silo,
            'ca = "inspection.pem"\n'
            '[[network.inspected]]\nparty = "mix-1"\naddress = "mix.example:9102"\n',
        )
    ).network
    assert network.route("mix-1").authorities == INSPECTION
    assert network.route("server").authorities == b""


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ('proxy = "http://user:secret@proxy.example:3128"', "a login does not belong here"),
        ('proxy = "https://proxy.example:3128"', "http://HOST:PORT"),
        ('proxy = "proxy.example:3128"', "http://HOST:PORT"),
        ('proxy = "http://proxy.example"', "http://HOST:PORT"),
        ('proxy = "http://proxy.example:99999"', "http://HOST:PORT"),
        ('proxy = "http://proxy.example:3128/path"', "http://HOST:PORT"),
        ('proxy_login = "proxy.login"', "unknown key: network.proxy_login"),
        ('proxy = "http://p.example:1"\nproxy_login = "nowhere"', "nowhere: No such file"),
        ('ca = "nowhere.pem"', "nowhere.pem: No such file"),
        ('ca = "proxy.login"', "proxy.login: not certificates"),
        ('no_proxy = "localhost"', "unknown key: network.no_proxy"),
        (
            '[[network.inspected]]\nparty = "mix-1"\naddress = "mix.example:9102"',
            "needs network.ca",
        ),
        (
            'ca = "inspection.pem"\n[[network.inspected]]\nparty = "mix-1"\naddress = "mix"',
            "is not host:port",
        ),
    ],
)
def test_anything_else_is_refused_in_words(silo: Path, network: str, said: str) -> None:
    with pytest.raises(InvalidSiloConfig) as refused:
        load(configured(silo, network))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_login_that_others_can_read_or_that_is_none_is_refused(silo: Path) -> None:
    login = silo.parent / "proxy.login"
    configured(silo, 'proxy = "http://proxy.example:3128"\nproxy_login = "proxy.login"\n')
    login.chmod(0o640)
    with pytest.raises(InvalidSiloConfig, match="chmod 600"):
        load(silo)
    login.chmod(0o600)
    for content in ("useronly", ":password", "user:", "user:pass\nmore:lines", "\x1b:x"):
        login.write_text(content)
        with pytest.raises(InvalidSiloConfig, match="expected one line, user:password") as refused:
            load(silo)
        assert "pass\n" not in str(refused.value)


def test_an_inspecting_authority_that_others_could_exchange_is_refused(silo: Path) -> None:
    configured(silo, 'ca = "inspection.pem"\n')
    (silo.parent / "inspection.pem").chmod(0o666)
    with pytest.raises(InvalidSiloConfig, match=r"inspection.pem: other users could change it"):
        load(silo)
    (silo.parent / "inspection.pem").chmod(0o644)
    load(silo)


def test_errors_of_the_way_become_sentences() -> None:
    outer = RuntimeError("something went wrong")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert sentence(outer) == "connection refused"
    assert sentence(TimeoutError()) == "no answer in time"
