"""The configuration that a party starts with after it joined: to be looked at and completed."""

from dataclasses import dataclass
from pathlib import Path

import tomli_w
from silomix_core.toml_table import split_address
from silomix_protocol.enrolment.membership import Member, PartyKind
from silomix_protocol.host.durable import write_durably

_SILO = """\
# A hospital. Beside this file: its keys, its certificate and, made on first use, state/.
name = "{name}"
data = "data.csv"          # header row, one column per feature of the study, and its label
policy = "policy.toml"

# Other names or codes, Parquet, SQL: a table [data] instead of the line above (docs/data.md).
# A proxy: a table [network] (docs/network.md).  Lines to a syslog: [audit_log] (docs/approval.md).
"""
_POLICY = """\
# What this hospital allows over its lifetime, all studies together; nobody else can change it.
epsilon = 1.0
delta = 1e-6

# Of every study; all keys are in docs/approval.md:
minimum_people = 11
minimum_batch = 3                # hide among at least so many reports
# study_epsilon = 0.5            # the most that one study may cost
# require_person_column = true   # refuse studies in which every row counts as a person
# hours = ["mon-fri 19:00-06:00", "sat-sun 00:00-24:00"]
# time_zone = "Europe/Zurich"    # UTC if missing
"""
_MIX = """\
# A mix. Beside this file: its keys, its certificate and, made on first use, state/.
name = "{name}"
listen = "0.0.0.0:{port}"
studies = ["study.toml"]   # the studies that you agreed to serve; put the files beside this one
metrics_listen = "127.0.0.1:9201"  # this machine only: `silomix mix health`, Prometheus
"""
_SERVER = """\
# The server. Beside this file: its keys, its certificate and, made on first use, state/.
name = "{name}"
study = "study.toml"       # what the study lead sends you; put it beside this file
fleet_listen = "0.0.0.0:{port}"      # silos: Flower's Fleet API, nothing else of Flower
channel_listen = "0.0.0.0:{channel}"    # silos: the round channel
control_listen = "127.0.0.1:9093"  # this machine only
"""


@dataclass(frozen=True, slots=True)
class WayOut:
    """The proxy that a silo joined through, and the files that go with it."""

    proxy: str | None = None
    login: bytes | None = None
    authorities: bytes | None = None

    def write(self, folder: Path) -> str:
        """Write the files to the silo's folder; return the [network] table that names them."""
        table = {"proxy": self.proxy} if self.proxy is not None else {}
        if self.login is not None:
            table["proxy_login"] = "proxy.login"
            write_durably(folder / "proxy.login", self.login)
        if self.authorities is not None:
            table["ca"] = "inspection.pem"
            write_durably(folder / "inspection.pem", self.authorities)
        return "\n" + tomli_w.dumps({"network": table})


def write_skeleton(member: Member, folder: Path, way_out: WayOut | None = None) -> Path:
    """Write the party's configuration file if there is none; return its path."""
    path = folder / f"{member.kind.value}.toml"
    if path.exists():
        return path
    ports = [split_address(address)[1] for address in member.addresses]
    match member.kind:
        case PartyKind.SILO:
            _write(folder / "policy.toml", _POLICY)
            text = _SILO.format(name=member.name)
            text += way_out.write(folder) if way_out is not None else ""
        case PartyKind.MIX:
            text = _MIX.format(name=member.name, port=ports[0])
        case PartyKind.SERVER:
            text = _SERVER.format(name=member.name, port=ports[0], channel=ports[1])
    _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    if not path.exists():
        write_durably(path, text.encode("utf-8"), mode=0o644)
