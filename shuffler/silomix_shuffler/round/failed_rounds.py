"""Rounds that come to nothing: abandoned before a batch left, or void after it."""

from silomix_proto import round_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import sign_abandonment, sign_voided

from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.disclosure import disclosure
from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.store import was_aborted
from silomix_shuffler.storage.writing_thread import WritingThread


class FailedRounds:
    def __init__(self, sign_key: SigningKey, disk: WritingThread, metrics: Metrics) -> None:
        self._sign_key, self._metrics = sign_key, metrics
        self._disk, self._store = disk, disk.store

    async def abandon(self, descriptor: Descriptor, current: Round | None) -> round_pb2.Abandonment:
        """Sign that this mix forwarded nothing for D and never will, or refuse if it may have.

        Without a round in memory the disk knows whether there was one.
        """
        reason = "abandoned by the coordinator"
        if current is not None:
            reason = await self.abort(current, reason)
        else:
            reason = await self._abandon_forgotten(descriptor, reason)
        return sign_abandonment(descriptor.digest, reason, self._sign_key)

    async def _abandon_forgotten(self, descriptor: Descriptor, reason: str) -> str:
        known = await self._disk.do(self._store.known, descriptor.digest)
        if known is None:
            await self._disk.do(self._store.open, descriptor, abandoned=reason)
            return reason
        if not was_aborted(*known):
            raise WrongRound("the batch of this round may have been forwarded")
        return known[1]

    async def void(self, descriptor: Descriptor, current: Round | None) -> round_pb2.Ending:
        """Sign that this mix forwarded nothing for D, or that no report of it will be opened.

        Refused if the release key was given away.
        """
        if current is None:
            void = await self._disk.do(self._store.void_for_good, descriptor.digest)
            if void is None:
                return round_pb2.Ending(abandoned=await self.abandon(descriptor, None))
            reason, uncertain = void
            return sign_voided(descriptor.digest, reason, b"", self._sign_key, uncertain=uncertain)
        await written(current)
        current.batch.void()
        if current.batch.state is State.ABORTED:
            return round_pb2.Ending(abandoned=await self.abandon(descriptor, current))
        return await self.destroy(current, "voided by the coordinator")

    async def destroy(self, current: Round, reason: str) -> round_pb2.Ending:
        """Destroy the release key of a void batch, on disk first, and sign that."""
        async with current.voiding:
            if not current.voided:
                await self._destroy(current, reason)
        return sign_voided(
            current.batch.descriptor.digest,
            current.reason,
            current.disclosed,
            self._sign_key,
            uncertain=current.batch.doubtful,
        )

    async def _destroy(self, current: Round, reason: str) -> None:
        descriptor, uncertain = current.batch.descriptor, current.batch.doubtful
        reason = current.void(reason)
        reports = await self._disk.do(self._store.reports, descriptor.digest)
        disclosed = disclosure(current, reports)
        voided = self._store.voided
        await self._disk.do(voided, descriptor, reason, disclosed, uncertain=uncertain)
        current.destroy_keys(disclosed)
        logs.warning("batch_voided", round=descriptor.round, reason=reason)
        self._metrics.batches.labels("voided").inc()

    async def abort(self, current: Round, reason: str) -> str:
        """Abort for good; return why the round was aborted (maybe earlier, for another reason)."""
        reason = current.abort(reason)
        await self._disk.do(self._store.aborted, current.batch.descriptor, reason)
        current.end_aborted()
        logs.event("round_abandoned", round=current.batch.descriptor.round, reason=reason)
        return reason


async def written(current: Round) -> None:
    """Wait for a batch that was marked as leaving but may still be on its way to the disk."""
    if current.batch.state is State.FORWARDED:
        await current.closed.wait()
