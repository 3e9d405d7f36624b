"""A whole consortium on disk: authority, one folder per party, the study file that binds them.

Used by the demo and by `silomix consortium init`, where one person plays all parties: each is
invited and joins as in a real consortium, only without a network in between.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w
from silomix_authority.config import AuthorityConfig
from silomix_authority.desk import Desk
from silomix_authority.process import create as create_authority
from silomix_authority.register import Register
from silomix_client.config.policy_rules import LEAST_BATCH, LEAST_PEOPLE
from silomix_client.ledger.entries import worst
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.study.reader import parse_study
from silomix_core.study.specification import Specification
from silomix_core.study.study import Study
from silomix_core.study.writer import study_table
from silomix_core.task.task import Task
from silomix_core.toml_table import split_address
from silomix_protocol.enrolment.enrolment import PartyKeys, accept_membership, join_request
from silomix_protocol.enrolment.membership import Member, PartyKind, text_of
from silomix_protocol.host.durable import make_folder, write_durably

_SAMPLE_LIFE = timedelta(days=90)  # also where no running authority renews anything
_NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses at which others find each process: host:port."""

    fleet: str
    channel: str
    control: str
    mixes: tuple[str, ...]
    authority: str = "127.0.0.1:9090"

    @staticmethod
    def listen(address: str) -> str:
        """The address that the process itself listens at: local only if others find it locally."""
        host, port = split_address(address)
        if host.startswith("127.") or host in ("localhost", "::1"):
            return address
        return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


@dataclass(frozen=True, slots=True)
class Consortium:
    """The paths of a consortium's files, and its study."""

    folder: Path
    study: Study
    server: Path  # server.toml
    mixes: tuple[Path, ...]  # mix.toml of each
    silos: tuple[Path, ...]  # silo.toml of each

    @property
    def authority(self) -> Path:
        """The path of authority.toml."""
        return self.folder / "authority" / "authority.toml"


def create(
    folder: Path,
    task: Task,
    records: tuple[int, ...],
    specification: Specification,
    addresses: Addresses,
    *,
    lease_rounds: int = 50,
    lease_deadline_s: float = 3600.0,
    wait_for_silos_s: float = 60.0,
    holdout: bool = False,
) -> Consortium:
    """Make the folders of a server, the mixes and one silo for each number of records."""
    check_specification(task, records, specification, mixes=len(addresses.mixes))
    make_folder(folder, mode=0o755)
    mix_names = [f"mix-{index + 1}" for index in range(len(addresses.mixes))]
    silo_names = [f"silo-{index + 1}" for index in range(len(records))]
    dialled = addresses.fleet, addresses.channel
    study: dict[str, Any] = study_table(task, specification)
    with _members(folder, addresses.authority) as members:
        study["server"] = members.join(Member("server", PartyKind.SERVER, dialled))
        study["mixes"] = [
            members.join(Member(name, PartyKind.MIX, (address,)))
            for name, address in zip(mix_names, addresses.mixes, strict=True)
        ]
        study["silos"] = [
            members.join(Member(name, PartyKind.SILO), records=count)
            for name, count in zip(silo_names, records, strict=True)
        ]
    content = tomli_w.dumps(study).encode("utf-8")
    write_durably(folder / "study.toml", content, mode=0o644)
    leases = {
        "lease_rounds": lease_rounds,
        "lease_deadline_s": lease_deadline_s,
        "wait_for_silos_s": wait_for_silos_s,
    }
    _configure_server(folder / "server", addresses, leases, holdout=holdout)
    for name, address in zip(mix_names, addresses.mixes, strict=True):
        listen = addresses.listen(address)
        mix = {"name": name, "listen": listen, "studies": ["../study.toml"]}
        _write(folder / name / "mix.toml", mix)
    parsed = parse_study(content)
    policy = _policy(parsed)
    for name in silo_names:
        _configure_silo(folder / name, policy)
    return Consortium(
        folder=folder,
        study=parsed,
        server=folder / "server" / "server.toml",
        mixes=tuple(folder / name / "mix.toml" for name in mix_names),
        silos=tuple(folder / name / "silo.toml" for name in silo_names),
    )


def check_specification(
    task: Task, records: Sequence[int], specification: Specification, *, mixes: int
) -> None:
    """Raise what is wrong with such a study, before any key is made or file written."""
    study: dict[str, Any] = study_table(task, specification)
    study["server"] = _placeholder("server", fleet_address=_NOWHERE, channel_address=_NOWHERE)
    study["mixes"] = [_placeholder(f"mix-{each}", address=_NOWHERE) for each in range(mixes)]
    study["silos"] = [
        _placeholder(f"silo-{index}", records=count, node_key=text_of(index.to_bytes(4)))
        for index, count in enumerate(records)
    ]
    parse_study(tomli_w.dumps(study).encode("utf-8")).mechanism()


def _placeholder(name: str, **decided: object) -> dict[str, Any]:
    """A party's entry in the study file, with a placeholder for its key."""
    return {"name": name, "sign_key": text_of(name.encode("ascii")), **decided}


def _configure_server(
    folder: Path, addresses: Addresses, leases: dict[str, float], *, holdout: bool
) -> None:
    server: dict[str, Any] = {
        "name": "server",
        "study": "../study.toml",
        "fleet_listen": addresses.listen(addresses.fleet),
        "channel_listen": addresses.listen(addresses.channel),
        "control_listen": addresses.control,
        **leases,
    }
    if holdout:
        server["holdout"] = "holdout.csv"
    _write(folder / "server.toml", server)


def _configure_silo(folder: Path, policy: dict[str, Any]) -> None:
    silo = {"name": folder.name, "data": "data.csv", "policy": "policy.toml"}
    _write(folder / "silo.toml", silo)
    _write(folder / "policy.toml", policy)


def _policy(study: Study) -> dict[str, Any]:
    """A policy with room for this study.

    Drawn batches need the Rényi accountant, whose one fixed order asks for a little more ε.
    """
    target = study.target
    policy: dict[str, Any] = {
        "epsilon": target.epsilon,
        "delta": target.delta,
        "minimum_people": min(LEAST_PEOPLE, *(silo.records for silo in study.silos)),
        "minimum_batch": min(LEAST_BATCH, study.batching.minimum),
    }
    if study.minibatch.scheme is Scheme.FULL:
        return policy
    mechanism = study.mechanism()
    plans = {mechanism.transcripts(study.participant(silo)) for silo in study.silos}
    budget = Budget(target, Accountant.RENYI)
    while not all(budget.holds(worst(budget, plan)) for plan in plans):
        budget = Budget(PrivacyTarget(1.1 * budget.target.epsilon, target.delta), Accountant.RENYI)
    return policy | {"epsilon": budget.target.epsilon, "accountant": "renyi"}


@contextmanager
def _members(folder: Path, address: str) -> Iterator["_Members"]:
    """Create an authority, and write everybody who joins into its register in one change."""
    lives = (_SAMPLE_LIFE, timedelta(hours=72), _SAMPLE_LIFE)
    listen = Addresses.listen(address)
    config = AuthorityConfig(folder / "authority", address, listen, *lives)
    now = datetime.now(UTC)
    create_authority(config, "silomix consortium", now)
    with closing(Register(config.state)) as register, register.change():
        yield _Members(folder, Desk(config, register), now)


class _Members:
    """Parties that join in folders beside the authority's."""

    def __init__(self, folder: Path, desk: Desk, now: datetime) -> None:
        self._folder, self._desk, self._now = folder, desk, now

    def join(self, member: Member, **decided: int) -> dict[str, Any]:
        """Invite a party and let it join; return its entry in the study file, with `decided`."""
        folder = self._folder / member.name
        invitation = self._desk.invite(member, self._now)
        keys = PartyKeys.make(folder, member.kind)
        answer = self._desk.join(join_request(invitation, keys), self._now)
        accept_membership(invitation, keys, answer, folder, self._now)
        dialled = dict(zip(member.kind.addresses, member.addresses, strict=True))
        key = text_of(keys.sign.public)
        entry = {"name": member.name, **decided, **dialled, "sign_key": key}
        return entry | ({"node_key": text_of(keys.node_public)} if keys.node else {})


def _write(path: Path, table: dict[str, Any]) -> None:
    write_durably(path, tomli_w.dumps(table).encode("utf-8"), mode=0o644)
