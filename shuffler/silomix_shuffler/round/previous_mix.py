"""The previous mix's batch: taken once, opened, sealed; the same batch again changes nothing."""

import asyncio

from silomix_protocol.host import logs
from silomix_protocol.rounds.batches import IncomingBatch

from silomix_shuffler.batch import State
from silomix_shuffler.errors import SecondBatch, WrongRound
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.intake import Intake
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.sealing import Sealing


class PreviousMix:
    def __init__(self, intake: Intake, sealing: Sealing, tasks: Tasks) -> None:
        self._intake, self._sealing, self._tasks = intake, sealing, tasks

    async def take(self, current: Round, incoming: IncomingBatch) -> None:
        """Take the previous mix's batch; the same batch again changes nothing."""
        async with current.taking:
            if current.batch.state is State.OPEN:
                await self._take(current, incoming)
                return
        async for _ in incoming.reports():  # its sender hears us only when it is done
            pass
        await current.closed.wait()  # the batch may be on its way to the disk
        _check_same(current, incoming)

    async def _take(self, current: Round, incoming: IncomingBatch) -> None:
        if incoming.aborted:
            closing = self._sealing.pass_abort_on(current, incoming)
        else:
            outputs = await self._intake.open_all(current, incoming)
            if current.batch.state is not State.OPEN:
                current.delete_bodies()
                raise WrongRound("this round was aborted here")
            good = sum(current.batch.add(slot, output) for slot, output in enumerate(outputs))
            self._intake.count(good, len(outputs) - good)
            closing = self._sealing.seal(current, incoming.chain)
        await asyncio.shield(self._tasks.start(closing))  # even if the previous mix hangs up


def _check_same(current: Round, incoming: IncomingBatch) -> None:
    if not current.chain:
        raise WrongRound("this round was aborted here")
    taken = [each.output for each in current.chain[: current.hop]]
    if taken != [each.output for each in incoming.chain]:
        logs.warning("second_batch", round=current.batch.descriptor.round)
        raise SecondBatch("another batch for this round was already taken")
