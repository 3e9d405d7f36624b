"""Ledgers that were charged, saved and opened again."""

from hashlib import sha256
from pathlib import Path

from silomix_client.backup.backup import Since, collect, restore
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_lab.consortium.create import Consortium

from support.silos import NOW, asked

PASSPHRASE = "a long enough passphrase"  # noqa: S105


def charge(ledger: Ledger, made: Consortium, number: int) -> None:
    body = sha256(b"%d" % number).digest()
    report = StoredReport(asked(made, number).descriptor, body, body * 2, (body,) * 3)
    ledger.account(made.study).charge(ledger.approval(made.study.identity), report, NOW)


def saved(config: SiloConfig) -> bytes:
    _, content = collect(config, "silo.toml", NOW)
    return content


def reopened(packed: bytes, folder: Path, since: Since) -> tuple[SiloConfig, Ledger]:
    config = load(restore(packed, folder, since, NOW).config)
    return config, Ledger(config.state, config.policy)
