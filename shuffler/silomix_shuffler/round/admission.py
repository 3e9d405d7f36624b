"""Silos at the first mix: they come and go, and each one's report is taken once."""

import asyncio
from collections.abc import Iterable

from silomix_core.study.study import Silo
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.heights import BehindHeight, Height, HeightBook

from silomix_shuffler.errors import BehindLedger, RefusedByMix, TooMuch, WrongSender
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.deadlines import Deadlines
from silomix_shuffler.round.expected_silos import ExpectedSilos
from silomix_shuffler.round.intake import Intake
from silomix_shuffler.round.open_rounds import OpenRounds
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.served_studies import ServedStudies
from silomix_shuffler.round.upload import Upload

_STREAMS_PER_STUDY = 2  # of one silo: a new one may come before the old one is known to be broken


class Admission:
    def __init__(
        self,
        served: ServedStudies,
        rounds: OpenRounds,
        expected: ExpectedSilos,
        deadlines: Deadlines,
        intake: Intake,
        tasks: Tasks,
        grace_s: float,
    ) -> None:
        self._served, self._rounds, self._expected = served, rounds, expected
        self._deadlines, self._intake, self._tasks = deadlines, intake, tasks
        self._grace_s = grace_s
        self._keeping: dict[tuple[RoundDigest, str], asyncio.Task[None]] = {}
        self.heights = HeightBook()  # of silos' ledgers; saved with their reports

    async def admit(
        self, current: Round, silo: Silo, upload: Upload, signature: bytes, height: Height
    ) -> None:
        """Take a silo's report into the round, durably; the same report again changes nothing.

        The upload is ours from here on.  A silo's ledger that is behind what it signed before was
        put back or copied: the report may have been charged to a ledger that nobody has any more.
        """
        try:
            self.heights.take(silo.sign_key, height)
            fresh = current.batch.admit(silo.name, upload.digest)
        except BehindHeight as behind:
            upload.close()
            raise BehindLedger(behind.held) from behind
        except RefusedByMix:
            upload.close()
            raise
        if fresh:
            if len(current.batch.admitted) == 1:
                self._deadlines.await_reports(current)
            keeping = self._keep(current, silo, upload, signature, height)
            self._keeping[_place(current, silo)] = self._tasks.start(keeping)
        else:
            upload.close()
        if (task := self._keeping.get(_place(current, silo))) is not None:
            await asyncio.shield(task)  # goes on even if the silo hangs up

    async def _keep(
        self, current: Round, silo: Silo, upload: Upload, signature: bytes, height: Height
    ) -> None:
        known = silo.sign_key, height
        try:
            await self._intake.keep(current, silo.name, upload, signature, known)
            self._expected.answered(current.study.identity, silo.name)
        finally:
            del self._keeping[_place(current, silo)]
            self._deadlines.seal_if_complete(current)  # also without it: time may be up

    # Coming and going -----------------------------------------------------------------------------

    def connect(self, silo: str) -> None:
        enrolled = self._served.enrolling(silo)
        if not enrolled:
            raise WrongSender("no study here enrols you")
        if self._expected.streams(silo) >= _STREAMS_PER_STUDY * enrolled:
            raise TooMuch("you have other streams open")
        self._expected.connected(silo)

    def disconnect(self, silo: str) -> None:
        if self._expected.disconnected(silo):
            self._give_up_later(silo)

    def watch(self, silos: Iterable[str]) -> None:
        """Give those of a round's silos up that have no stream, unless they come in time."""
        for silo in self._expected.absent(silos):
            self._give_up_later(silo)

    def _give_up_later(self, silo: str) -> None:
        asyncio.get_running_loop().call_later(self._grace_s, self._give_up_on, silo)

    def _give_up_on(self, silo: str) -> None:
        """Stop waiting for a silo that did not come back; rounds open now may be complete."""
        self._expected.gave_up(silo)
        for current in self._rounds:
            if current.hop == 0:
                self._deadlines.seal_if_complete(current)


def _place(current: Round, silo: Silo) -> tuple[RoundDigest, str]:
    return current.batch.descriptor.digest, silo.name
