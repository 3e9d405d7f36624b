"""How long a mix waits for a round's reports, or for its batch, and what happens then."""

from silomix_protocol.host import logs
from silomix_protocol.rounds.batches import chain_wait_s

from silomix_shuffler.batch import State
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.expected_silos import ExpectedSilos
from silomix_shuffler.round.failed_rounds import FailedRounds
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.sealing import Sealing


class Deadlines:
    def __init__(
        self, expected: ExpectedSilos, sealing: Sealing, failed: FailedRounds, tasks: Tasks
    ) -> None:
        self._expected, self._sealing = expected, sealing
        self._failed, self._tasks = failed, tasks

    def await_batch(self, current: Round) -> None:
        """Begin to wait for the first report, or for the previous mix's batch."""
        wait_s = chain_wait_s(current.batch.descriptor.deadline_s, current.hop)
        current.arm(wait_s, self._at_deadline)

    def await_reports(self, current: Round) -> None:
        """Begin to wait for all other reports, or for the rest of a batch."""
        current.arm(current.batch.descriptor.deadline_s, self._at_deadline)

    def seal_if_complete(self, current: Round) -> None:
        gone = self._expected.gone(current.study.identity, current.batch.descriptor.round)
        if current.batch.complete(gone):
            current.batch.close()  # nobody is admitted between this and the sealing
            self._tasks.start(self._sealing.seal(current))

    def _at_deadline(self, current: Round) -> None:
        if current.batch.state is not State.OPEN:
            return
        logs.warning("round_deadline", round=current.batch.descriptor.round)
        if current.hop == 0:
            self._close(current)
        elif current.may_extend():
            self.await_reports(current)
        else:
            self._tasks.start(self._failed.abort(current, "no batch came in time"))

    def _close(self, current: Round) -> None:
        number = current.batch.descriptor.round
        for silo in current.batch.missing():
            self._expected.missed(current.study.identity, silo, number)
        current.batch.close()
        self.seal_if_complete(current)
