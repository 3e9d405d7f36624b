"""What a silo's audit log says, and how an attacker would write it anew."""

import json
from hashlib import sha256
from pathlib import Path

from silomix_client.audit_log.log import FILE, START, AuditLog
from silomix_client.audit_log.verify_log import lines, verify
from silomix_client.config.silo_config import SiloConfig
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host import logs

from support.silos import asked, open_desk, open_ledger


def texts(state: Path) -> list[bytes]:
    return (state / FILE).read_bytes().splitlines(keepends=True)


def events(state: Path) -> list[str]:
    return [line.event for line in lines(state)]


def rehashed(found: list[bytes], *, renumbered: bool = True) -> list[bytes]:
    """What an insider who knows the format makes of lines: a chain that is right again."""
    made, previous = [], START
    for number, text in enumerate(found, start=1):
        content = json.loads(text) | {"previous": previous}
        content["number"] = number if renumbered else content["number"]
        del content["hash"]
        body = json.dumps(content, separators=(",", ":"))
        previous = sha256(b"silomix audit line v1\0" + body.encode()).hexdigest()
        made.append(f'{body[:-1]},"hash":"{previous}"}}\n'.encode())
    return made


def answered(made: Consortium, config: SiloConfig, *rounds: int) -> None:
    """Rounds as a running silo answers them: its log goes to the audit log."""
    log, ledger = AuditLog(config.state, config.name), open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    with logs.heard_by(log.hear):
        for number in rounds:
            desk.answer(asked(made, number))
    assert log.failure is None
    ledger.close()
    log.close()


def checked(config: SiloConfig, head: str | None = None) -> list[str]:
    ledger = open_ledger(config)
    try:
        return verify(config.state, ledger, head).notes
    finally:
        ledger.close()
