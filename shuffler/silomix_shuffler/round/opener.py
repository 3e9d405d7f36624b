"""The beginning of a round: keys made and signed for rounds to come, each opened once."""

import asyncio

from silomix_core.study.study import Study
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check, study_of
from silomix_protocol.rounds.round_keys import fingerprint, sign_list

from silomix_shuffler.batch import Batch, State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.round.admission import Admission
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.deadlines import Deadlines
from silomix_shuffler.round.delivery import Delivery
from silomix_shuffler.round.open_rounds import OpenRounds, purging
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.served_studies import ServedStudies
from silomix_shuffler.storage.store import Over
from silomix_shuffler.storage.writing_thread import WritingThread


class Opener:
    def __init__(
        self,
        served: ServedStudies,
        rounds: OpenRounds,
        disk: WritingThread,
        sign_key: SigningKey,
        tasks: Tasks,
        deadlines: Deadlines,
        admission: Admission,
        delivery: Delivery,
    ) -> None:
        self._served, self._rounds, self._disk = served, rounds, disk
        self._sign_key, self._tasks = sign_key, tasks
        self._deadlines, self._admission, self._delivery = deadlines, admission, delivery
        self._opening: dict[RoundDigest, asyncio.Task[Round]] = {}

    async def prepare(self, request: mix_pb2.PrepareRequest) -> mix_pb2.PreparedRounds:
        """Make the keys for rounds to come, once, and sign them.

        Refused without disk space for a batch: an attempt that is only refused when it is opened is
        used up, and a round has eight.
        """
        study, attempt = self._served.find(request.study), request.attempt
        self._rounds.check_room(self._served.batch_bytes(study))
        rounds = range(request.first_round, request.first_round + request.rounds)
        prepare, gate = self._disk.store.prepare, study.batching.gate
        made = await self._disk.do(prepare, study.identity, attempt, rounds, gate=gate)
        keys = [_public(*each) for each in made]
        listed = sign_list(study, attempt, request.first_round, keys, self._sign_key)
        return mix_pb2.PreparedRounds(list=listed, keys=keys)

    async def open(self, signed: round_pb2.SignedDescriptor) -> Round:
        """The open round of this descriptor, made on first sight and bound to it for good."""
        study = self._served.find(study_of(signed))
        descriptor = check(signed, study)
        known = self._rounds.find(descriptor.digest)
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

    async def opened(self, signed: round_pb2.SignedDescriptor) -> tuple[Descriptor, Round | None]:
        """The checked descriptor, and its round if that is in our hands."""
        descriptor = check(signed, self._served.find(study_of(signed)))
        opening = self._opening.get(descriptor.digest)
        if opening is not None:
            await asyncio.wait([opening])
        return descriptor, self._rounds.find(descriptor.digest)

    async def _open(self, study: Study, descriptor: Descriptor) -> Round:
        self._rounds.check_number(study)
        current = self._served.round(study, Batch(descriptor))
        self._rounds.check_room(current.body_bytes)
        over = self._rounds.forget_old(study)
        current.use_keys(*await self._disk.do(self._bind, current, purging(over)))
        self._rounds.purged(over)
        self._rounds.add(current)
        self._deadlines.await_batch(current)
        if current.hop == 0:
            self._admission.watch(descriptor.silos)
        logs.event("round_opened", round=descriptor.round, attempt=descriptor.attempt)
        if not current.last:
            self._delivery.ready(current)  # connect before there is something to send
        return current

    def _bind(self, current: Round, over: list[Over]) -> tuple[SealKey, SealKey | None]:
        """Bind the attempt to its descriptor for good; return our keys, which it names.

        Runs on the writing thread, in one go.  Rounds that are `over` are purged with it: that
        costs no commit of its own.
        """
        descriptor, store = current.batch.descriptor, self._disk.store
        seal_key, release_key = store.keys(descriptor)
        named = descriptor.mix_keys[current.hop]
        if seal_key is None or fingerprint(_public(seal_key, release_key)) != named:
            if store.known(descriptor.digest) is not None:
                raise WrongRound("this round is over")
            raise WrongRound("this mix has no such keys for the round; ask it for keys again")
        store.open(descriptor, seal_key, over=over)
        return seal_key, release_key


def _public(seal: SealKey, release: SealKey | None) -> round_pb2.RoundKeys:
    return round_pb2.RoundKeys(seal=seal.public, release=release.public if release else b"")
