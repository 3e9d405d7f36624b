"""A whole consortium on disk: authority, one folder per party, the study file that binds them.

Used by the demo and by `silomix consortium init`, where one person plays all parties.  In a real
consortium each party makes its own keys and sends only the public halves to the study lead.
"""

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from silomix_client.entries import worst
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.study import Study
from silomix_core.task import Task
from silomix_protocol.certificates import Authority
from silomix_protocol.keys import (
    SigningKey,
    generate_node_key,
    node_public_bytes,
    save_node_key,
    write_secret,
)


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
    held_out: float | None = None  # share of the records that evaluates the final model


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where each process listens: host:port."""

    fleet: str
    channel: str
    control: str
    mixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consortium:
    """Where everything was put."""

    folder: Path
    study: Study
    server: Path  # server.toml
    mixes: tuple[Path, ...]  # mix.toml of each
    silos: tuple[Path, ...]  # silo.toml of each


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
    now = datetime.now(UTC)
    authority = Authority.create("silomix consortium", now)
    (folder / "authority").mkdir(mode=0o700)
    write_secret(folder / "authority" / "ca.key", authority.key_pem)
    (folder / "authority" / "ca.crt").write_bytes(authority.pem)
    mix_names = [f"mix-{index + 1}" for index in range(len(addresses.mixes))]
    silo_names = [f"silo-{index + 1}" for index in range(len(records))]
    hosts = tuple({_host(address) for address in (addresses.fleet, addresses.control)})
    study: dict[str, Any] = _study_table(task, choices)
    study["server"] = {
        "name": "server",
        "fleet_address": addresses.fleet,
        "channel_address": addresses.channel,
        **_party(folder / "server", "server", authority, now, hosts, serves=True),
    }
    study["mixes"] = [
        {
            "name": name,
            "address": address,
            **_party(folder / name, name, authority, now, (_host(address),), serves=True),
        }
        for name, address in zip(mix_names, addresses.mixes, strict=True)
    ]
    study["silos"] = [
        {
            "name": name,
            "records": count,
            **_party(folder / name, name, authority, now, (), serves=False),
            "node_key": _node_key(folder / name),
        }
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
        mix = {"name": name, "listen": address, "studies": ["../study.toml"]}
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
        "fleet_listen": addresses.fleet,
        "channel_listen": addresses.channel,
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
    policy: dict[str, Any] = {"epsilon": target.epsilon, "delta": target.delta}
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
            "features": [
                {
                    "name": feature.name,
                    "low": feature.low,
                    "high": feature.high,
                    "missing": feature.missing,
                }
                | ({"count": feature.count} if feature.count > 1 else {})
                for feature in task.features
            ],
        },
        "algorithm": {
            "name": choices.algorithm,
            "rounds": choices.rounds,
            "radius": choices.radius,
        }
        | ({"participants": choices.participants} if choices.participants else {})
        | ({"ridge": choices.ridge} if choices.ridge else {})
        | ({"local_steps": choices.local_steps} if choices.local_steps else {}),
        "privacy": {
            "clip": choices.clip,
            "epsilon": choices.target.epsilon,
            "delta": choices.target.delta,
        },
        "batch": {
            "minimum": choices.minimum_batch,
            "deadline_s": choices.deadline_s,
            "gate": choices.gate,
            "tokens": choices.tokens,
        },
    } | ({"evaluation": {"share": choices.held_out}} if choices.held_out else {})


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


def _party(
    folder: Path,
    name: str,
    authority: Authority,
    now: datetime,
    hosts: tuple[str, ...],
    *,
    serves: bool,
) -> dict[str, str]:
    """Make a party's folder with its keys and certificate; its public key."""
    folder.mkdir(mode=0o700)
    issued = authority.issue(name, hosts, now, serves=serves)
    (folder / "ca.crt").write_bytes(authority.pem)
    (folder / "tls.crt").write_bytes(issued.certificate)
    write_secret(folder / "tls.key", issued.key)
    sign_key = SigningKey.generate()
    sign_key.save(folder / "sign.key")
    return {"sign_key": _text(sign_key.public)}


def _node_key(folder: Path) -> str:
    key = generate_node_key()
    save_node_key(key, folder / "node.key")
    return _text(node_public_bytes(key))


def _write(path: Path, table: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _text(key: bytes) -> str:
    return b64encode(key).decode("ascii")
