"""The authority's configuration: one TOML file, unknown keys refused.

    address = "authority.example:9090"  # where parties reach it
    listen = "0.0.0.0:9090"
    certificate_days = 14.0             # life of a party's certificate, renewed after two thirds
    invitation_hours = 72.0             # how long an invitation can be used
    list_hours = 72.0                   # how long parties trust a revocation list

The file's folder also holds ca.crt and ca.key and, in state/, the register of the parties.
"""

import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from silomix_core.toml_table import InvalidField, TomlTable
from silomix_protocol.certificates.certificates import Authority, RefusedCertificate
from silomix_protocol.host.operator_files import named
from silomix_protocol.host.ownership import check_state, read_own
from silomix_protocol.host.state_folder import made_state_of, state_of
from silomix_protocol.keys import read_secret

from silomix_authority.errors import InvalidAuthorityConfig

FILE = "authority.toml"
_LONGEST = timedelta(days=398)


@dataclass(frozen=True, slots=True)
class AuthorityConfig:
    folder: Path
    address: str
    listen: str
    certificate_life: timedelta = timedelta(days=14)
    invitation_life: timedelta = timedelta(hours=72)
    list_life: timedelta = timedelta(hours=72)

    @property
    def state(self) -> Path:
        return made_state_of(self.folder)

    def authority(self) -> Authority:
        """The authority's certificate and key, which sign everybody else's certificates."""
        path = self.folder / "ca.crt"
        with named(path, InvalidAuthorityConfig):
            certificate = read_own(path)
        try:
            return Authority.load(certificate, read_secret(self.folder / "ca.key"))
        except RefusedCertificate as error:
            raise InvalidAuthorityConfig(f"{self.folder}: ca.crt or ca.key: {error}") from error

    def table(self) -> dict[str, object]:
        hour = timedelta(hours=1)
        return {
            "address": self.address,
            "listen": self.listen,
            "certificate_days": self.certificate_life / (24 * hour),
            "invitation_hours": self.invitation_life / hour,
            "list_hours": self.list_life / hour,
        }


def load(path: Path) -> AuthorityConfig:
    with named(path, InvalidAuthorityConfig):
        check_state(state_of(path.parent))
        return parse(read_own(path).decode("utf-8"), path.parent)


def parse(text: str, folder: Path) -> AuthorityConfig:
    """Parse the text of an authority.toml that is in this folder."""
    table = TomlTable(tomllib.loads(text))
    address, listen = table.address("address"), table.address("listen")
    days, hours = timedelta(days=1), timedelta(hours=1)
    config = AuthorityConfig(
        folder,
        address,
        listen,
        _life(table, "certificate_days", days, 14.0),
        _life(table, "invitation_hours", hours, 72.0),
        _life(table, "list_hours", hours, 72.0),
    )
    table.finish()
    return config


def _life(table: TomlTable, key: str, unit: timedelta, default: float) -> timedelta:
    value = table.number(key, default)
    if not 0 < value <= _LONGEST / unit:
        raise InvalidField(f"{key} must be above 0 and at most {_LONGEST / unit:g}")
    return value * unit
