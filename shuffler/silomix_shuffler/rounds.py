"""The open rounds of a mix: opened once, sealed once, handed on, released, purged.

Stands between the RPC edge (`service`) and the batch of each round (`batch`, without I/O): timers,
background work and the order of steps live here.  What others rely on is on disk (`disk`,
`store`) before they hear of it.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256

from silomix_core.report import report_bytes
from silomix_core.study import Study, StudyId
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol import logs
from silomix_protocol.batches import IncomingBatch, chain_wait_s
from silomix_protocol.descriptor import Descriptor, RoundDigest, check, study_of
from silomix_protocol.keys import ForgedSignature, SealKey, SigningKey
from silomix_protocol.roundkeys import fingerprint, sign_list
from silomix_protocol.statements import check_confirmation, sign_abandonment, sign_commitment
from silomix_protocol.tls import Identity
from silomix_protocol.tokens import payload_bytes

from silomix_shuffler.attendance import Attendance
from silomix_shuffler.batch import Batch, State
from silomix_shuffler.config import Limits
from silomix_shuffler.delivery import Delivery
from silomix_shuffler.disk import Disk
from silomix_shuffler.errors import NoRoom, Refused, SecondBatch, TooMuch, WrongRound, WrongSender
from silomix_shuffler.intake import Intake
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round import Round, place
from silomix_shuffler.sealing import Sealing
from silomix_shuffler.store import SavedRound
from silomix_shuffler.tasks import Tasks
from silomix_shuffler.upload import Upload

_STREAMS_PER_STUDY = 2  # of one silo: a new one may come before the old one is known to be broken
_UNUSED_KEYS_S = 86_400.0  # how long keys wait for their round
_RECEIPT_S = 0.05  # how long the receipts of a complete batch wait for it to leave
_FEW = 32  # signatures that are checked at once, without a thread of their own
_ROUNDS_KEPT = 2  # finished ones of a study, for questions that come again

_Keys = tuple[SealKey, SealKey | None, bytes]  # seal, release, their fingerprint


class Rounds:
    """What one mix has in its hands; its place in a chain follows from the study file."""

    def __init__(
        self,
        identity: Identity,
        studies: tuple[Study, ...],
        sign_key: SigningKey,
        disk: Disk,
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
        self._unpurged: dict[RoundDigest, Round] = {}  # forgotten here, still on disk
        self._at_hand: dict[tuple[StudyId, int], dict[int, _Keys]] = {}  # of the last stretches
        self._opening: dict[RoundDigest, asyncio.Task[Round]] = {}
        self._attendance = Attendance()
        self._intake = Intake(disk, metrics)
        self.delivery = Delivery(identity, disk, metrics)
        self._tasks = Tasks()
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
        """Keys for rounds to come, made once, and this mix's word for them."""
        study = self.study(request.study)
        rounds = range(request.first_round, request.first_round + request.rounds)
        made = await self._disk.do(
            self._store.prepare,
            study.identity,
            request.attempt,
            rounds,
            gate=study.batching.gate,
        )
        keys = [_public(*each) for each in made]
        self._at_hand[study.identity, request.attempt] = {
            number: (*each, fingerprint(public))
            for number, each, public in zip(rounds, made, keys, strict=True)
        }
        listed = sign_list(study, request.attempt, request.first_round, keys, self._sign_key)
        return mix_pb2.PreparedRounds(list=listed, keys=keys)

    async def open(self, signed: round_pb2.SignedDescriptor) -> Round:
        """The open round of this descriptor, made on first sight and bound to it for good."""
        study = self.study(study_of(signed))
        descriptor = check(signed, study)
        known = self._rounds.get(descriptor.digest)
        if known is not None:
            if known.batch.state in (State.ABORTED, State.PURGED):
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
        self._check_room(current)
        at_hand = self._at_hand.get((study.identity, descriptor.attempt), {})
        keys, over = at_hand.pop(descriptor.round, None), self._forget_old(study)
        bound = await self._disk.do(self._bind, current, keys, over)
        self._purged(over)
        current.seal_key, current.release_key = bound
        self._rounds[descriptor.digest] = current
        current.arm(chain_wait_s(descriptor.deadline_s, current.hop), self._at_deadline)
        logs.event("round_opened", round=descriptor.round, attempt=descriptor.attempt)
        if not current.last:
            self.delivery.ready(current)  # connect before there is something to send
        return current

    def _bind(
        self, current: Round, keys: "_Keys | None", over: Sequence[Round]
    ) -> tuple[SealKey, SealKey | None]:
        """Bind the attempt to its descriptor for good; our keys, which it names.

        On the writing thread, in one go; the store has the last word on `keys`.  Rounds that are
        `over` are purged with it: that costs no commit of its own.
        """
        descriptor = current.batch.descriptor
        seal_key, release_key, own = keys or self._stored_keys(descriptor)
        if seal_key is None or own != descriptor.mix_keys[current.hop]:
            if self._store.known(descriptor.digest) is not None:
                raise WrongRound("this round is over")
            raise WrongRound("this mix has no such keys for the round; ask it for keys again")
        self._store.open(descriptor, seal_key, over=_descriptors(over))
        for each in over:
            with suppress(OSError):  # what stays is swept at the next start
                each.spool.delete()
        return seal_key, release_key

    def _stored_keys(self, descriptor: Descriptor) -> tuple[SealKey | None, SealKey | None, bytes]:
        """Seal and release key of an attempt, and their fingerprint."""
        seal_key, release_key = self._store.keys(descriptor)
        own = b"" if seal_key is None else fingerprint(_public(seal_key, release_key))
        return seal_key, release_key, own

    def _make(self, study: Study, batch: Batch) -> Round:
        hop = place(study, self.name)
        return Round.of(study, hop, batch, self._payload[study.identity], self._disk)

    def _check_room(self, wanted: Round) -> None:
        taken = self._body_bytes()
        free = shutil.disk_usage(self._store.bodies).free
        if (
            taken + wanted.body_bytes > self.limits.disk_bytes
            or free - wanted.body_bytes < self.limits.free_disk_bytes
        ):
            logs.warning("no_room", free_mb=free // 10**6, taken_mb=taken // 10**6)
            raise NoRoom("this mix has no room on its disk for another batch")

    # Reports from silos (first mix) ---------------------------------------------------------------

    async def admit(self, current: Round, silo: str, upload: Upload) -> None:
        """Take a silo's report into the round, durably; the same one again changes nothing.

        The upload is ours from here on.
        """
        try:
            fresh = current.batch.admit(silo, upload.digest)
        except Refused:
            upload.close()
            raise
        if fresh:
            if len(current.batch.admitted) == 1:
                current.arm(current.batch.descriptor.deadline_s, self._at_deadline)
            current.keeping[silo] = self._tasks.start(self._keep(current, silo, upload))
        else:
            upload.close()
        if silo in current.keeping:  # goes on even if the silo hangs up
            await asyncio.shield(current.keeping[silo])
            if not current.batch.waits:
                await self._let_pass(current)

    async def _let_pass(self, current: Round) -> None:
        """Once the batch is complete it goes first: a silo needs its receipt before the list."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECEIPT_S):
                await current.left.wait()

    async def _keep(self, current: Round, silo: str, upload: Upload) -> None:
        try:
            await self._intake.keep(current, silo, upload)
            self._attendance.answered(current.study.identity, silo)
        finally:
            del current.keeping[silo]
            self._seal_if_complete(current)  # also without it: the deadline may have passed

    # A batch from the previous mix ----------------------------------------------------------------

    def serves_with(self, mix: str) -> bool:
        """Whether a study here has that mix in its chain."""
        return any(mix == each.name for study in self._studies.values() for each in study.mixes)

    async def take(self, current: Round, incoming: IncomingBatch) -> None:
        """Take the previous mix's batch; the same one again changes nothing."""
        async with current.taking:
            if current.batch.state is State.OPEN:
                await self._take(current, incoming)
                return
        async for _ in incoming.reports():  # its sender hears us only when it is done
            pass
        await current.closed.wait()  # it may be on its way to the disk
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

    # Abandoning, releasing, purging --------------------------------------------------------------

    async def abandon(self, signed: round_pb2.SignedDescriptor) -> round_pb2.Abandonment:
        """This mix's word that it forwarded nothing for D and never will, if that is so."""
        study = self.study(study_of(signed))
        descriptor = check(signed, study)
        opening = self._opening.get(descriptor.digest)
        if opening is not None:
            await asyncio.wait([opening])
        current = self._rounds.get(descriptor.digest)
        reason = "abandoned by the coordinator"
        if current is not None:
            reason = await self._abort(current, reason)
        else:
            known = await self._disk.do(self._store.known, descriptor.digest)
            if known is None:
                await self._disk.do(self._store.open, descriptor, abandoned=reason)
            elif known[1]:
                reason = known[1]
            else:
                raise WrongRound("the batch of this round may have been forwarded")
        return sign_abandonment(descriptor.digest, reason, self._sign_key)

    async def _abort(self, current: Round, reason: str) -> str:
        """Abort for good; why it was aborted (maybe earlier, for another reason)."""
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

    async def commit(self, request: mix_pb2.CommitRequest) -> bytes:
        """This mix's word for the list that the server commits to, given for one list only.

        Without it a server could show each silo another list and see who finds itself in it.
        """
        current = self.round(request.digest)
        if len(request.list) != sha256().digest_size:
            raise WrongRound("the hash of a list has 32 bytes")
        own = current.chain[-1].output if current.last and current.chain else None
        if own is not None and request.list != sha256(own).digest():
            raise WrongRound("the list is not the batch that this mix handed over")
        before, digest = current.batch.committed, current.batch.descriptor.digest
        current.batch.commit(request.list)
        try:
            await self._disk.do(self._store.committed, digest, request.list)
        except (OSError, sqlite3.Error):
            current.batch.committed = before
            raise
        return sign_commitment(digest, request.list, self._sign_key)

    def own_commitment(self, current: Round) -> bytes:
        """The last mix's word for what it hands over; none if that is nothing."""
        if current.batch.state is State.ABORTED:
            return b""
        return sign_commitment(
            current.batch.descriptor.digest, current.batch.committed, self._sign_key
        )

    async def release(self, request: mix_pb2.ReleaseRequest) -> bytes:
        """The release key of a round, against enough silos' confirmations of one list."""
        current = self.round(request.digest)
        if not current.study.batching.gate:
            raise WrongRound("this study has no gate")
        if len(request.confirmations) > len(current.study.silos):
            raise TooMuch("more confirmations than silos")
        if len(request.confirmations) > _FEW:
            confirmed = await asyncio.to_thread(_confirmed, current, request)
        else:
            confirmed = _confirmed(current, request)
        before = current.batch.state
        current.batch.release(request.list, confirmed)
        descriptor = current.batch.descriptor
        if before is not State.RELEASED:
            self._tasks.start(self._released(current))
            logs.event("gate_opened", round=descriptor.round, confirmed=len(confirmed))
        if current.release_key is None:
            raise WrongRound("the release key of this round is gone")
        return current.release_key.raw

    async def _released(self, current: Round) -> None:
        """Write down that the key is given away, and forget what nobody will ask about again.

        The key does not wait for it: whoever has confirmations of the committed list gets it.
        """
        over = self._forget_old(current.study)
        spools = [current.spool] * current.last + [each.spool for each in over]
        await self._disk.then_delete(
            spools,
            self._store.released,
            current.batch.descriptor.digest,
            last=current.last,
            over=_descriptors(over),
        )
        self._purged(over)
        current.delivered |= current.last

    def _forget_old(self, study: Study) -> list[Round]:
        """Forget finished rounds beyond those that are kept; all that are to be purged on disk."""
        finished = [each for each in self._rounds.values() if each.study is study and each.finished]
        for old in finished[:-_ROUNDS_KEPT]:
            self._forget(old)
        return list(self._unpurged.values())

    def _forget(self, current: Round) -> None:
        """Before anything is awaited: nobody finds it any more, nothing brings it back."""
        current.disarm()
        digest = current.batch.descriptor.digest
        self._rounds.pop(digest, None)
        self._unpurged[digest] = current
        current.batch.purge()
        current.chain, current.sequence = (), ()
        current.seal_key = current.release_key = None
        current.closed.set()

    async def _purge(self) -> None:
        """Purge forgotten rounds on disk too."""
        over = list(self._unpurged.values())
        if over:
            spools = [each.spool for each in over]
            await self._disk.then_delete(spools, self._store.purge, _descriptors(over))
            self._purged(over)

    def _purged(self, over: Iterable[Round]) -> None:
        """They are gone on disk too; those of a step that failed are purged with the next one."""
        for each in over:
            self._unpurged.pop(each.batch.descriptor.digest, None)

    async def _expire(self) -> None:
        """Purge what nobody asked about for long; cut the log that still has deleted keys."""
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
        await self._disk.do(self._store.forget_others, self._studies)
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
        current.batch.committed = saved.committed
        for kept in saved.reports:
            if kept.silo is not None and kept.onion is not None:
                current.batch.admitted[kept.silo] = kept.onion
            current.batch.add(kept.slot, kept.output)
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
        """What an operator should look at now (called from another thread)."""
        found = []
        free = shutil.disk_usage(self._store.bodies).free
        if free < self.limits.free_disk_bytes:
            found.append(f"only {free // 10**6} MB of disk are free")
        found += self.delivery.problems()
        return found

    def _open_rounds(self) -> int:
        """Called when somebody reads the metrics, from another thread; so is the next one."""
        return sum(not each.finished for each in list(self._rounds.values()))

    def _body_bytes(self) -> int:
        return sum(each.body_bytes for each in list(self._rounds.values()) if each.has_bodies)

    async def close(self) -> None:
        """Stop; what is under way is on disk and goes on after the next start."""
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


def _descriptors(rounds: Iterable[Round]) -> list[Descriptor]:
    return [each.batch.descriptor for each in rounds]


def _confirmed(current: Round, request: mix_pb2.ReleaseRequest) -> frozenset[str]:
    """Silos of the round whose signatures on the list hold; as many as are needed, not more."""
    descriptor = current.batch.descriptor
    confirmed: set[str] = set()
    for each in request.confirmations:
        try:
            confirmed.add(check_confirmation(each, descriptor.digest, request.list, current.study))
        except ForgedSignature:
            continue
        if len(confirmed) >= descriptor.minimum_batch and confirmed <= set(descriptor.silos):
            break
    return frozenset(confirmed)
