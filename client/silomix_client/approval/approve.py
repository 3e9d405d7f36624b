"""`silomix silo approve`: the operator's consent to one study, given to the hash of its file.

Checks that the study names this silo with its own keys and stays within the policy, reads and
validates the data, freezes the snapshot and reserves the budget.  Everything that can go wrong with
data goes wrong here, where only the operator sees it.  `revoke` takes the consent back.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy, Silo, Study
from silomix_protocol.connections.tls import Identity
from silomix_protocol.keys import (
    SigningKey,
    UnusableKey,
    check_public_keys,
    load_node_key,
    node_public_bytes,
)

from silomix_client.audit_log.log import AuditLog, audit_log
from silomix_client.audit_log.verify_log import check_chain, check_named
from silomix_client.config.silo_config import MAIN, SiloConfig
from silomix_client.data.records import check_people, read
from silomix_client.data.snapshot import FOLDER as SNAPSHOTS
from silomix_client.data.snapshot import forget, freeze
from silomix_client.errors import NotApproved, OutsidePolicy, SiloError
from silomix_client.ledger.database import alone, telling
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.witnessed_height import check_evidence
from silomix_client.random_stream import KEY_BYTES
from silomix_client.rounds import stop_rule

_LOCK = "ledger.approvals.lock"


@dataclass(frozen=True, slots=True)
class Asked:
    """A study that names this silo with its keys and can be run, before the policy is asked."""

    study: Study
    own: Silo
    participant: Participant


@dataclass(frozen=True, slots=True)
class Review:
    """A study that could be approved: what it asks, on which records, at what cost."""

    study: Study
    content: bytes
    records: Records
    participant: Participant
    population: str

    @property
    def epsilon(self) -> float:
        """This silo's own loss over the whole study, at the δ it was promised."""
        return self.study.mechanism().epsilon(self.participant)


def review(config: SiloConfig, content: bytes, population: str = MAIN) -> Review:
    """Check study, keys, policy and data; nothing is written."""
    asked = read_study(config, content)
    if objections := policy_objections(config, asked, population):
        raise OutsidePolicy("; ".join(objections))
    records = read_people(config, asked, population)
    return Review(asked.study, content, records, asked.participant, population)


def read_study(config: SiloConfig, content: bytes) -> Asked:
    """The study in these bytes, if it is one that this silo was asked and could run."""
    try:
        study = parse_study(content)
    except InvalidStudy as error:
        raise NotApproved(f"not a valid study: {error}") from error
    own = study.silo(config.name)
    if own is None:
        raise NotApproved(f"the study does not name {config.name!r} among its silos")
    _check_keys(config, own)
    participant = study.participant(own)
    _check_study(study, participant)
    return Asked(study, own, participant)


def policy_objections(config: SiloConfig, asked: Asked, population: str) -> list[str]:
    """What the policy's rules have against the study; room in the budget is looked at later."""
    config.data_of(population)  # a population that the policy does not name is refused here
    budget = config.policy.budgets[population]
    return config.policy.rules.objections(asked.study, asked.participant, budget)


def read_people(config: SiloConfig, asked: Asked, population: str) -> Records:
    """Read the records; refuse another number than the study says, or one below the floor."""
    reading = read(config.data_of(population), asked.study.task)
    check_people(reading, config.policy.rules.minimum_people, asked.own.records)
    return reading.records


def approve(config: SiloConfig, reviewed: Review, now: datetime) -> None:
    """Freeze the snapshot and record the approval."""
    approval = Approval(
        study=reviewed.study,
        silo=config.name,
        snapshot=b"",
        partition=os.urandom(KEY_BYTES),
        population=reviewed.population,
    )
    with (
        alone(config.state / _LOCK),  # two at once would overwrite each other's snapshot
        audit_log(config) as log,
        _refusals_in(log, reviewed.study),
        closing(Ledger(config.state, config.policy)) as ledger,
    ):
        check_named(ledger, check_chain(config.state))
        check_evidence(config, ledger)
        ledger.check_new(approval)  # refuse before anything changes
        snapshot = freeze(reviewed.records, reviewed.study.identity, config.state / SNAPSHOTS)
        with telling(config.state):
            entry = ledger.approve(replace(approval, snapshot=snapshot), reviewed.content, now)
            log.append(
                "study_approved",
                study=reviewed.study.identity.hex(),
                name=reviewed.study.name,
                population=reviewed.population,
                people=reviewed.participant.records,
                epsilon=reviewed.epsilon,
                delta=reviewed.participant.target.delta,
                snapshot=snapshot.hex(),
                user=operator(),
                entry=entry.number,
                head=entry.short,
            )


def revoke(config: SiloConfig, study: Study, now: datetime) -> None:
    """Answer a study no more, from the next round on, and delete its frozen data."""
    with (
        audit_log(config) as log,
        closing(Ledger(config.state, config.policy)) as ledger,
        telling(config.state),
    ):
        entry = ledger.close_study(study.identity, now)
        forget(study.identity, config.state / SNAPSHOTS)
        log.append(
            "study_revoked",
            study=study.identity.hex(),
            name=study.name,
            user=operator(),
            entry=entry.number,
            head=entry.short,
        )


def forget_revoked(ledger: Ledger, config: SiloConfig) -> None:
    """Delete frozen data that a revocation left because it was cut short."""
    for each in ledger.approvals():
        if each.closed:
            forget(each.study.identity, config.state / SNAPSHOTS)


def resume(config: SiloConfig, study: Study) -> bool:
    """Answer a study again whose reports went missing; False if it had not stopped nor begun to."""
    with audit_log(config) as log:
        known = stop_rule.forget(config.state, study.identity)
        if known:
            log.append("study_resumed", study=study.identity.hex(), user=operator())
    return known


def operator() -> str:
    """The name of the user whose process this is."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@contextmanager
def _refusals_in(log: AuditLog, study: Study) -> Iterator[None]:
    """Write refusals to the audit log; those after the review tell nothing of records."""
    try:
        yield
    except SiloError as refusal:
        note_refusal(log, study, str(refusal))
        raise


def note_refusal(log: AuditLog, study: Study, reason: str) -> None:
    """Write to the audit log that an approval was asked for and refused."""
    log.append(
        "approval_refused",
        warning=True,
        study=study.identity.hex(),
        name=study.name,
        user=operator(),
        reason=reason,
    )


def _check_study(study: Study, participant: Participant) -> None:
    """Refuse now what would only fail when the first round comes."""
    try:
        check_public_keys(study)
        epsilon = study.mechanism().epsilon(participant)
    except (UnusableKey, CalibrationImpossible) as error:
        raise NotApproved(f"the study cannot be run: {error}") from error
    if not epsilon <= participant.target.epsilon * (1 + 1e-6):
        raise NotApproved(
            f"the study's noise gives this silo epsilon {epsilon:.4f}, not the "
            f"{participant.target.epsilon:g} that it was promised"
        )


def _check_keys(config: SiloConfig, own: Silo) -> None:
    Identity.load(config.name, config.folder)  # a certificate that cannot be read is found now
    sign_key = SigningKey.load(config.folder / "sign.key").public
    node_key = node_public_bytes(load_node_key(config.folder / "node.key"))
    if sign_key != own.sign_key:
        raise NotApproved("the study lists another signing key for this silo")
    if node_key != own.node_key:
        raise NotApproved("the study lists another node key for this silo")
