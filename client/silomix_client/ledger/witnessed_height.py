"""What others know of this silo's ledger, held against the ledger: was it put back, or copied?

Every height that a mix, the coordinator or the authority shows is checked here.  Only one with this
silo's own signature counts, and only if its ledger cannot be an earlier state of this one.  Then
the evidence is kept in state/height.json, and nothing is answered or approved any more, whatever
those who showed it say later, until the ledger is one that it fits: the newer one, put back, or one
that was restored (`backup`), which counts as spent what it may have forgotten.
"""

import json
from pathlib import Path

from google.protobuf.message import DecodeError
from silomix_proto import ledger_pb2
from silomix_protocol.host import logs
from silomix_protocol.host.durable import write_durably
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.heights import Height, check_height, mark_of, sign_height

from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import LedgerBehind
from silomix_client.ledger import hash_chain
from silomix_client.ledger.ledger import Ledger

FILE = "height.json"
ADVICE = (
    "put the newest state folder back, or restore this one from a backup of its own, which counts "
    "open studies as spent (docs/operations.md, A state folder that was put back)"
)


class Witness:
    """The height of this silo's ledger, as the silo shows it to others and as others show it."""

    def __init__(self, ledger: Ledger, silo: str, sign_key: SigningKey) -> None:
        self._ledger, self._silo, self._sign_key = ledger, silo, sign_key
        self._file: Path = ledger.state / FILE

    def height(self) -> ledger_pb2.LedgerHeight:
        """The ledger's height, signed."""
        restored_ms, entries, head = self._ledger.height()
        mark = mark_of(head, self._sign_key)
        return sign_height(self._silo, (restored_ms, entries), mark, self._sign_key).to_wire()

    def hear(self, shown: ledger_pb2.LedgerHeight, by: str) -> None:
        """Keep a height that somebody shows, if this ledger cannot have come after it."""
        try:
            height = check_height(shown, self._silo, self._sign_key.public)
        except ForgedSignature as forged:
            logs.warning("height_ignored", by=by, reason=forged)
            return
        reason = self.contradiction(height, by)
        if reason is None:
            return
        evidence = {"by": by, "height": shown.SerializeToString(deterministic=True).hex()}
        content = json.dumps(evidence).encode()
        if self._file.exists() and self._file.read_bytes() == content:
            return  # said before
        logs.warning("ledger_behind", by=by, reason=reason, hint=ADVICE)
        write_durably(self._file, content)

    def check(self) -> None:
        """Raise while there is evidence that this ledger is not the last one."""
        evidence = self._evidence()
        reason = None if evidence is None else self.contradiction(*evidence)
        if reason is not None:
            raise LedgerBehind(f"{reason}: {ADVICE}")

    def _evidence(self) -> tuple[Height, str] | None:
        """The height that is kept as evidence, and who showed it; None without evidence."""
        try:
            evidence = json.loads(self._file.read_bytes())
            shown = ledger_pb2.LedgerHeight.FromString(bytes.fromhex(evidence["height"]))
            return check_height(shown, self._silo, self._sign_key.public), evidence["by"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, DecodeError) as error:
            raise LedgerBehind(f"{self._file} cannot be read: {ADVICE}") from error

    def shown_restored_ms(self) -> int:
        """When the ledger of the evidence had been restored, in milliseconds since 1970.

        0 if it never was, or there is no evidence that can be read.  It follows
        the clock of that time, which may have been wrong: a restore must stand above it.
        """
        try:
            evidence = self._evidence()
        except LedgerBehind:
            return 0
        return 0 if evidence is None else evidence[0].restored_ms

    def contradiction(self, shown: Height, by: str) -> str | None:
        """Why this ledger cannot have come after the height that is shown; None if it can."""
        restored_ms, entries, _ = self._ledger.height()
        signed = f"{by} has this silo's signature on"
        if shown.restored_ms > restored_ms:
            return f"{signed} a ledger that was restored from a backup later than this one"
        if shown.restored_ms < restored_ms:
            return None  # what was there by then counts as spent
        if shown.entries > entries:
            return (
                f"{signed} a ledger of {shown.entries} entries, and this one has {entries}: it was "
                "put back to an earlier state, or a copy of this silo runs elsewhere"
            )
        head = hash_chain.hash_of(self._ledger.database, shown.entries)
        if head is None or mark_of(head, self._sign_key) != shown.mark:
            return (
                f"{signed} another entry {shown.entries} than this ledger has: a copy of this silo "
                "runs elsewhere, or did"
            )
        return None


def check_evidence(config: SiloConfig, ledger: Ledger) -> None:
    """Raise, for a command, while there is evidence that this ledger is not the last one."""
    if (ledger.state / FILE).exists():
        Witness(ledger, config.name, SigningKey.load(config.folder / "sign.key")).check()
