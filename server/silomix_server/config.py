"""The server's configuration: one TOML file, unknown keys refused.

    name = "server"
    study = "study.toml"
    fleet_listen = "0.0.0.0:9092"        # silos: Flower's Fleet API, nothing else of Flower
    channel_listen = "0.0.0.0:9094"      # silos: the round channel
    control_listen = "127.0.0.1:9093"    # this machine only: Flower's Control and Runtime APIs
    lease_rounds = 50                    # rounds per Flower message
    lease_deadline_s = 3600.0
    wait_for_silos_s = 60.0
    holdout = "holdout.csv"              # optional, public data to show progress on
    inspected_listen = "0.0.0.0:9095"    # optional: the round channel for silos behind a proxy
                                         # that looks into TLS (docs/network.md)

Relative paths start at the file's folder, which also holds ca.crt, tls.crt, tls.key, sign.key
and, in state/, everything that the server keeps.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from silomix_core.study.study import Study
from silomix_core.toml_table import InvalidField, TomlTable, split_address
from silomix_protocol.host.operator_files import named, read_own_study, read_own_table
from silomix_protocol.host.ownership import check_state
from silomix_protocol.host.state_folder import made_state_of, state_of

from silomix_server.errors import InvalidServerConfig

CONTROL_HEADER = "x-silomix-control"  # carries the secret of the control door


@dataclass(frozen=True, slots=True)
class ServerConfig:
    name: str
    path: Path
    study: Study
    fleet_listen: str
    channel_listen: str
    control_listen: str
    lease_rounds: int
    lease_deadline_s: float
    wait_for_silos_s: float
    holdout: Path | None
    inspected_listen: str | None = None

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def state(self) -> Path:
        return made_state_of(self.folder)

    @property
    def control_secret(self) -> Path:
        """The file with the secret to Flower's Control API, which only this user can read."""
        return self.state / "control.secret"

    @property
    def task_secret(self) -> Path:
        """The file with the secret with which the coordinator takes the run's task."""
        return self.state / "superexec.secret"


def load(path: Path) -> ServerConfig:
    path = path.resolve()
    with named(path, InvalidServerConfig):
        check_state(state_of(path.parent))
        return _config(read_own_table(path), path)


def _config(table: TomlTable, path: Path) -> ServerConfig:
    name = table.text("name")
    study = _study(path.parent / table.text("study"), name)
    listens = [table.address(f"{kind}_listen") for kind in ("fleet", "channel", "control")]
    if not _is_loopback(split_address(listens[2])[0]):
        raise InvalidField("control_listen must be a loopback address: that API has no password")
    lease_rounds = table.whole("lease_rounds", 50)
    lease_deadline_s = table.number("lease_deadline_s", 3600.0)
    wait_for_silos_s = table.number("wait_for_silos_s", 60.0)
    if lease_rounds < 1 or lease_deadline_s <= 0 or wait_for_silos_s <= 0:
        raise InvalidField("lease_rounds, lease_deadline_s and wait_for_silos_s must be above 0")
    holdout = path.parent / table.text("holdout") if table.has("holdout") else None
    inspected = table.address("inspected_listen") if table.has("inspected_listen") else None
    table.finish()
    return ServerConfig(
        name=name,
        path=path,
        study=study,
        fleet_listen=listens[0],
        channel_listen=listens[1],
        control_listen=listens[2],
        lease_rounds=lease_rounds,
        lease_deadline_s=lease_deadline_s,
        wait_for_silos_s=wait_for_silos_s,
        holdout=holdout,
        inspected_listen=inspected,
    )


def _study(path: Path, name: str) -> Study:
    with named(path, InvalidServerConfig):
        study = read_own_study(path)
    if study.server.name != name:
        raise InvalidServerConfig(
            f"{path}: the study's server is {study.server.name!r}, not {name!r}"
        )
    return study


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
