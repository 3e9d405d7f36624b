"""A silo's configuration and its operator's policy: two TOML files, unknown keys refused.

silo.toml                                policy.toml
    name = "silo-1"                          epsilon = 3.0          # lifetime, all studies together
    data = "data.csv"                        delta = 1e-6
    policy = "policy.toml"                   minimum_records = 50

Relative paths start at silo.toml's folder, which also holds ca.crt, tls.crt, tls.key, sign.key,
node.key and, in state/, the ledger, the snapshots and the stored reports.
"""

from dataclasses import dataclass
from pathlib import Path

from silomix_core.fields import InvalidField
from silomix_core.mechanism import PrivacyTarget
from silomix_protocol.files import named, read_table

from silomix_client.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows, whatever anybody else asks."""

    lifetime: PrivacyTarget
    minimum_records: int


@dataclass(frozen=True, slots=True)
class SiloConfig:
    name: str
    folder: Path
    data: Path
    policy: Policy

    @property
    def state(self) -> Path:
        """The folder of ledger, snapshots and stored reports, made on first use."""
        folder = self.folder / "state"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def load(path: Path) -> SiloConfig:
    with named(path, InvalidConfig):
        table = read_table(path)
        name, data, policy = table.text("name"), table.text("data"), table.text("policy")
        table.finish()
    folder = path.parent
    return SiloConfig(name, folder, folder / data, _policy(folder / policy))


def _policy(path: Path) -> Policy:
    with named(path, InvalidConfig):
        table = read_table(path)
        epsilon, delta = table.number("epsilon"), table.number("delta")
        minimum = table.whole("minimum_records", 1)
        if minimum < 1:
            raise InvalidField("minimum_records must be at least 1")
        table.finish()
        return Policy(table.build(lambda: PrivacyTarget(epsilon, delta)), minimum)
