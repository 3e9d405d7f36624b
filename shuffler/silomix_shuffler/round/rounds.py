"""The open rounds of a mix: opened once, sealed once, handed on, released, purged.

Stands between the RPC edge (`service`) and the batch of each round (`batch`, without I/O): timers,
background work and the order of steps live here.  What others rely on is on disk
(`writing_thread`, `store`) before they hear of it.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress

from silomix_core.mechanism.report_format import report_bytes
from silomix_core.study.study import Silo, Study, StudyId
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SealKey, SigningKey
from silomix_protocol.rounds.batches import IncomingBatch, chain_wait_s
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check, study_of
from silomix_protocol.rounds.heights import BehindHeight, Height, HeightBook
from silomix_protocol.rounds.onion import onion_bytes
from silomix_protocol.rounds.round_keys import fingerprint, sign_list
from silomix_protocol.rounds.statements import (
    check_confirmation,
    sign_abandonment,
    sign_commitment,
    sign_voided,
)
from silomix_protocol.rounds.tokens import payload_bytes

from silomix_shuffler.batch import Batch, State
from silomix_shuffler.config import Limits
from silomix_shuffler.errors import (
    BehindLedger,
    NoRoom,
    RefusedByMix,
    SecondBatch,
    TooMuch,
    UnfitList,
    WrongRound,
    WrongSender,
)
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.delivery import Delivery
from silomix_shuffler.round.disclosure import disclosure
from silomix_shuffler.round.expected_silos import ExpectedSilos
from silomix_shuffler.round.intake import Intake
from silomix_shuffler.round.round import Round, place
from silomix_shuffler.round.sealing import Sealing
from silomix_shuffler.round.upload import Upload
from silomix_shuffler.storage.store import Over, SavedRound, was_aborted
from silomix_shuffler.storage.writing_thread import WritingThread

_STREAMS_PER_STUDY = 2  # of one silo: a new one may come before the old one is known to be broken
_UNUSED_KEYS_S = 86_400.0  # how long keys wait for their round
_ROUNDS_KEPT = 2  # finished ones of a study, for questions that come again

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
        self.name = identity.name
        self.limits = limits
        self._studies: dict[StudyId, Study] = {study.identity: study for study in studies}
        self._payload = {
            study.identity: payload_bytes(study, report_bytes(study.mechanism()))
            for study in studies
        }
        self._sign_key = sign_key
        self._disk, self._store = disk, disk.store
        self._grace_s = grace_s
        self._rounds: dict[RoundDigest, Round] = {}
        self._unpurged: dict[RoundDigest, Round] = {}  # forgotten in memory, still on disk
        self._opening: dict[RoundDigest, asyncio.Task[Round]] = {}
        self._attendance = ExpectedSilos()
        self.heights = HeightBook()  # of silos' ledgers; saved with their reports
        self._intake = Intake(disk, metrics)
        self.delivery = Delivery(identity, disk, metrics)
        self._tasks, self._metrics = Tasks(), metrics
        self.sealing = Sealing(sign_key, disk, self.delivery, metrics, self._tasks)
        self._sweeper: asyncio.TimerHandle | None = None
        metrics.rounds_open.set_function(self._open_rounds)
        metrics.body_bytes.set_function(self._body_bytes)

    # Studies and rounds -------------------------------------------------------------------------

    def study(self, identity: bytes) -> Study:
        study = self._studies.get(StudyId(identity))
        if study is None:
            raise WrongRound("this mix does not serve that study")
        return study

    def round(self, digest: bytes) -> Round:
        current = self._rounds.get(RoundDigest(digest))
        if current is None:
            raise WrongRound("no such round is open here")
        return current

    async def prepare(self, request: mix_pb2.PrepareRequest) -> mix_pb2.PreparedRounds:
        """Make the keys for rounds to come, once, and sign them.

        Refused without disk space for a batch: an attempt that is only refused when it is opened is
        used up, and a round has eight.
        """
        study = self.study(request.study)
        self._check_room(self._batch_bytes(study))
        rounds = range(request.first_round, request.first_round + request.rounds)
        made = await self._disk.do(
            self._store.prepare,
            study.identity,
            request.attempt,
            rounds,
            gate=study.batching.gate,
        )
        keys = [_public(*each) for each in made]
        listed = sign_list(study, request.attempt, request.first_round, keys, self._sign_key)
        return mix_pb2.PreparedRounds(list=listed, keys=keys)

    async def open(self, signed: round_pb2.SignedDescriptor) -> Round:
        """The open round of this descriptor, made on first sight and bound to it for good."""
        study = self.study(study_of(signed))
        descriptor = check(signed, study)
        known = self._rounds.get(descriptor.digest)
        if known is not None:
            if known.batch.state in (State.VOIDED, State.ABORTED, State.PURGED):
                raise WrongRound("this round is over")
            return known
        task = self._opening.get(descriptor.digest)
        if task is None:
            task = self._tasks.start(self._open(study, descriptor))
            self._opening[descriptor.digest] = task
            task.add_done_callback(lambda _: self._opening.pop(descriptor.digest, None))
        return await asyncio.shield(task)

    async def _open(self, study: Study, descriptor: Descriptor) -> Round:
        busy = [each for each in self._rounds.values() if each.study is study and not each.finished]
        if len(busy) >= self.limits.open_rounds:
            raise TooMuch("too many rounds of this study are open")
        current = self._make(study, Batch(descriptor))
        self._check_room(current.body_bytes)
        over = self._forget_old(study)
        bound = await self._disk.do(self._bind, current, over)
        self._purged(over)
        current.seal_key, current.release_key = bound
        self._rounds[descriptor.digest] = current
        current.arm(chain_wait_s(descriptor.deadline_s, current.hop), self._at_deadline)
        if current.hop == 0:
            for silo in self._attendance.absent(descriptor.silos):
                self._give_up_later(silo)
        logs.event("round_opened", round=descriptor.round, attempt=descriptor.attempt)
        if not current.last:
            self.delivery.ready(current)  # connect before there is something to send
        return current

    def _bind(self, current: Round, over: Sequence[Round]) -> tuple[SealKey, SealKey | None]:
        """Bind the attempt to its descriptor for good; return our keys, which it names.

        Runs on the writing thread, in one go.  Rounds that are `over` are purged with it: that
        costs no commit of its own.
        """
        descriptor = current.batch.descriptor
        seal_key, release_key = self._store.keys(descriptor)
        named = descriptor.mix_keys[current.hop]
        if seal_key is None or fingerprint(_public(seal_key, release_key)) != named:
            if self._store.known(descriptor.digest) is not None:
                raise WrongRound("this round is over")
            raise WrongRound("this mix has no such keys for the round; ask it for keys again")
        self._store.open(descriptor, seal_key, over=_purging(over))
        return seal_key, release_key

    def _make(self, study: Study, batch: Batch) -> Round:
        hop = place(study, self.name)
        return Round.of(study, hop, batch, self._payload[study.identity], self._store)

    def _batch_bytes(self, study: Study) -> int:
        """The bytes that a batch of this study takes on our disk."""
        hop = place(study, self.name)
        return study.participants * onion_bytes(self._payload[study.identity], study, hop + 1)

    def _check_room(self, wanted: int) -> None:
        taken = self._body_bytes()
        free = shutil.disk_usage(self._store.bodies).free
        if taken + wanted > self.limits.disk_bytes or free - wanted < self.limits.free_disk_bytes:
            logs.warning("no_room", free_mb=free // 10**6, taken_mb=taken // 10**6)
            raise NoRoom("this mix has no room on its disk for another batch")

    # Reports from silos (first mix) ---------------------------------------------------------------

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
                current.arm(current.batch.descriptor.deadline_s, self._at_deadline)
            keeping = self._keep(current, silo, upload, signature, height)
            current.keeping[silo.name] = self._tasks.start(keeping)
        else:
            upload.close()
        if silo.name in current.keeping:  # goes on even if the silo hangs up
            await asyncio.shield(current.keeping[silo.name])

    async def _keep(
        self, current: Round, silo: Silo, upload: Upload, signature: bytes, height: Height
    ) -> None:
        known = silo.sign_key, height
        try:
            await self._intake.keep(current, silo.name, upload, signature, known)
            self._attendance.answered(current.study.identity, silo.name)
        finally:
            del current.keeping[silo.name]
            self._seal_if_complete(current)  # also without it: the deadline may have passed

    # A batch from the previous mix ----------------------------------------------------------------

    def serves_with(self, mix: str) -> bool:
        """Whether a study here has that mix in its chain."""
        return any(mix == each.name for study in self._studies.values() for each in study.mixes)

    async def take(self, current: Round, incoming: IncomingBatch) -> None:
        """Take the previous mix's batch; the same batch again changes nothing."""
        async with current.taking:
            if current.batch.state is State.OPEN:
                await self._take(current, incoming)
                return
        async for _ in incoming.reports():  # its sender hears us only when it is done
            pass
        await current.closed.wait()  # the batch may be on its way to the disk
        self._check_same(current, incoming)

    async def _take(self, current: Round, incoming: IncomingBatch) -> None:
        if incoming.aborted:
            closing = self.sealing.pass_abort_on(current, incoming)
        else:
            outputs = await self._intake.open_all(current, incoming)
            if current.batch.state is not State.OPEN:
                current.spool.delete()
                raise WrongRound("this round was aborted here")
            good = sum(current.batch.add(slot, output) for slot, output in enumerate(outputs))
            self._intake.count(good, len(outputs) - good)
            closing = self.sealing.seal(current, incoming.chain)
        await asyncio.shield(self._tasks.start(closing))  # even if the previous mix hangs up

    def _check_same(self, current: Round, incoming: IncomingBatch) -> None:
        if not current.chain:
            raise WrongRound("this round was aborted here")
        taken = [each.output for each in current.chain[: current.hop]]
        if taken != [each.output for each in incoming.chain]:
            logs.warning("second_batch", round=current.batch.descriptor.round)
            raise SecondBatch("another batch for this round was already taken")

    # Sealing -------------------------------------------------------------------------------------

    def _seal_if_complete(self, current: Round) -> None:
        gone = self._attendance.gone(current.study.identity, current.batch.descriptor.round)
        if current.batch.complete(gone):
            current.batch.close()  # nobody is admitted between this and the sealing
            self._tasks.start(self.sealing.seal(current))

    def _at_deadline(self, current: Round) -> None:
        if current.batch.state is not State.OPEN:
            return
        number = current.batch.descriptor.round
        logs.warning("round_deadline", round=number)
        if current.hop:
            if current.taking.locked() and not current.extended:  # its batch is just coming
                current.extended = True
                current.arm(current.batch.descriptor.deadline_s, self._at_deadline)
            else:
                self._tasks.start(self._abort(current, "no batch came in time"))
            return
        for silo in current.batch.missing():
            self._attendance.missed(current.study.identity, silo, number)
        current.batch.close()
        self._seal_if_complete(current)

    # Abandoning, voiding -------------------------------------------------------------------------

    async def abandon(self, signed: round_pb2.SignedDescriptor) -> round_pb2.Abandonment:
        """Sign that this mix forwarded nothing for D and never will, or refuse if it may have."""
        descriptor, current = await self._named(signed)
        reason = "abandoned by the coordinator"
        if current is not None:
            reason = await self._abort(current, reason)
        else:
            known = await self._disk.do(self._store.known, descriptor.digest)
            if known is None:
                await self._disk.do(self._store.open, descriptor, abandoned=reason)
            elif was_aborted(*known):
                reason = known[1]
            else:
                raise WrongRound("the batch of this round may have been forwarded")
        return sign_abandonment(descriptor.digest, reason, self._sign_key)

    async def void(self, signed: round_pb2.SignedDescriptor) -> round_pb2.Ending:
        """Sign that this mix forwarded nothing for D, or that no report of it will be opened.

        Refused if the release key was given away.
        """
        descriptor, current = await self._named(signed)
        if current is None:
            void = await self._disk.do(self._store.void_for_good, descriptor.digest)
            if void is not None:
                reason, uncertain = void
                return sign_voided(
                    descriptor.digest, reason, b"", self._sign_key, uncertain=uncertain
                )
            return round_pb2.Ending(abandoned=await self.abandon(signed))
        await self._written(current)
        current.batch.void()
        if current.batch.state is State.ABORTED:
            return round_pb2.Ending(abandoned=await self.abandon(signed))
        return await self._void(current, "voided by the coordinator")

    async def _named(self, signed: round_pb2.SignedDescriptor) -> tuple[Descriptor, Round | None]:
        """The checked descriptor, and its round if that is in our hands."""
        descriptor = check(signed, self.study(study_of(signed)))
        opening = self._opening.get(descriptor.digest)
        if opening is not None:
            await asyncio.wait([opening])
        return descriptor, self._rounds.get(descriptor.digest)

    async def _written(self, current: Round) -> None:
        """Wait for a batch that was marked as leaving but may still be on its way to the disk."""
        if current.batch.state is State.FORWARDED:
            await current.closed.wait()

    async def _void(self, current: Round, reason: str) -> round_pb2.Ending:
        """Destroy the release key of a void batch, on disk first, and sign that."""
        descriptor = current.batch.descriptor
        async with current.voiding:
            if not current.voided:
                await self._destroy(current, reason)
        return sign_voided(
            descriptor.digest,
            current.reason,
            current.disclosed,
            self._sign_key,
            uncertain=current.batch.doubtful,
        )

    async def _destroy(self, current: Round, reason: str) -> None:
        descriptor = current.batch.descriptor
        current.reason = current.reason or reason
        current.disarm()
        reports = await self._disk.do(self._store.reports, descriptor.digest)
        current.disclosed = disclosure(current, reports)
        await self._disk.do(
            self._store.voided,
            descriptor,
            current.reason,
            current.disclosed,
            uncertain=current.batch.doubtful,
        )
        current.spool.delete()
        current.seal_key = current.release_key = None
        current.voided = current.delivered = True
        logs.warning("batch_voided", round=descriptor.round, reason=current.reason)
        self._metrics.batches.labels("voided").inc()

    async def _abort(self, current: Round, reason: str) -> str:
        """Abort for good; return why the round was aborted (maybe earlier, for another reason)."""
        current.batch.abort()
        reason = current.reason or reason
        current.disarm()
        current.reason = reason
        if not (current.chain and current.chain[-1].aborted):
            current.chain, current.sequence = (), ()
        await self._disk.do(self._store.aborted, current.batch.descriptor, reason)
        current.seal_key = None
        current.spool.delete()
        current.closed.set()
        logs.event("round_abandoned", round=current.batch.descriptor.round, reason=reason)
        return reason

    # Lists, releasing, purging -------------------------------------------------------------------

    async def commit(self, request: mix_pb2.CommitRequest) -> bytes:
        """Sign the list that the server commits to, one list only.

        Without this signature a server could show each silo another list and see who finds itself
        in it.  The last mix stands by what it handed over.  A list that does not fit makes the
        round void.
        """
        current = self.round(request.digest)
        await self._written(current)
        before, digest = current.batch.committed, current.batch.descriptor.digest
        try:
            current.batch.commit(request.list)
        except UnfitList as refusal:
            await self._void(current, str(refusal))
            raise
        listed = current.batch.committed
        try:
            await self._disk.do(self._store.committed, digest, listed)
        except (OSError, sqlite3.Error):
            current.batch.committed = before
            raise
        return sign_commitment(digest, listed, self._sign_key)

    def own_commitment(self, current: Round) -> bytes:
        """The last mix's signature on the list that it hands over; empty if it hands over none."""
        if current.batch.state is State.ABORTED:
            return b""
        return sign_commitment(
            current.batch.descriptor.digest, current.batch.committed, self._sign_key
        )

    async def release(self, request: mix_pb2.ReleaseRequest) -> bytes:
        """Give the release key of a round away against enough silos' confirmations of one list."""
        current = self.round(request.digest)
        if not current.study.batching.gate:
            raise WrongRound("this study has no gate")
        if len(request.confirmations) > len(current.study.silos):
            raise TooMuch("more confirmations than silos")
        confirmed = await asyncio.to_thread(_confirmed, current, request)
        async with current.voiding:
            before = current.batch.state
            current.batch.release(request.list, confirmed)
            if before is not State.RELEASED:
                await self._released(current)
                number = current.batch.descriptor.round
                logs.event("gate_opened", round=number, confirmed=len(confirmed))
        if current.release_key is None:
            raise WrongRound("the release key of this round is gone")
        return current.release_key.raw

    async def _released(self, current: Round) -> None:
        """Note the key as given away before it is, and forget what nobody asks about again.

        Rounds that are over are purged with it.
        """
        over = self._forget_old(current.study)
        try:
            await self._disk.do(
                self._store.released,
                current.batch.descriptor,
                last=current.last,
                over=_purging(over),
            )
        except (OSError, sqlite3.Error):
            current.batch.state = State.FORWARDED
            raise
        self._purged(over)
        if current.last:
            with suppress(OSError):
                current.spool.delete()
            current.delivered = True
        current.seal_key = None

    def _forget_old(self, study: Study) -> list[Round]:
        """Forget finished rounds but the last few; return all that are to be purged on disk."""
        finished = [each for each in self._rounds.values() if each.study is study and each.finished]
        for old in finished[:-_ROUNDS_KEPT]:
            self._forget(old)
        return list(self._unpurged.values())

    def _forget(self, current: Round) -> None:
        """Forget a round before anything is awaited: nobody finds it, nothing brings it back."""
        current.disarm()
        digest = current.batch.descriptor.digest
        self._rounds.pop(digest, None)
        self._unpurged[digest] = current
        if current.batch.state is State.FORWARDED and current.study.batching.gate:
            current.batch.void()  # with its key goes the chance to open it
        current.batch.purge()
        current.chain, current.sequence = (), ()
        current.seal_key = current.release_key = None
        current.closed.set()

    async def _purge(self) -> None:
        """Purge forgotten rounds on disk too."""
        over = list(self._unpurged.values())
        if over:
            await self._disk.do(self._store.purge, _purging(over))
            self._purged(over)

    def _purged(self, over: Iterable[Round]) -> None:
        """Note that rounds are gone on disk too; after a failed step, the next one purges them."""
        for each in over:
            with suppress(OSError):  # what stays is swept at the next start
                each.spool.delete()
            self._unpurged.pop(each.batch.descriptor.digest, None)

    async def _expire(self) -> None:
        """Purge rounds that nobody asked about for long; cut the log, which has deleted keys."""
        now = asyncio.get_running_loop().time()
        try:
            unasked = [
                current
                for current in self._rounds.values()
                if now - current.since > self.limits.retention_s
                and current.batch.state is not State.OPEN
            ]
            for current in unasked:
                self._forget(current)
            await self._purge()
            await self._disk.do(self._store.expire_keys, _UNUSED_KEYS_S)
            await self._disk.do(self._store.tidy)
        finally:
            self._sweep_later()

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        pause = min(60.0, self.limits.retention_s)
        self._sweeper = loop.call_later(pause, lambda: self._tasks.start(self._expire()))

    # Silos coming and going ---------------------------------------------------------------------

    def connect(self, silo: str) -> None:
        enrolled = sum(study.silo(silo) is not None for study in self._studies.values())
        if not enrolled:
            raise WrongSender("no study here enrols you")
        if self._attendance.streams(silo) >= _STREAMS_PER_STUDY * enrolled:
            raise TooMuch("you have other streams open")
        self._attendance.connected(silo)

    def disconnect(self, silo: str) -> None:
        if self._attendance.disconnected(silo):
            self._give_up_later(silo)

    def _give_up_later(self, silo: str) -> None:
        asyncio.get_running_loop().call_later(self._grace_s, self._give_up_on, silo)

    def _give_up_on(self, silo: str) -> None:
        """Stop waiting for a silo that did not come back; rounds open now may be complete."""
        self._attendance.gave_up(silo)
        for current in list(self._rounds.values()):
            if current.hop == 0:
                self._seal_if_complete(current)

    # Life of the process ------------------------------------------------------------------------

    async def restore(self) -> None:
        """Go on where the last process ended, whatever state it was in."""
        await self._disk.do(self._store.doubt)
        await self._disk.do(self._store.forget_others, self._studies)
        self.heights = HeightBook(await self._disk.do(self._store.heights))
        for saved in await self._disk.do(lambda: list(self._store.unfinished())):
            await self._restore(saved, self.study(study_of(saved.signed)))
        needed = {each.spool.path for each in self._rounds.values() if each.has_bodies}
        await self._disk.do(self._store.sweep, needed)
        self._sweep_later()

    async def _restore(self, saved: SavedRound, study: Study) -> None:
        descriptor = check(saved.signed, study)
        current = self._make(study, Batch(descriptor, saved.state))
        current.chain, current.sequence = saved.chain, saved.sequence
        current.delivered, current.reason = saved.delivered, saved.reason
        current.disclosed, current.voided = saved.disclosed, saved.state is State.VOIDED
        batch = current.batch
        batch.committed = saved.committed
        batch.doubtful = saved.uncertain
        batch.forwarded = saved.chain[-1].forwarded if saved.chain else 0
        batch.senders = frozenset(
            kept.silo for kept in saved.reports if kept.slot in saved.sequence
        )
        for kept in saved.reports:
            batch.admitted[kept.silo] = kept.onion
            batch.add(kept.slot, kept.output, kept.silo)
            current.next_slot(kept.slot)
        keys = await self._disk.do(self._store.keys, descriptor)
        current.seal_key, current.release_key = keys
        self._rounds[descriptor.digest] = current
        logs.event("round_restored", round=descriptor.round, state=saved.state.value)
        if saved.state is State.OPEN:
            if current.seal_key is None:
                await self._abort(current, "the keys of this round are gone")
                return
            waits = bool(saved.reports) and not current.hop
            wait_s = chain_wait_s(descriptor.deadline_s, current.hop)
            current.arm(descriptor.deadline_s if waits else wait_s, self._at_deadline)
            if waits:
                self._seal_if_complete(current)
        else:
            current.closed.set()
            self.sealing.hand_on(current)

    def problems(self) -> list[str]:
        """The problems that an operator should look at now (called from another thread)."""
        found = []
        free = shutil.disk_usage(self._store.bodies).free
        if free < self.limits.free_disk_bytes:
            found.append(f"only {free // 10**6} MB of disk are free")
        found += self.delivery.problems()
        return found

    def _open_rounds(self) -> int:
        """The number of unfinished rounds; metrics call this and the next from another thread."""
        return sum(not each.finished for each in list(self._rounds.values()))

    def _body_bytes(self) -> int:
        return sum(each.body_bytes for each in list(self._rounds.values()) if each.has_bodies)

    async def close(self) -> None:
        """Stop; rounds that are under way are on disk and go on after the next start."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._tasks.cancel()
        settled = [current for current in self._rounds.values() if current.settled]
        for current in settled:
            self._forget(current)
        await self._purge()
        await self._disk.do(lambda: None)  # a batch may still be on its way to the disk
        for current in self._rounds.values():
            current.disarm()
            current.spool.close()
        await self.delivery.close()
        await self._disk.close()


def _public(seal: SealKey, release: SealKey | None) -> round_pb2.RoundKeys:
    return round_pb2.RoundKeys(seal=seal.public, release=release.public if release else b"")


def _purging(rounds: Iterable[Round]) -> list[Over]:
    """The rounds that were forgotten, as the store purges them."""
    return [
        Over(each.batch.descriptor, each.batch.state is State.VOIDED, each.batch.doubtful)
        for each in rounds
    ]


def _confirmed(current: Round, request: mix_pb2.ReleaseRequest) -> frozenset[str]:
    """The silos whose signatures on the list hold."""
    digest, confirmed = current.batch.descriptor.digest, set()
    for each in request.confirmations:
        with suppress(ForgedSignature):
            confirmed.add(check_confirmation(each, digest, request.list, current.study))
    return frozenset(confirmed)
