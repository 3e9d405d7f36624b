"""A mix without its network: what it does with rounds, put together, stopped and started again.

`opener` makes keys and opens rounds, `admission` takes silos' reports, `previous_mix` a batch;
`sealing` closes it and `delivery` hands it on; `release` gives the key away; `failed_rounds` makes
a round void or abandons it.  What others rely on is on disk (`writing_thread`, `store`) before they
hear of it.
"""

from silomix_core.study.study import Study
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import Descriptor, check, study_of
from silomix_protocol.rounds.heights import HeightBook

from silomix_shuffler.batch import Batch, State
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.admission import Admission
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.deadlines import Deadlines
from silomix_shuffler.round.delivery import Delivery
from silomix_shuffler.round.expected_silos import ExpectedSilos
from silomix_shuffler.round.failed_rounds import FailedRounds
from silomix_shuffler.round.intake import Intake
from silomix_shuffler.round.open_rounds import OpenRounds
from silomix_shuffler.round.opener import Opener
from silomix_shuffler.round.previous_mix import PreviousMix
from silomix_shuffler.round.release import Release
from silomix_shuffler.round.retention import Retention
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.sealing import Sealing
from silomix_shuffler.round.served_studies import ServedStudies
from silomix_shuffler.storage.store import SavedRound
from silomix_shuffler.storage.writing_thread import WritingThread


class MixRounds:
    """The rounds that one mix has open; its place in a chain follows from the study file."""

    def __init__(
        self,
        identity: Identity,
        studies: tuple[Study, ...],
        sign_key: SigningKey,
        disk: WritingThread,
        metrics: Metrics,
        limits: Limits,
        grace_s: float,
    ) -> None:
        self.limits = limits
        self._disk, self._store, self._tasks = disk, disk.store, Tasks()
        self.studies = ServedStudies(identity.name, studies, disk.store.bodies)
        self.rounds = OpenRounds(limits, disk.store.bodies)
        expected, intake = ExpectedSilos(), Intake(disk, metrics)
        self.delivery = Delivery(identity, disk, metrics)
        self.sealing = Sealing(sign_key, disk, self.delivery, metrics, self._tasks)
        self.failed = FailedRounds(sign_key, disk, metrics)
        self._deadlines = Deadlines(expected, self.sealing, self.failed, self._tasks)
        self.admission = Admission(
            self.studies, self.rounds, expected, self._deadlines, intake, self._tasks, grace_s
        )
        self.previous_mix = PreviousMix(intake, self.sealing, self._tasks)
        self.opener = Opener(
            self.studies,
            self.rounds,
            disk,
            sign_key,
            self._tasks,
            self._deadlines,
            self.admission,
            self.delivery,
        )
        self.release = Release(self.rounds, self.failed, disk, sign_key)
        self.retention = Retention(self.rounds, disk, self._tasks, limits.retention_s)
        metrics.rounds_open.set_function(self.rounds.unfinished)
        metrics.body_bytes.set_function(self.rounds.body_bytes)

    async def restore(self) -> None:
        """Go on where the last process ended, whatever state it was in."""
        await self._disk.do(self._store.doubt)
        await self._disk.do(self._store.forget_others, self.studies.identities)
        self.admission.heights = HeightBook(await self._disk.do(self._store.heights))
        for saved in await self._disk.do(lambda: list(self._store.unfinished())):
            await self._restore(saved)
        needed = {each.spool.path for each in self.rounds if each.has_bodies}
        await self._disk.do(self._store.sweep, needed)
        self.retention.start()

    async def _restore(self, saved: SavedRound) -> None:
        study = self.studies.find(study_of(saved.signed))
        descriptor = check(saved.signed, study)
        current = self.studies.round(study, _batch(descriptor, saved))
        current.go_on(saved)
        current.use_keys(*await self._disk.do(self._store.keys, descriptor))
        self.rounds.add(current)
        logs.event("round_restored", round=descriptor.round, state=saved.state.value)
        if saved.state is State.OPEN:
            await self._go_on(current)
        else:
            self.sealing.hand_on(current)

    async def _go_on(self, current: Round) -> None:
        """Wait again for what is still to come to an open round."""
        if current.seal_key is None:
            await self.failed.abort(current, "the keys of this round are gone")
        elif current.batch.admitted and not current.hop:
            self._deadlines.await_reports(current)
            self._deadlines.seal_if_complete(current)
        else:
            self._deadlines.await_batch(current)

    def problems(self) -> list[str]:
        """The problems that an operator should look at now (called from another thread)."""
        found = []
        free = self.rounds.free_bytes()
        if free < self.limits.free_disk_bytes:
            found.append(f"only {free // 10**6} MB of disk are free")
        return found + self.delivery.problems()

    async def close(self) -> None:
        """Stop; rounds that are under way are on disk and go on after the next start."""
        self.retention.stop()
        await self._tasks.cancel()
        for current in self.rounds:
            if current.settled:
                self.rounds.forget(current)
        await self.retention.purge()
        await self._disk.do(lambda: None)  # a batch may still be on its way to the disk
        for current in self.rounds:
            current.close()
        await self.delivery.close()
        await self._disk.close()


def _batch(descriptor: Descriptor, saved: SavedRound) -> Batch:
    """The batch of a round as an earlier process left it."""
    batch = Batch(
        descriptor,
        saved.state,
        forwarded=saved.chain[-1].forwarded if saved.chain else 0,
        senders=frozenset(kept.silo for kept in saved.reports if kept.slot in saved.sequence),
        committed=saved.committed,
        doubtful=saved.uncertain,
    )
    for kept in saved.reports:
        batch.readmit(kept.silo, kept.onion)
        batch.add(kept.slot, kept.output, kept.silo)
    return batch
