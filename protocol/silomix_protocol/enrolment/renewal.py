"""What keeps a running party enrolled: its certificate renewed in time, its revocation list fresh.

A silo, a mix and a server each run one `Keeper`.  It changes files in the party's folder, nothing
else; connections look there when they are made.  Nothing that goes wrong here stops the party: it
is said in the log, and tried again.
"""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from silomix_protocol.certificates.certificates import (
    Life,
    RefusedCertificate,
    RevocationList,
    parse_certificate,
    shown,
)
from silomix_protocol.certificates.files import CertificateFiles
from silomix_protocol.connections.route import DIRECT, Route
from silomix_protocol.enrolment.enrolment import (
    Enrolment,
    EnrolmentError,
    NotEnrolled,
    fetch_list,
    renew,
)
from silomix_protocol.host import logs
from silomix_protocol.keys import UnusableKey
from silomix_protocol.rounds.heights import OwnLedger

_LIST = timedelta(minutes=1)  # between two fetches, unless lists live for less than four minutes
_OLD = 72  # after 1/_OLD of its life a list that cannot be replaced is worth a warning
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(hours=1)  # between two tries to renew
_COMPLAINT = timedelta(hours=1)  # between two warnings about the same thing
_CLOCK = timedelta(minutes=2)  # a difference worth a warning
_PROBLEMS = (EnrolmentError, RefusedCertificate, UnusableKey, OSError)


class Keeper:
    """Keeps one folder's certificate and list fresh; `look` does what is due, `keep` so for ever.

    A silo gives its ledger: then the authority is asked at once, whether the list is fresh or not.
    """

    def __init__(
        self, folder: Path, route: Route = DIRECT, ledger: OwnLedger | None = None
    ) -> None:
        self._folder, self._route, self._ledger = folder, route, ledger
        self._enrolment = _enrolment(folder)
        self._not_before = datetime.now(UTC)  # the earliest next try to renew
        self._next_fetch = self._first_fetch()
        self._complained: dict[str, datetime] = {}
        self._barred: frozenset[str] = frozenset()
        self._notice_readmitted()

    async def keep(self) -> None:
        while True:
            try:
                pause = await self.look()
            except (
                Exception
            ) as error:  # no bug, not even in a log line, may let the certificate expire
                self._complain("keeper_failed", datetime.now(UTC), reason=repr(error))
                pause = _LIST
            await asyncio.sleep(pause.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311

    async def look(self) -> timedelta:
        """Renew and fetch what is due; return how long nothing will be due."""
        self._settle()
        now, life = datetime.now(UTC), self._life()
        if life is None:
            return _LONGEST
        if self._enrolment is None:
            if now >= life.renewal:
                self._complain("certificate_expires", now, expires=shown(life.expires))
            return _LONGEST
        if now >= max(life.renewal, self._not_before):
            life = await self._renew(self._enrolment, life)
        if datetime.now(UTC) >= self._next_fetch:
            await self._fetch(self._enrolment)
        self._notice_readmitted()
        due = min(max(life.renewal, self._not_before), self._next_fetch)
        return min(max(due - datetime.now(UTC), _SHORTEST), _LIST)

    def _settle(self) -> None:
        """Finish a renewal that was broken off."""
        try:
            CertificateFiles(self._folder).settle()
        except _PROBLEMS as error:
            self._complain("certificate_unusable", datetime.now(UTC), reason=error)

    def _life(self) -> Life | None:
        try:
            return Life.of(parse_certificate((self._folder / "tls.crt").read_bytes()))
        except (OSError, RefusedCertificate) as error:
            self._complain("certificate_unusable", datetime.now(UTC), reason=error)
            return None

    async def _renew(self, enrolment: Enrolment, life: Life) -> Life:
        try:
            renewed = await renew(enrolment, self._route, self._ledger)
        except _PROBLEMS as error:
            now = datetime.now(UTC)
            left = life.expires - now
            self._not_before = now + min(max(abs(left) / 20, _SHORTEST), _LONGEST)
            state = "certificate_expired" if left <= timedelta() else "certificate_not_renewed"
            self._complain(state, now, expires=shown(life.expires), reason=error)
            return life
        self._complained.clear()
        logs.event("certificate_renewed", expires=shown(renewed.expires))
        return renewed

    def _first_fetch(self) -> datetime:
        """The time of the first fetch: now, unless the list is fresh and there is no ledger."""
        if self._ledger is not None:
            return self._not_before
        current = self._enrolment.revocations.current if self._enrolment is not None else None
        issued = current.issued if current is not None else self._not_before - _LIST
        return min(issued, self._not_before) + _period(current)

    async def _fetch(self, enrolment: Enrolment) -> None:
        now, before = datetime.now(UTC), enrolment.revocations.current
        self._next_fetch = now + _period(before)
        try:
            fetched = await fetch_list(enrolment, self._route, self._ledger)
            taken = enrolment.revocations.take(fetched)
        except _PROBLEMS as error:
            if before is None or now > before.issued + (before.expires - before.issued) / _OLD:
                until = shown(before.expires) if before else "never"
                self._complain("revocation_list_not_fetched", now, valid_until=until, reason=error)
            return
        self._complained.pop("revocation_list_not_fetched", None)
        if before is None or taken.number != before.number:
            barred = ",".join(sorted(taken.barred)) or "-"
            logs.event("revocation_list", number=taken.number, barred=barred)
        if enrolment.member.name in taken.barred:
            self._complain("membership_revoked", now, hint="ask the authority's operator")
        difference = taken.issued - datetime.now(UTC)
        if abs(difference) > _CLOCK:
            self._complain("clock_differs", now, from_authority_s=round(difference.total_seconds()))

    def _notice_readmitted(self) -> None:
        """Log whose revocation was undone, whoever put the list into the folder."""
        current = self._enrolment.revocations.current if self._enrolment is not None else None
        if current is None:
            return
        if gone := self._barred - current.barred:
            parties = ",".join(sorted(gone))
            logs.warning("no_longer_revoked", parties=parties, number=current.number)
        self._barred = current.barred

    def _complain(self, name: str, now: datetime, **fields: object) -> None:
        """Warn, but not about the same thing again and again."""
        last = self._complained.get(name)
        if last is None or now >= last + _COMPLAINT:
            self._complained[name] = now
            logs.warning(name, **fields)


def _enrolment(folder: Path) -> Enrolment | None:
    try:
        return Enrolment.load(folder)
    except NotEnrolled:
        return None


def _period(current: RevocationList | None) -> timedelta:
    return min(_LIST, (current.expires - current.issued) / 4) if current else _LIST / 12
