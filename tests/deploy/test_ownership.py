"""Every party, as its operator runs it: root or a user of its own, and nobody else's files."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
import typer
from silomix.main import app
from silomix_authority.config import load as load_authority
from silomix_client.config.silo_config import load as load_silo
from silomix_client.errors import InvalidSiloConfig
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_lab.consortium.create import Consortium
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host.failure import Failure
from silomix_protocol.keys import UnusableKey
from silomix_server.config import load as load_server
from silomix_shuffler.config import load as load_mix
from support.consortia import make_consortium
from support.silos import approved_silo, copied
from typer.testing import CliRunner

USER = 54321
WHOSE = [os.geteuid(), *([USER] if os.geteuid() == 0 else [])]
LOADERS: dict[str, Callable[[Path], object]] = {
    "silo-1/silo.toml": load_silo,
    "mix-1/mix.toml": load_mix,
    "server/server.toml": load_server,
    "authority/authority.toml": load_authority,
}
ERRORS = {
    "silo-1/silo.toml": "InvalidSiloConfig",
    "mix-1/mix.toml": "InvalidMixConfig",
    "server/server.toml": "InvalidServerConfig",
    "authority/authority.toml": "InvalidAuthorityConfig",
}

STUDY = "../study.toml"
COMMANDS: dict[str, dict[str, list[str]]] = {  # what each needs beside its configuration
    "silo-1/silo.toml": {
        "silo review": [STUDY],
        "silo approve": [STUDY, "--yes"],
        "silo run": [],
        "silo ledger": [],
        "silo revoke": ["0" * 8, "--yes"],
        "silo resume": ["0" * 8],
        "silo complaints": [],
        "silo backup": ["saved"],
        "silo check": [STUDY],
        "silo doctor": [],
        "silo status": [],
        "silo audit-log verify": [],
        "silo audit-log show": [],
        "renew": [],
    },
    "mix-1/mix.toml": {"mix run": [], "mix rotate": [], "mix health": [], "renew": []},
    "server/server.toml": {"server run": [], "server health": [], "renew": []},
    "authority/authority.toml": {
        "authority run": [],
        "authority invite": ["silo-9", "--kind", "silo"],
        "authority list": [],
        "authority revoke": ["silo-1", "--yes"],
        "authority roster": [],
        "authority health": [],
    },
}
WITHOUT_A_PARTY = {"silo restore", "silo backup-key", "authority init"}
CASES = [(name, command) for name, commands in COMMANDS.items() for command in commands]


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    found = make_consortium(tmp_path / "c")
    approved_silo(found)
    return found


@pytest.mark.parametrize("what", ["file", "folder", "state"])
@pytest.mark.parametrize("name", LOADERS)
def test_no_party_trusts_what_others_could_change(made: Consortium, name: str, what: str) -> None:
    config = made.folder / name
    state = config.parent / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    LOADERS[name](config)
    path = {"file": config, "folder": config.parent, "state": state}[what]
    path.chmod(path.stat().st_mode | 0o022)
    with pytest.raises(Exception, match=r"other users could change it .* run: chmod go-w") as told:
        LOADERS[name](config)
    assert type(told.value).__name__ == ERRORS[name]


@pytest.mark.parametrize("name", ["mix-1/mix.toml", "server/server.toml"])
def test_a_study_whose_keys_others_could_change_is_not_served(made: Consortium, name: str) -> None:
    (made.folder / "study.toml").chmod(0o664)
    with pytest.raises(Exception, match=r"study.toml: other users could change it"):
        LOADERS[name](made.folder / name)


def test_an_authority_that_others_could_exchange_is_not_trusted(made: Consortium) -> None:
    folder = made.folder / "mix-1"
    (folder / "ca.crt").chmod(0o666)
    with pytest.raises(UnusableKey, match=r"ca.crt: other users could change it"):
        Identity.load("mix-1", folder)


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """A consortium for commands that change nothing."""
    found = make_consortium(tmp_path_factory.mktemp("looked-at") / "c")
    approved_silo(found)
    return found


@pytest.mark.parametrize(("name", "command"), CASES)
def test_no_command_works_with_a_key_that_others_could_change(
    looked_at: Consortium, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    folder = (looked_at.folder / name).parent
    monkeypatch.chdir(folder)
    for key in sorted({"sign.key", "node.key", "tls.key", "ca.key", "ca.crt"} & set(names(folder))):
        path, before = Path(key), names(folder)
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        told = refusal(name, command)
        path.chmod(mode)
        assert f"{key}: other users could change it (mode" in told
        assert re.search(rf"run: chmod go-w \S*{key}", told)
        assert names(folder) == before


def test_every_command_of_a_party_is_among_those_that_were_tried() -> None:
    tried = {command for _, command in CASES if command != "renew"}
    groups = ("silo", "mix", "server", "authority")
    assert set(commands_of(*groups)) == tried | WITHOUT_A_PARTY


def refusal(name: str, command: str) -> str:
    """What the command says when it ends without success, in one line."""
    words = [*command.split(), Path(name).name, *COMMANDS[name][command]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    if command == "silo doctor":
        return result.output
    assert isinstance(result.exception, Failure), result.output
    assert result.output == ""
    return str(result.exception)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def commands_of(*groups: str) -> Iterator[str]:
    """The commands in these groups, with all their words."""
    whole = typer.main.get_command(app)
    assert isinstance(whole, click.Group)
    pending = [(name, whole.commands[name]) for name in groups]
    while pending:
        name, command = pending.pop()
        if isinstance(command, click.Group):
            pending += [(f"{name} {word}", each) for word, each in command.commands.items()]
        else:
            yield name


@pytest.mark.parametrize("runs", WHOSE)
@pytest.mark.parametrize("owns", WHOSE)
def test_a_silo_is_run_by_its_own_user_or_by_root(made: Consortium, owns: int, runs: int) -> None:
    """On a hospital's machine: a user of the silo's own, and root to look after it."""
    with TemporaryDirectory() as name:  # where other users get to
        folder = Path(name)
        folder.chmod(0o711)
        silo = copied(made, folder / "c").silos[0]
        for path in (folder / "c", *folder.rglob("c/**/*")):
            os.chown(path, owns, owns)
        with acting_as(runs):
            if runs in (0, owns):
                config = load_silo(silo)
                with closing(Ledger(config.state, config.policy)) as ledger:
                    assert verify(ledger).entries == 1
            else:
                with pytest.raises(InvalidSiloConfig, match="Permission denied"):
                    load_silo(silo)


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """This process with the rights of another user."""
    own = os.geteuid(), os.getegid()
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(own[0])
        os.setegid(own[1])
