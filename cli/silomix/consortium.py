"""A whole consortium on disk: authority, one folder per party, the study file that binds them.

Used by the demo and by `silomix consortium init`, where one person plays all parties: each is
invited and joins as in a real consortium, only without a network in between.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w
from silomix_authority.config import AuthorityConfig
from silomix_authority.desk import Desk
from silomix_authority.register import Register
from silomix_authority.run import create as create_authority
from silomix_client.entries import worst
from silomix_client.rules import LEAST_PEOPLE
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.seam import Descent
from silomix_core.mechanism import Minibatch
from silomix_core.study import Study
from silomix_core.task import Task
from silomix_protocol.enrolment import PartyKeys, accept_membership, join_request
from silomix_protocol.membership import Kind, Member, text_of

from silomix.specification import feature_table, people_table

_SAMPLE_LIFE = timedelta(days=90)  # also without an authority that runs


@dataclass(frozen=True, slots=True)
class StudyChoices:
    """What a study lead decides."""

    name: str
    algorithm: str
    rounds: int
    radius: float
    clip: float
    target: PrivacyTarget
    minimum_batch: int
    deadline_s: float
    gate: bool = True
    tokens: bool = True
    participants: int | None = None  # silos that a round asks; all unless given
    ridge: float = 0.0
    local_steps: int | None = None  # of a silo in a round, where the algorithm has them
    descent: Descent | None = None  # where the algorithm leaves it to the study
    held_out: float | None = None  # share of the records that evaluates the final model
    minibatch: Minibatch = field(default_factory=Minibatch)  # where algorithms leave a choice


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where others find each process: host:port."""

    fleet: str
    channel: str
    control: str
    mixes: tuple[str, ...]
    authority: str = "127.0.0.1:9090"

    @staticmethod
    def listen(address: str) -> str:
        """Where the process itself listens: on this machine only if others find it there."""
        host, port = _host(address), address.rpartition(":")[2]
        if host.startswith("127.") or host in ("localhost", "::1"):
            return address
        return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


@dataclass(frozen=True, slots=True)
class Consortium:
    """Where everything was put."""

    folder: Path
    study: Study
    server: Path  # server.toml
    mixes: tuple[Path, ...]  # mix.toml of each
    silos: tuple[Path, ...]  # silo.toml of each

    @property
    def authority(self) -> Path:
        """Its authority.toml."""
        return self.folder / "authority" / "authority.toml"


def create(
    folder: Path,
    task: Task,
    records: tuple[int, ...],
    choices: StudyChoices,
    addresses: Addresses,
    *,
    lease_rounds: int = 50,
    lease_deadline_s: float = 3600.0,
    wait_for_silos_s: float = 60.0,
    holdout: bool = False,
) -> Consortium:
    """Make the folders of a server, the mixes and one silo for each number of records."""
    folder.mkdir(parents=True, exist_ok=True)
    mix_names = [f"mix-{index + 1}" for index in range(len(addresses.mixes))]
    silo_names = [f"silo-{index + 1}" for index in range(len(records))]
    dialled = addresses.fleet, addresses.channel
    study: dict[str, Any] = _study_table(task, choices)
    with _members(folder, addresses.authority) as members:
        study["server"] = members.join(Member("server", Kind.SERVER, dialled))
        study["mixes"] = [
            members.join(Member(name, Kind.MIX, (address,)))
            for name, address in zip(mix_names, addresses.mixes, strict=True)
        ]
        study["silos"] = [
            members.join(Member(name, Kind.SILO), records=count)
            for name, count in zip(silo_names, records, strict=True)
        ]
    content = tomli_w.dumps(study).encode("utf-8")
    (folder / "study.toml").write_bytes(content)
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
    parsed = Study.parse(content)
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
    }
    if study.minibatch.scheme is Scheme.FULL:
        return policy
    mechanism = study.mechanism()
    plans = {mechanism.transcripts(study.participant(silo)) for silo in study.silos}
    budget = Budget(target, Accountant.RENYI)
    while not all(budget.holds(worst(budget, plan)) for plan in plans):
        budget = Budget(PrivacyTarget(1.1 * budget.target.epsilon, target.delta), Accountant.RENYI)
    return policy | {"epsilon": budget.target.epsilon, "accountant": "renyi"}


def _study_table(task: Task, choices: StudyChoices) -> dict[str, Any]:
    return {
        "version": 1,
        "name": choices.name,
        "task": {
            "loss": task.loss.value,
            "label": task.label,
            "scaling": task.scaling.value,
            "bias": task.bias,
            **_label_table(task),
            **people_table(task),
            "features": [feature_table(feature) for feature in task.features],
        },
        "algorithm": {
            "name": choices.algorithm,
            "rounds": choices.rounds,
            "radius": choices.radius,
        }
        | ({"participants": choices.participants} if choices.participants else {})
        | ({"ridge": choices.ridge} if choices.ridge else {})
        | ({"local_steps": choices.local_steps} if choices.local_steps else {})
        | _descent_table(choices.descent),
        "privacy": {
            "clip": choices.clip,
            "epsilon": choices.target.epsilon,
            "delta": choices.target.delta,
        }
        | _sampling(choices.minibatch),
        "batch": {
            "minimum": choices.minimum_batch,
            "deadline_s": choices.deadline_s,
            "gate": choices.gate,
            "tokens": choices.tokens,
        },
    } | ({"evaluation": {"share": choices.held_out}} if choices.held_out else {})


def _descent_table(descent: Descent | None) -> dict[str, Any]:
    if descent is None:
        return {}
    return {"momentum": descent.momentum, "averaging": descent.averaging.value}


def _sampling(batch: Minibatch) -> dict[str, str | float]:
    if batch.scheme is Scheme.FULL:
        return {}
    return {"sampling": batch.scheme.value, "ratio": batch.ratio}


def _label_table(task: Task) -> dict[str, float]:
    keys: dict[str, float | None] = {
        "level": task.level,
        "threshold": task.threshold,
        "classes": task.classes,
        "hidden": task.hidden,
    }
    if task.label_bounds is not None:
        keys["label_low"], keys["label_high"] = task.label_bounds
    return {key: value for key, value in keys.items() if value is not None}


@contextmanager
def _members(folder: Path, address: str) -> Iterator["_Members"]:
    """A new authority, with everybody who joins written into its register at once."""
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
        """Invite a party and let it join; what a study file says of it, with what is `decided`."""
        folder = self._folder / member.name
        invitation = self._desk.invite(member, self._now)
        keys = PartyKeys.make(folder, member.kind)
        answer = self._desk.join(join_request(invitation, keys), self._now)
        accept_membership(invitation, keys, answer, folder, self._now)
        dialled = dict(zip(member.kind.addresses, member.addresses, strict=True))
        key = text_of(keys.sign.public)
        entry = {"name": member.name, **decided, **dialled, "sign_key": key}
        return entry | ({"node_key": text_of(keys.node_public)} if keys.node else {})


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _write(path: Path, table: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
