"""A silo's configuration and its operator's policy: two TOML files, unknown keys refused.

silo.toml                                policy.toml
    name = "silo-1"                          epsilon = 3.0          # lifetime, all studies together
    data = "data.csv"                        delta = 1e-6
    policy = "policy.toml"                   accountant = "gaussian"  # or "renyi": any batches
    [audit_log]                              minimum_people = 11      # more: policy_rules
    syslog = "udp://logs.example:514"        hours = ["mon-fri 19:00-06:00"]
    # [network]: network/outbound.py; [data]: data/settings.py

Relative paths start at silo.toml's folder, which also holds ca.crt, tls.crt, tls.key, sign.key,
node.key and, in state/, the ledger, the snapshots, the stored reports, complaints
and the audit log.

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
from silomix_core.toml_table import InvalidField, TomlTable
from silomix_protocol.host.operator_files import named, read_own_table
from silomix_protocol.host.ownership import check_state
from silomix_protocol.host.state_folder import made_state_of, state_of

from silomix_client.config.policy_rules import Rules, read_rules
from silomix_client.data.settings import read_source
from silomix_client.data.source import Source
from silomix_client.errors import InvalidSiloConfig
from silomix_client.network.outbound import OutboundNetwork, read_network
from silomix_client.network.syslog import SyslogAddress

MAIN = ""  # the name of silo.toml's own population


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows, whatever anybody else asks.

    `budgets` maps populations, disjoint in persons, to their lifetime budgets; `data` has
    the sources of those that are not silo.toml's own; `rules` say which studies may be approved.
    """

    budgets: dict[str, Budget]
    data: dict[str, Source] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, slots=True)
class SiloConfig:
    name: str
    folder: Path
    data: Source
    policy: Policy
    policy_file: Path
    syslog: SyslogAddress | None = None  # where the audit log goes too
    network: OutboundNetwork = field(default_factory=OutboundNetwork)

    @property
    def state(self) -> Path:
        """The folder of ledger, snapshots and stored reports, made on first use."""
        return made_state_of(self.folder)

    def reread_policy(self) -> Policy:
        """The policy as it is now: the operator may lower it at any time."""
        with named(self.policy_file, InvalidSiloConfig):
            check_state(state_of(self.folder))
        return _policy(self.policy_file, self.folder, self.data)

    def data_of(self, population: str) -> Source:
        if population == MAIN:
            return self.data
        if population not in self.policy.data:
            known = ", ".join(sorted(self.policy.data)) or "none"
            raise InvalidSiloConfig(
                f"your policy names no population {population!r}; it has {known}"
            )
        return self.policy.data[population]


def load(path: Path) -> SiloConfig:
    with named(path, InvalidSiloConfig):
        table = read_own_table(path)
        folder = path.parent
        check_state(state_of(folder))
        name, data, policy = table.text("name"), read_source(table, folder), table.text("policy")
        syslog = _syslog(table.table("audit_log")) if table.has("audit_log") else None
        network = OutboundNetwork()
        if table.has("network"):
            network = read_network(table.table("network"), folder)
        table.finish()
    checked = _policy(folder / policy, folder, data)
    return SiloConfig(name, folder, data, checked, folder / policy, syslog, network)


def _syslog(table: TomlTable) -> SyslogAddress:
    address = table.text("syslog")
    table.finish()
    return table.build(lambda: SyslogAddress.parse(address))


def _policy(path: Path, folder: Path, main_data: Source) -> Policy:
    with named(path, InvalidSiloConfig):
        table = read_own_table(path)
        accountant = Accountant(
            table.choice("accountant", [each.value for each in Accountant], "gaussian")
        )
        budgets, data = {MAIN: _budget(table, accountant)}, {}
        rules = read_rules(table)
        for row in table.tables("populations") if table.has("populations") else ():
            name = row.text("name")
            if not name or name in budgets:
                raise InvalidField(f"populations need different names, got {name!r} twice or empty")
            budgets[name], data[name] = _budget(row, accountant), read_source(row, folder)
            row.finish()
        sources = [main_data.identity, *(each.identity for each in data.values())]
        if len(set(sources)) < len(sources):
            raise InvalidField("two populations have the same data: its persons are in both")
        table.finish()
        return Policy(budgets, data, rules)


def _budget(table: TomlTable, accountant: Accountant) -> Budget:
    epsilon, delta = table.number("epsilon"), table.number("delta")
    return Budget(table.build(lambda: PrivacyTarget(epsilon, delta)), accountant)
