"""`silomix silo approve`: the operator's consent to one study, given to the hash of its file.

Checks that the study names this silo with its own keys, reads and validates the data, freezes the
snapshot and reserves the budget.  Everything that can go wrong with data goes wrong here, where
only the operator sees it.
"""

import os
from dataclasses import dataclass, replace
from datetime import datetime

from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.mechanism import Participant
from silomix_core.study import InvalidStudy, Silo, Study
from silomix_core.update import Records
from silomix_protocol.keys import (
    SigningKey,
    UnusableKey,
    check_public_keys,
    load_node_key,
    node_public_bytes,
)
from silomix_protocol.tls import Identity

from silomix_client.config import MAIN, SiloConfig
from silomix_client.entries import Approval
from silomix_client.errors import BadRecords, NotApproved
from silomix_client.keystream import KEY_BYTES
from silomix_client.ledger import Ledger
from silomix_client.records import read_records
from silomix_client.snapshot import freeze


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
    """Check study, keys and data; nothing is written."""
    try:
        study = Study.parse(content)
    except InvalidStudy as error:
        raise NotApproved(f"not a valid study: {error}") from error
    own = study.silo(config.name)
    if own is None:
        raise NotApproved(f"the study does not name {config.name!r} among its silos")
    _check_keys(config, own)
    data = config.data_of(population)
    participant = study.participant(own)
    _check_study(study, participant)
    records = read_records(data, study.task)
    if len(records) < config.policy.minimum_records:
        raise BadRecords(
            f"{data}: {len(records)} records, your policy asks for at least "
            f"{config.policy.minimum_records}"
        )
    if len(records) != own.records:
        raise BadRecords(
            f"{data}: {len(records)} records, the study says {own.records}; "
            "ask the study lead to correct it"
        )
    return Review(study, content, records, participant, population)


def approve(config: SiloConfig, reviewed: Review, now: datetime) -> None:
    """Freeze the snapshot and record the approval."""
    ledger = Ledger(config.state, config.policy)
    approval = Approval(
        study=reviewed.study,
        silo=config.name,
        snapshot=b"",
        partition=os.urandom(KEY_BYTES),
        population=reviewed.population,
    )
    try:
        ledger.reserve(approval)  # refuse before anything changes
        snapshot = freeze(reviewed.records, reviewed.study.identity, config.state / "snapshots")
        ledger.approve(replace(approval, snapshot=snapshot), reviewed.content, now)
    finally:
        ledger.close()


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
