"""The ledger: what a silo's operator approved, and every round's privacy loss, on disk first.

One SQLite file, with one durable transaction for each act: those of an operator are here, those of
a round in `study_account`.  What was done stands in a hash chain (`hash_chain`) as events; ε is
computed from them, never stored.  Whether there is room in the operator's budget is decided in
`privacy_filter`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from silomix_core.study.study import Study, StudyId
from silomix_protocol.host.durable import cut_log, transaction
from silomix_protocol.host.state_folder import state_of

from silomix_client.config.silo_config import MAIN, Policy, SiloConfig
from silomix_client.errors import BudgetExhausted, NotApproved
from silomix_client.ledger import hash_chain
from silomix_client.ledger.database import has_ledger
from silomix_client.ledger.entries import Approval, Spending, Total, approval_line
from silomix_client.ledger.hash_chain import ChainEntry
from silomix_client.ledger.ledger_tables import open_tables
from silomix_client.ledger.privacy_filter import PrivacyFilter
from silomix_client.ledger.study_account import StudyAccount


class Ledger:
    """The one writer of a silo's privacy record."""

    def __init__(self, state: Path, policy: Policy) -> None:
        self.state = state
        self._tables = open_tables(state)
        self.database = self._tables.database
        self._studies = self._tables.studies
        self._read_restores()
        self._filter = PrivacyFilter(self._studies, self._tables.tallies, policy)
        self._accounts: dict[StudyId, StudyAccount] = {}

    def close(self) -> None:
        self._tables.close()

    def sweep(self) -> None:
        """Delete stored reports that no charge names: a crash may have left one, never sent.

        Only the one process that answers rounds calls this, before it does.
        """
        self._tables.reports.sweep()

    @property
    def policy(self) -> Policy:
        return self._filter.policy

    def follow(self, policy: Policy) -> None:
        """Go by this policy from now on; InvalidSiloConfig if it leaves out what was charged."""
        self._filter.follow(policy)

    def account(self, study: Study) -> StudyAccount:
        """The account of one study, always the same one: what is done round by round."""
        account = StudyAccount(study, self._tables, self._filter)
        return self._accounts.setdefault(study.identity, account)

    # What an operator approves and takes back -----------------------------------------------------

    def approve(self, approval: Approval, content: bytes, now: datetime) -> ChainEntry:
        """Reserve the whole study's loss and remember the approval; refuse it beyond the policy."""
        with transaction(self.database):
            self.check_new(approval)
            return self._remember(approval, content, now)

    def check_new(self, approval: Approval) -> None:
        """Raise unless the study is new and the policy has room for all of it."""
        identity = approval.study.identity
        if self._forgetful:
            raise BudgetExhausted(
                "this ledger was put back from a backup and may have forgotten studies, so all of "
                "your policy's budget counts as spent; restore the backup again into a new folder "
                "and name the studies that were approved after it was made"
            )
        if self._studies.is_open(identity):
            raise NotApproved("this study is already approved")
        if self._studies.is_known(identity):
            raise NotApproved(
                "this study was revoked here; a revoked study cannot be approved again"
            )
        self._filter.check_room(approval)

    def close_study(self, identity: StudyId, now: datetime) -> ChainEntry:
        """Answer this study no more; what it had reserved and not spent is free again."""
        with transaction(self.database):
            entry, outdated = self._close("close", identity, now)
        self._clear_away(outdated)
        return entry

    # A ledger that was put back from a backup -----------------------------------------------------

    def put_back(self, body: dict[str, Any]) -> None:
        """Write down that this is an earlier ledger, put back, and what its operator knows."""
        with transaction(self.database):
            hash_chain.append(self.database, body | {"kind": hash_chain.PUT_BACK})
        self._read_restores()

    def enter(self, approval: Approval, content: bytes, now: datetime) -> None:
        """Remember, without any check, an approval that this ledger, put back, had forgotten."""
        with transaction(self.database):
            self._remember(approval, content, now)

    def forfeit(self, identity: StudyId, now: datetime) -> None:
        """Answer this study no more; all that it had reserved counts as spent.

        For a ledger that was put back: nobody knows how many rounds were answered meanwhile.
        """
        with transaction(self.database):
            _, outdated = self._close(hash_chain.FORFEIT, identity, now)
            self._tables.tallies.fill(identity, self.approval(identity).plan)
        self._clear_away(outdated)

    def put_back_from(self) -> list[dict[str, Any]]:
        """The note of each time that the ledger was put back: `at`, `backup`, `complete`."""
        return hash_chain.of_kind(self.database, hash_chain.PUT_BACK)

    def forfeited(self) -> set[StudyId]:
        """The studies that count as spent as a whole because the ledger was put back."""
        bodies = hash_chain.of_kind(self.database, hash_chain.FORFEIT)
        return {StudyId(bytes.fromhex(body["study"])) for body in bodies}

    def height(self) -> tuple[int, int, bytes]:
        """When the ledger was last put back (ms since 1970; 0: never), its entries and its head."""
        return self._restored_ms, *hash_chain.last(self.database)

    # What was approved and spent ------------------------------------------------------------------

    def knows(self, identity: StudyId) -> bool:
        """Whether the study was ever approved here."""
        return self._studies.is_known(identity)

    def approval(self, identity: StudyId) -> Approval:
        """The approval of this study; NotApproved if there is none."""
        return self._studies.find(identity)

    def approvals(self) -> list[Approval]:
        """All approvals, in their order."""
        return self._studies.all()

    def study_file(self, identity: StudyId) -> bytes:
        """The study file that was approved, byte for byte."""
        return self._studies.study_file(identity)

    def spending(self, study: StudyId) -> Spending:
        """The privacy spent on one study."""
        return self._tables.tallies.spending(study)

    def total(self, population: str = MAIN) -> Total:
        """The privacy spent on all studies of a population."""
        return self._filter.total(population)

    def reserved(self, population: str = MAIN) -> Total:
        """What open studies of a population may cost in all, and what its closed ones did cost."""
        return self._filter.reserved(population)

    # Helpers ------------------------------------------------------------------------------------

    def _read_restores(self) -> None:
        self._forgetful = hash_chain.may_have_forgotten(self.database)
        self._restored_ms = hash_chain.restored_ms(self.database)

    def _remember(self, approval: Approval, content: bytes, now: datetime) -> ChainEntry:
        entry = hash_chain.append(self.database, approval_line(approval, now))
        self._studies.put(approval, content, entry.number)
        return entry

    def _close(self, kind: str, identity: StudyId, now: datetime) -> tuple[ChainEntry, list[str]]:
        """Close a study, inside a transaction; returns the names of bodies to delete afterwards."""
        approval = self.approval(identity)
        if approval.closed:
            raise NotApproved("this study is already revoked")
        body = {"kind": kind, "at": now.isoformat(), "study": identity.hex()}
        entry = hash_chain.append(self.database, body)
        self._studies.close(identity, entry.number)
        self._tables.tokens.forget(identity, approval.study.rounds)
        self._tables.controls.drop(identity)
        return entry, self._tables.reports.forget(identity)

    def _clear_away(self, outdated: list[str]) -> None:
        """Delete a closed study's bodies and secret: neither may stay on the disk."""
        self._tables.reports.delete_bodies(outdated)
        cut_log(self.database)


@contextmanager
def ledger_or_empty(config: SiloConfig) -> Iterator[Ledger]:
    """The silo's ledger, for a look; if there is none, an empty one elsewhere."""
    with tempfile.TemporaryDirectory() as empty:
        state = state_of(config.folder)
        folder = state if has_ledger(state) else Path(empty)
        with closing(Ledger(folder, config.policy)) as ledger:
            yield ledger
