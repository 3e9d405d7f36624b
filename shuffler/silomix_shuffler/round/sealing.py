"""The closing of a batch: its order drawn, a statement signed, on disk, and handed on."""

import secrets
import sqlite3
from hashlib import sha256

from silomix_proto import round_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.batches import IncomingBatch
from silomix_protocol.rounds.statements import input_of, sign_hop

from silomix_shuffler.batch import BatchOutcome, State
from silomix_shuffler.errors import NoRoom
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.delivery import Delivery
from silomix_shuffler.round.round import Chain, Round
from silomix_shuffler.storage.writing_thread import WritingThread


class Sealing:
    def __init__(
        self,
        sign_key: SigningKey,
        disk: WritingThread,
        delivery: Delivery,
        metrics: Metrics,
        tasks: Tasks,
    ) -> None:
        self._sign_key = sign_key
        self._disk = disk
        self._delivery = delivery
        self._metrics = metrics
        self._tasks = tasks
        self.shuffle = secrets.SystemRandom().shuffle

    async def seal(self, current: Round, chain: Chain = ()) -> None:
        """Seal the reports at hand, after the earlier mixes' `chain`; below the minimum, abort."""
        if current.batch.state is not State.OPEN:
            return  # somebody else saw that it was complete
        outcome = current.batch.seal(self.shuffle)
        if not outcome.aborted and self._somebody_waits(current):
            current.batch.forward()
        await self._close(current, chain, outcome)

    async def pass_abort_on(self, current: Round, incoming: IncomingBatch) -> None:
        """Abort the round here too, as the previous mix has no batch."""
        current.batch.abort()
        await self._close(current, incoming.chain, BatchOutcome(0, (), (), incoming.aborted))

    def hand_on(self, current: Round) -> None:
        if not current.last and not current.delivered and current.chain:
            self._tasks.start(self._delivery.deliver(current))

    def _somebody_waits(self, current: Round) -> bool:
        return current.collectors > 0 if current.last else self._delivery.ready(current)

    async def _close(self, current: Round, chain: Chain, outcome: BatchOutcome) -> None:
        """Write down what became of the batch, then hand it on."""
        current.disarm()
        descriptor = current.batch.descriptor
        statement = sign_hop(descriptor.digest, _statement(current, chain, outcome), self._sign_key)
        stated = (*chain, statement)
        if current.last and not outcome.aborted:  # what it hands over is what it stands by
            current.batch.stand_by(statement.output)
        try:
            await self._disk.do(self._write_down, current, current.batch.state, stated, outcome)
        except (OSError, sqlite3.Error) as error:
            current.fail("this mix could not write the batch down")
            raise NoRoom(current.reason) from error
        if current.batch.state is State.ABORTED and not outcome.aborted:
            return  # abandoned while this was being written
        current.seal(stated, outcome)
        logs.event(
            "batch_aborted" if outcome.aborted else "batch_sealed",
            round=descriptor.round,
            received=outcome.received,
            forwarded=len(outcome.sequence),
            dropped=outcome.dropped,
        )
        self._metrics.batches.labels("aborted" if outcome.aborted else "sealed").inc()
        self.hand_on(current)

    def _write_down(
        self,
        current: Round,
        state: State,
        stated: Chain,
        outcome: BatchOutcome,
    ) -> None:
        """Store, on the writing thread, bodies that came as a batch, then what names them."""
        descriptor, store = current.batch.descriptor, self._disk.store
        if current.hop and not outcome.aborted:
            current.spool.rename(store.body(descriptor.digest))
        store.seal(
            descriptor,
            outcome.sequence,
            stated,
            state,
            outcome.aborted,
            current.batch.committed,
            gate=current.study.batching.gate,
        )


def _statement(current: Round, chain: Chain, outcome: BatchOutcome) -> round_pb2.HopStatement:
    """This mix's statement about the batch, unsigned."""
    onions = current.batch.admitted.values()
    came_in = sha256(chain[-1].output).digest() if chain else input_of(onions)
    return round_pb2.HopStatement(
        hop=current.hop,
        received=outcome.received,
        forwarded=len(outcome.sequence),
        dropped=outcome.dropped,
        input=came_in,
        output=b"".join(outcome.outputs),
        aborted=outcome.aborted,
    )
