"""The open rounds of a mix: opened once, released once, passed on to the next in the chain.

Stands between the RPC edge (`service`) and the batch of each round (`batch`, without I/O): timers,
background work, the register of opened rounds and the connection to the next mix live here.
"""

import asyncio
import random
import secrets
from dataclasses import dataclass, field

import grpc
import grpc.aio
from silomix_core.study import Study, StudyId
from silomix_proto import mix_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.batches import Batch, chain_wait_s, frames
from silomix_protocol.descriptor import Descriptor, RoundDigest, study_of
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.onion import UnopenableLayer, encapsulated_key, open_layer
from silomix_protocol.tls import Identity

from silomix_shuffler.attendance import Attendance
from silomix_shuffler.batch import OpenBatch, State
from silomix_shuffler.errors import WrongRound, WrongSender
from silomix_shuffler.register import RoundRegister

_STREAMS_PER_STUDY = 2  # of one silo: a new one may come before the old one is known to be broken
_FORWARD_TRIES = 4
_FORWARD_TIMEOUT_S = 60.0
_ROUNDS_REMEMBERED = 4
_OPEN_ROUNDS = 16  # of one study at once; a coordinator that behaves has one or two


@dataclass(slots=True)
class Round:
    """One open round with what the event loop needs around its batch."""

    study: Study
    batch: OpenBatch
    outcome: asyncio.Future[Batch] = field(default_factory=asyncio.Future)
    deadline: asyncio.TimerHandle | None = None


class Rounds:
    """What one mix has in its hands; its place in a chain follows from the study file."""

    def __init__(
        self,
        identity: Identity,
        studies: tuple[Study, ...],
        sign_key: SigningKey,
        seal_key: SealKey,
        register: RoundRegister,
        grace_s: float,
    ) -> None:
        self._identity = identity
        self._studies: dict[StudyId, Study] = {study.identity: study for study in studies}
        self._sign_key, self._seal_key = sign_key, seal_key
        self._register = register
        self._grace_s = grace_s
        self._rounds: dict[RoundDigest, Round] = {}
        self._attendance = Attendance()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._shuffle = secrets.SystemRandom().shuffle

    # Studies and rounds -------------------------------------------------------------------------

    def study(self, signed: round_pb2.SignedDescriptor) -> Study:
        study = self._studies.get(study_of(signed))
        if study is None:
            raise WrongRound("this mix does not serve that study")
        return study

    def hop(self, study: Study) -> int:
        return [mix.name for mix in study.mixes].index(self._identity.name)

    def open(self, study: Study, descriptor: Descriptor) -> Round:
        """The open round of this descriptor, made on first sight and bound to it for good."""
        current = self._rounds.get(descriptor.digest)
        if current is not None:
            return current
        pending = [entry for entry in self._rounds.values() if not entry.outcome.done()]
        if sum(entry.study is study for entry in pending) >= _OPEN_ROUNDS:
            raise WrongRound("too many rounds of this study are open")
        if not self._register.open(descriptor):
            raise WrongRound("this round is over")
        current = Round(study, OpenBatch(descriptor))
        # The first mix counts from the first report; the others may hear of the round earlier.
        hop = self.hop(study)
        wait_s = descriptor.deadline_s if hop == 0 else chain_wait_s(descriptor.deadline_s, hop)
        loop = asyncio.get_running_loop()
        current.deadline = loop.call_later(wait_s, self._at_deadline, current)
        self._rounds[descriptor.digest] = current
        self._forget_old_rounds(study)
        logs.event("round_opened", round=descriptor.round, waits_for=len(descriptor.silos))
        return current

    def _forget_old_rounds(self, study: Study) -> None:
        """Keep a few finished rounds for late readers; `register` remembers all of them."""
        mine = [entry for entry in self._rounds.values() if entry.study is study]
        for old in mine[:-_ROUNDS_REMEMBERED]:
            if old.outcome.done():
                del self._rounds[old.batch.descriptor.digest]

    # Reports in -----------------------------------------------------------------------------------

    def admit(self, current: Round, silo: str, onion: bytes, digest: bytes) -> None:
        """Take a silo's report into the round; the same one again changes nothing."""
        if current.batch.admit(silo, digest):
            self._attendance.answered(current.study.identity, silo)
            self._start(self._add(current, onion))

    def take(self, current: Round, received: Batch) -> None:
        """Take the previous mix's batch; it goes its way even if the sender hangs up."""
        self.check_untaken(current)
        self._cancel_deadline(current)
        self._start(self._mix(current, received))

    def check_untaken(self, current: Round) -> None:
        if current.batch.state is not State.OPEN or current.deadline is None:
            raise WrongRound("a batch for this round was already taken")

    async def _add(self, current: Round, onion: bytes) -> None:
        opened = await self._opened(current, onion)
        current.batch.add(encapsulated_key(onion), opened)
        self._release_if_complete(current)

    async def _mix(self, current: Round, received: Batch) -> None:
        """Open, permute and pass on a batch of the previous mix."""
        if received.aborted:
            current.batch.release(self._shuffle)
            await self._pass_on(current, received)
            return
        for onion in received.reports:
            current.batch.add(encapsulated_key(onion), await self._opened(current, onion))
        await self._pass_on(current, current.batch.release(self._shuffle))

    async def _opened(self, current: Round, onion: bytes) -> bytes | None:
        """One layer less, or None for what is not a layer of ours."""
        hop, digest = self.hop(current.study), current.batch.descriptor.digest
        try:
            if len(onion) < 2**16:
                return open_layer(onion, self._seal_key, hop, digest)
            return await asyncio.to_thread(open_layer, onion, self._seal_key, hop, digest)
        except UnopenableLayer:
            return None
        except Exception as error:  # an admitted report is counted, whatever happens to it
            logs.warning("layer_failed", error=type(error).__name__)
            return None

    # Batches out ----------------------------------------------------------------------------------

    def _release_if_complete(self, current: Round) -> None:
        number = current.batch.descriptor.round
        gone = self._attendance.gone(current.study.identity, number)
        if current.batch.complete(gone):
            self._release(current)

    def _at_deadline(self, current: Round) -> None:
        if current.batch.state is State.OPEN:
            logs.warning("round_deadline", round=current.batch.descriptor.round)
            if self.hop(current.study) == 0:
                for silo in current.batch.missing():
                    self._attendance.missed(
                        current.study.identity, silo, current.batch.descriptor.round
                    )
            current.batch.close()
            self._release_if_complete(current)

    def _release(self, current: Round) -> None:
        self._cancel_deadline(current)
        self._start(self._pass_on(current, current.batch.release(self._shuffle)))

    def _cancel_deadline(self, current: Round) -> None:
        if current.deadline is not None:
            current.deadline.cancel()
            current.deadline = None

    async def _pass_on(self, current: Round, batch: Batch) -> None:
        logs.event(
            "batch_aborted" if batch.aborted else "batch_released",
            round=batch.descriptor.round,
            received=batch.counts.received,
            forwarded=batch.counts.forwarded,
            dropped=batch.counts.dropped,
        )
        hop = self.hop(current.study)
        last = hop == len(current.study.mixes) - 1
        try:
            if not last:
                await self._forward(current.study, hop + 1, batch)
        finally:
            kept = batch.reports if last else ()
            if not current.outcome.done():
                current.outcome.set_result(
                    Batch(batch.descriptor, kept, batch.counts, batch.aborted)
                )

    async def _forward(self, study: Study, hop: int, batch: Batch) -> None:
        """Hand the batch to the next mix; a few tries, then the round is lost (never repeated)."""
        target = study.mixes[hop]
        channel = self._channels.get(target.name)
        if channel is None:
            channel = self._identity.channel(target.name, target.address)
            self._channels[target.name] = channel
        stub = mix_pb2_grpc.MixStub(channel)
        for attempt in range(_FORWARD_TRIES):
            try:
                await stub.Forward(
                    frames(batch, self._sign_key), timeout=_FORWARD_TIMEOUT_S, wait_for_ready=True
                )
                return
            except grpc.aio.AioRpcError as error:
                final = error.code() is not grpc.StatusCode.UNAVAILABLE
                logs.warning("forward_failed", to=target.name, code=error.code().name)
                if final:
                    return
                await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311 jitter

    # Silos coming and going ---------------------------------------------------------------------

    def connect(self, silo: str) -> None:
        enrolled = sum(study.silo(silo) is not None for study in self._studies.values())
        if not enrolled:
            raise WrongSender("no study here enrols you")
        if self._attendance.streams(silo) >= _STREAMS_PER_STUDY * enrolled:
            raise WrongSender("you have other streams open")
        self._attendance.connected(silo)

    def disconnect(self, silo: str) -> None:
        if self._attendance.disconnected(silo):
            asyncio.get_running_loop().call_later(self._grace_s, self._give_up_on, silo)

    def _give_up_on(self, silo: str) -> None:
        """Stop waiting for a silo that did not come back; rounds open now may be complete."""
        self._attendance.gave_up(silo)
        for current in list(self._rounds.values()):
            if self.hop(current.study) == 0:
                self._release_if_complete(current)

    # Life of the process ------------------------------------------------------------------------

    def _start(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.warning("task_failed", error=repr(error))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for current in self._rounds.values():
            self._cancel_deadline(current)
            current.outcome.cancel()
        for channel in self._channels.values():
            await channel.close()
        self._register.close()
