"""What the authority's operator types, and what a party is told; without a network."""

import stat
from pathlib import Path

import pytest
from silomix.main import app
from silomix_authority.config import load
from silomix_protocol.enrolment.membership import Invitation
from silomix_protocol.host.failure import Failure
from support.consortia import make_consortium
from typer.testing import CliRunner

ADDRESS = "127.0.0.1:9"


def typed(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, Failure):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    typed("authority", "init", "a", "--address", ADDRESS, "--certificate-days", 7)
    return tmp_path / "a" / "authority.toml"


def test_an_authority_is_made_once_and_its_key_is_its_own(authority: Path) -> None:
    config = load(authority)
    assert (config.address, config.listen) == (ADDRESS, "0.0.0.0:9")
    assert config.certificate_life.days == 7
    assert stat.S_IMODE((authority.parent / "ca.key").stat().st_mode) == 0o600
    with pytest.raises(Failure, match="not empty"):
        typed("authority", "init", authority.parent, "--address", ADDRESS)
    for option, value, told in (
        ("--address", "nowhere", "is not host:port"),
        ("--certificate-days", 0, "certificate_days must be above 0"),
        ("--list-hours", 1e6, "list_hours must be above 0 and at most"),
    ):
        given = {"--address": ADDRESS} | {option: value}
        words = [word for pair in given.items() for word in pair]
        with pytest.raises(Failure, match=told):
            typed("authority", "init", "b", *words)
        assert not Path("b").exists()


def test_who_is_invited_is_listed_and_can_be_withdrawn(authority: Path) -> None:
    typed("authority", "invite", authority, "mix-1", "--kind", "mix", "--address", "m.example:1")
    invitation = Invitation.load(Path("mix-1.invitation"))
    assert invitation.member.addresses == ("m.example:1",)
    assert "mix-1" in typed("authority", "list", authority)
    with pytest.raises(Failure, match="already a file"):
        typed("authority", "invite", authority, "mix-1", "--kind", "silo")
    with pytest.raises(Failure, match=r"no authority .* answers at 127\.0\.0\.1:9"):
        typed("join", "mix-1.invitation", "--into", "mix-1")
    typed("authority", "revoke", authority, "mix-1", "--yes")
    assert typed("authority", "list", authority) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("mix-1", "--kind", "mix"), "--address is needed"),
        (("silo-1", "--kind", "silo", "--address", "h:1"), "--address: nobody dials"),
        (("server", "--kind", "server", "--fleet-address", "h:1"), "--channel-address is needed"),
        (("x", "--kind", "king"), "use silo, mix or server"),
        (("authority", "--kind", "silo"), "cannot be a party's name"),
        (("mix-1", "--kind", "mix", "--address", "h"), "is not host:port"),
    ],
)
def test_an_invitation_that_makes_no_sense_is_refused_and_not_written(
    authority: Path, words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(Failure, match=told):
        typed("authority", "invite", authority, *words)
    assert not list(Path().glob("*.invitation"))
    assert typed("authority", "list", authority) == ""


def test_a_sample_consortium_has_an_authority_that_knows_its_parties(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c")
    listed = typed("authority", "list", made.authority).splitlines()
    assert len(listed) == len([made.server, *made.mixes, *made.silos])
    assert all("certificate until" in line for line in listed)
    with pytest.raises(Failure, match=r"silo-1 is a member; .* revoke it first"):
        typed("authority", "invite", made.authority, "silo-1", "--kind", "silo")
    typed("authority", "revoke", made.authority, "silo-1", "--yes")
    assert (
        sum("revoked" in line for line in typed("authority", "list", made.authority).split()) == 1
    )


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("mix", ("--proxy", "http://p.example:3128"), "--proxy: a mix dials directly"),
        ("silo", ("--proxy", "http://u:secret@p.example:3128"), "a login does not belong here"),
        ("silo", ("--proxy", "p.example"), "network.proxy: not http://HOST:PORT"),
        ("silo", ("--proxy-login", "nowhere"), "network.proxy_login"),
        ("silo", ("--ca", "nowhere.pem"), "nowhere.pem: No such file"),
    ],
)
def test_a_way_out_that_makes_no_sense_is_refused_before_anything_is_made(
    authority: Path, kind: str, words: tuple[str, ...], told: str
) -> None:
    addresses = ("--address", "h:1") if kind == "mix" else ()
    typed("authority", "invite", authority, "p", "--kind", kind, *addresses)
    with pytest.raises(Failure, match=told):
        typed("join", "p.invitation", "--into", "p", *words)
    assert not Path("p").exists()
