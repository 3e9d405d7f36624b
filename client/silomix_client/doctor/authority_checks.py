"""What `silomix silo doctor` finds about the consortium's authority, for a silo that enrolled.

The authority may be off for days: that it cannot be reached is a failure only when the silo's
certificate is due for renewal, and a warning before.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from silomix_protocol.certificates.certificates import (
    Life,
    RefusedCertificate,
    parse_certificate,
    read_list,
    shown,
)
from silomix_protocol.connections.tls import AUTHORITY
from silomix_protocol.enrolment.enrolment import Enrolment, EnrolmentError, NotEnrolled, fetch_list
from silomix_protocol.keys import UnusableKey

from silomix_client.config.silo_config import SiloConfig
from silomix_client.doctor.finding import Finding, Severity, Surroundings
from silomix_client.doctor.probes import Answer, Fault, Target, check_tls, connect, described

_LIST = "revocation list"
_OLD = 72  # a list older than its life divided by this should have been replaced by a running silo


def enrolment_of(folder: Path) -> Enrolment | None:
    """The silo's enrolment; None if it did not join through an authority."""
    try:
        return Enrolment.load(folder)
    except NotEnrolled:
        return None


def look_at_list(config: SiloConfig, machine: Surroundings) -> list[Finding]:
    """Find how old the revocation list in the silo's folder is."""
    enrolment = enrolment_of(config.folder)
    if enrolment is None:
        return []
    now, current = datetime.fromtimestamp(machine.now(), UTC), enrolment.revocations.current
    by_hand = f"fetch one with: silomix renew {config.folder / 'silo.toml'}"
    if current is None:
        return [Finding(Severity.FAILED, _LIST, "there is none that the authority signed", by_hand)]
    seen = f"of {shown(current.issued)}, valid until {shown(current.expires)}"
    if now >= current.expires:
        return [Finding(Severity.FAILED, _LIST, f"too old: {seen}", by_hand)]
    if now - current.issued > (current.expires - current.issued) / _OLD:
        advice = f"a running silo fetches one every minute; {by_hand}"
        return [
            Finding(Severity.WARNING, _LIST, f"{_age(now - current.issued)} old: {seen}", advice)
        ]
    return [Finding(Severity.OK, _LIST, seen)]


def _age(age: timedelta) -> str:
    return f"{age / timedelta(hours=1):.0f} hours"


def question_authority(
    config: SiloConfig, enrolment: Enrolment, machine: Surroundings
) -> tuple[list[Finding], Answer | None]:
    """Ask the authority for its revocation list, step by step; its answer tells the time too."""
    network = config.network
    target = Target(AUTHORITY, enrolment.address, inspected=bool(network.authorities))
    unreached = Severity.FAILED if _due(config.folder, machine) else Severity.WARNING
    try:
        with connect(target, network) as stream:
            secured, inspector = check_tls(stream, target, config.folder, network)
            secured.close()
        asked = time.monotonic()
        content = asyncio.run(fetch_list(enrolment, network.web))
        given = read_list(content, enrolment.authority)
    except Fault as fault:
        subject = f"{fault.step} {AUTHORITY}"
        return [Finding(unreached, subject, fault.seen, fault.advice)], None
    except (EnrolmentError, RefusedCertificate, UnusableKey, OSError) as error:
        advice = f"ask {target.operator}"
        return [Finding(unreached, f"answer {AUTHORITY}", str(error), advice)], None
    answer = Answer(given.issued.timestamp(), asked, f"revocation list {given.number}")
    words = described("certificates", target, network, answer, inspector)
    findings = [Finding(Severity.OK, f"connection {AUTHORITY}", words)]
    if config.name in given.barred:
        seen, advice = f"the authority revoked {config.name}", f"ask {target.operator} why"
        findings.append(Finding(Severity.FAILED, "membership", seen, advice))
    return findings, answer


def _due(folder: Path, machine: Surroundings) -> bool:
    """Whether the silo needs the authority now: its certificate is due for renewal."""
    try:
        life = Life.of(parse_certificate((folder / "tls.crt").read_bytes()))
    except (OSError, RefusedCertificate):
        return True
    return machine.now() >= life.renewal.timestamp()
