"""What `silomix silo doctor` finds about the ledger's height, as others show it; keeps nothing."""

from collections.abc import Iterable

from silomix_proto import ledger_pb2
from silomix_protocol.keys import ForgedSignature, SigningKey, UnusableKey
from silomix_protocol.rounds.heights import check_height

from silomix_client.config.silo_config import SiloConfig
from silomix_client.doctor.finding import Finding, Severity
from silomix_client.errors import LedgerBehind, SiloError
from silomix_client.ledger.ledger import ledger_or_empty
from silomix_client.ledger.witnessed_height import ADVICE, Witness

_SUBJECT = "ledger"


def look_at_heights(
    config: SiloConfig, shown: Iterable[tuple[str, ledger_pb2.LedgerHeight]]
) -> list[Finding]:
    """Find whether this ledger is the last one, by kept evidence and by what others show."""
    try:
        key = SigningKey.load(config.folder / "sign.key")
        with ledger_or_empty(config) as ledger:
            witness = Witness(ledger, config.name, key)
            witness.check()
            findings = [_finding(witness, config, key, *each) for each in shown]
    except LedgerBehind as error:
        return [Finding(Severity.FAILED, _SUBJECT, str(error).removesuffix(f": {ADVICE}"), ADVICE)]
    except (SiloError, UnusableKey):
        return []  # a finding about the keys, or the budget, says it
    return findings


def _finding(
    witness: Witness, config: SiloConfig, key: SigningKey, by: str, shown: ledger_pb2.LedgerHeight
) -> Finding:
    try:
        height = check_height(shown, config.name, key.public)
    except ForgedSignature:
        seen = f"{by} shows a height of it that this silo never signed"
        return Finding(Severity.WARNING, _SUBJECT, seen, f"ask the operator of {by}")
    reason = witness.contradiction(height, by)
    if reason is not None:
        return Finding(Severity.FAILED, _SUBJECT, reason, ADVICE)
    return Finding(
        Severity.OK, _SUBJECT, f"{by} knows it up to entry {height.entries}, which is there"
    )
