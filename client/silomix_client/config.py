"""A silo's configuration and its operator's policy: two TOML files, unknown keys refused.

silo.toml                                policy.toml
    name = "silo-1"                          epsilon = 3.0          # lifetime, all studies together
    data = "data.csv"                        delta = 1e-6
    policy = "policy.toml"                   minimum_records = 50
                                             accountant = "gaussian"  # or "renyi": any batches

Relative paths start at silo.toml's folder, which also holds ca.crt, tls.crt, tls.key, sign.key,
node.key and, in state/, the ledger, the snapshots, the stored reports and complaints.

A silo has one budget.  Only where no *person* has records in two data sets may the policy give
them budgets of their own, each a population with its own data (silo.toml's is the main one).  A
population that was ever used stays in the policy: what was spent on its persons remains spent.

    [[populations]]
    name = "children"
    data = "children.csv"
    epsilon = 2.0
    delta = 1e-6
"""

from dataclasses import dataclass, field
from pathlib import Path

from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.fields import InvalidField, Table
from silomix_protocol.files import named, read_table

from silomix_client.errors import InvalidConfig

MAIN = ""  # the name of silo.toml's own population


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows, whatever anybody else asks.

    `budgets` maps populations, disjoint in persons, to their lifetime budgets; `data` names the
    files of those that are not silo.toml's own.
    """

    budgets: dict[str, Budget]
    minimum_records: int = 1
    data: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiloConfig:
    name: str
    folder: Path
    data: Path
    policy: Policy
    policy_file: Path

    @property
    def state(self) -> Path:
        """The folder of ledger, snapshots and stored reports, made on first use."""
        folder = self.folder / "state"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def reread_policy(self) -> Policy:
        """The policy as it is now: the operator may lower it at any time."""
        return _policy(self.policy_file, self.folder, self.data)

    def data_of(self, population: str) -> Path:
        if population == MAIN:
            return self.data
        if population not in self.policy.data:
            known = ", ".join(sorted(self.policy.data)) or "none"
            raise InvalidConfig(f"your policy names no population {population!r}; it has {known}")
        return self.folder / self.policy.data[population]


def load(path: Path) -> SiloConfig:
    with named(path, InvalidConfig):
        table = read_table(path)
        name, data, policy = table.text("name"), table.text("data"), table.text("policy")
        table.finish()
    folder = path.parent
    checked = _policy(folder / policy, folder, folder / data)
    return SiloConfig(name, folder, folder / data, checked, folder / policy)


def _policy(path: Path, folder: Path, main_data: Path) -> Policy:
    with named(path, InvalidConfig):
        table = read_table(path)
        accountant = Accountant(
            table.choice("accountant", [each.value for each in Accountant], "gaussian")
        )
        budgets, data = {MAIN: _budget(table, accountant)}, {}
        minimum = table.whole("minimum_records", 1)
        if minimum < 1:
            raise InvalidField("minimum_records must be at least 1")
        for row in table.tables("populations") if table.has("populations") else ():
            name = row.text("name")
            if not name or name in budgets:
                raise InvalidField(f"populations need different names, got {name!r} twice or empty")
            budgets[name], data[name] = _budget(row, accountant), row.text("data")
            row.finish()
        files = [main_data.resolve(), *((folder / each).resolve() for each in data.values())]
        if len(set(files)) < len(files):
            raise InvalidField("two populations have the same data: its persons are in both")
        table.finish()
        return Policy(budgets, minimum, data)


def _budget(table: Table, accountant: Accountant) -> Budget:
    epsilon, delta = table.number("epsilon"), table.number("delta")
    return Budget(table.build(lambda: PrivacyTarget(epsilon, delta)), accountant)
