"""A sample consortium for real machines: addresses from hosts, and folders that stand alone.

`silomix consortium init DIR --host server=… --host mix-1=…` makes one folder per machine; each has
its copy of the study file and a README.txt with what to type there.
"""

import shutil
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import tomli_w
from silomix_core.toml_table import InvalidField, TomlTable, split_address
from silomix_protocol.host.durable import write_durably
from silomix_protocol.host.failure import Failure

from silomix_lab.consortium.create import Addresses, Consortium

# As in deploy/README.md's table of ports.
AUTHORITY_PORT, FLEET_PORT, CONTROL_PORT, CHANNEL_PORT = 9090, 9092, 9093, 9094
MIX_PORT, METRICS_PORT = 9101, 9201


def addresses_of(hosts: Sequence[str], mixes: int) -> Addresses | None:
    """The addresses that NAME=HOST texts give, with the usual ports; None without texts."""
    if not hosts:
        return None
    names = ["server", *(f"mix-{index + 1}" for index in range(mixes))]
    named = dict(_named_host(text) for text in hosts)
    if unknown := sorted(set(named) - {*names, "authority"}):
        raise Failure(
            f"--host {unknown[0]}: only the server and the mixes have one ({', '.join(names)}), "
            "and the authority, if it is not the server's; nobody connects to a silo"
        )
    if missing := [name for name in names if name not in named]:
        raise Failure(f"--host: say where {', '.join(missing)} will run, too")
    server = named["server"]
    taken: Counter[str] = Counter()
    chain = []
    for name in names[1:]:
        host = named[name]
        chain.append(f"{host}:{MIX_PORT + taken[host]}")  # several mixes on one machine: for trials
        taken[host] += 1
    return Addresses(
        fleet=f"{server}:{FLEET_PORT}",
        channel=f"{server}:{CHANNEL_PORT}",
        control=f"127.0.0.1:{CONTROL_PORT}",
        mixes=tuple(chain),
        authority=f"{named.get('authority', server)}:{AUTHORITY_PORT}",
    )


def furnish(made: Consortium, *, alone: bool) -> None:
    """Give every party's folder its own study file and a README.txt.

    `alone`: each party has its own machine, so that a mix can take the usual port for its health.
    """
    study = made.folder / "study.toml"
    for config in (made.server, *made.mixes, *made.silos):
        shutil.copy(study, config.parent / "study.toml")
    _change(made.server, study="study.toml")
    for config, mix in zip(made.mixes, made.study.mixes, strict=True):
        _change(config, studies=["study.toml"])
        if alone:
            place = split_address(mix.address)[1] - MIX_PORT
            _change(config, metrics_listen=f"127.0.0.1:{METRICS_PORT + place}")
    name = made.study.name
    _describe(made.server, _SERVER.format(name=name))
    for config in made.mixes:
        _describe(config, _MIX.format(name=name, party=config.parent.name))
    for config in made.silos:
        _describe(config, _SILO.format(name=name, party=config.parent.name))


def _named_host(text: str) -> tuple[str, str]:
    name, _, host = text.partition("=")
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    try:
        TomlTable({"host": f"{host}:1"}).address("host")
    except InvalidField:
        raise Failure(f"--host {text}: give it as NAME=HOST, a DNS name or an address") from None
    return name, host


def _change(config: Path, **keys: Any) -> None:
    table = tomllib.loads(config.read_text(encoding="utf-8"))
    write_durably(config, tomli_w.dumps(table | keys).encode("utf-8"), mode=0o644)


def _describe(config: Path, text: str) -> None:
    (config.parent / "README.txt").write_text(dedent(text).lstrip(), encoding="utf-8")


_SERVER = """
    The server of the consortium of the study "{name}".

    Copy this folder to the server's machine. The keys in it (*.key) belong to nobody else.

        silomix study show study.toml          what the study asks, of whom
        silomix server run server.toml         runs it until the model is there (state/model.npz);
                                               run it again after an interruption

    Ports: server.toml, fleet_listen and channel_listen, open to silos; control_listen stays on this
    machine. As a service, in containers, updates: docs/operations.md.
    """

_MIX = """
    {party}, a mix of the study "{name}".

    Copy this folder to the mix's machine. The keys in it (*.key) belong to nobody else. Mixes only
    protect if different people run them.

        silomix study show study.toml          what the study asks, of whom
        silomix mix run mix.toml               serves until it is stopped
        silomix mix health mix.toml            whether it is well (asks at metrics_listen)

    Port: mix.toml, listen, open to the silos (first mix), to the mix before it and to the server.
    Never put an old copy of state/ back. As a service, in containers, updates: docs/operations.md.
    """

_SILO = """
    {party}, a hospital of the study "{name}".

    Copy this folder to the hospital's machine. The keys in it (*.key) belong to nobody else. The
    records in data.csv are samples: put yours in their place, or name them in silo.toml; say what
    you allow in policy.toml.

        silomix silo approve silo.toml study.toml      look at the study, and approve it or not
        silomix silo backup silo.toml FILE             ledger and keys, after every approval
        silomix silo run silo.toml                     answers approved studies until it is stopped
        silomix silo ledger silo.toml                  what was spent, and whether all is intact

    No port: every connection goes out (study.toml: fleet_address, channel_address, first mix).
    state/ holds the ledger: never delete it, never put an old copy back; `silomix silo restore`
    puts a backup back. As a service, in containers, updates: docs/operations.md.
    """
