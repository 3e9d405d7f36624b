"""The coordinator: one study from its first round to its model.

Asks the algorithm for a query, plays a round about it with mixes and silos, gives the mean of what
came back to the algorithm.
"""

import asyncio
import time

from flwr.serverapp import Grid
from silomix_core.algorithms.base import Aggregate, Query
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.evaluation.private import Result, measure_of, study_steps
from silomix_proto import channel_pb2_grpc, round_pb2
from silomix_protocol.connections.introduction import Door
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.renewal import Keeper
from silomix_protocol.host import logs
from silomix_protocol.host.durable import note, open_database
from silomix_protocol.host.free_disk import lack_of_room
from silomix_protocol.keys import SigningKey, check_public_keys
from silomix_protocol.rounds.heights import SCHEMA as HEIGHTS
from silomix_protocol.rounds.heights import Height, HeightBook, keep_height, kept_heights

from silomix_server.config import ServerConfig
from silomix_server.errors import StudyFailed
from silomix_server.mixes.mix_chain import MixChain
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.rounds.availability import Membership
from silomix_server.rounds.play_rounds import RoundOutcome, RoundPlayer
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.frames import FrameReader
from silomix_server.silos.leases import LeaseOffice
from silomix_server.silos.round_channel import RoundChannel, call_limits
from silomix_server.silos.settlements import Settlements
from silomix_server.study.holdout import Holdout
from silomix_server.study.journal import ClosedRound, Journal
from silomix_server.study.results import (
    append_progress,
    save_evaluation,
    save_model,
    void_in_a_row,
)

_HEIGHTS_VERSION = 1
_VOID_LIMIT = 3  # void rounds in a row: they cost the silos budget and bring nothing
_LONGEST_PAUSE_S = 600.0  # before another round of a server that is started again


async def run_study(config: ServerConfig, grid: Grid) -> None:
    """Run, or go on with, the configured study; leaves the model in the state folder."""
    coordinator = Coordinator(config, grid)
    keeping = asyncio.create_task(Keeper(config.folder).keep())
    try:
        result = await coordinator.run()
    finally:
        keeping.cancel()
        await coordinator.close()
    study = config.study
    if result.evaluation is not None:
        save_evaluation(config.state, result.evaluation)
    save_model(config.state, study, result.model)
    logs.event("study_completed", study=study.short_id, rounds=study.rounds)


class Coordinator:
    def __init__(self, config: ServerConfig, grid: Grid) -> None:
        study, state = config.study, config.state
        self._config, self._study = config, study
        self._mechanism = study.mechanism()
        sign_key = SigningKey.load(config.folder / "sign.key")
        check_public_keys(study)
        if study.server.sign_key != sign_key.public:
            raise StudyFailed(f"study {study.short_id} lists another signing key for this server")
        identity = Identity.load(config.name, config.folder)
        self._journal = Journal(state / f"journal-{study.short_id}.sqlite")
        self._tokens = TokenDesk(study, state) if study.batching.tokens else None
        self._chain = MixChain(study, identity, state)
        complaints = ComplaintBox(study, state)
        settlements = Settlements(study, sign_key, self._journal, self._chain, complaints)
        reader = FrameReader(study, self._tokens, complaints, settlements)
        introduced = (study,) if config.inspected_listen else ()
        door = Door(config.name, identity.authority, introduced)
        self._heights = open_database(state / "heights.sqlite", HEIGHTS, _HEIGHTS_VERSION)
        heights = HeightBook(kept_heights(self._heights), self._keep_height)
        sync = self._journal.sync
        self._channel = RoundChannel(study, reader, door, sign_key, heights, sync)
        office = LeaseOffice(study, grid, identity.revocations)
        self._membership = Membership(config, office, self._channel, self._chain, self._tokens)
        self._rounds = RoundPlayer(
            study,
            self._mechanism,
            sign_key,
            self._journal,
            self._membership,
            self._chain,
            self._channel,
            self._tokens,
            settlements,
        )
        self._holdout = Holdout(study.task, config.holdout) if config.holdout else None
        self._server = identity.server(
            config.channel_listen,
            inspected=config.inspected_listen,
            limits=call_limits(study),
        )
        channel_pb2_grpc.add_RoundChannelServicer_to_server(self._channel, self._server)
        self._void_in_a_row = void_in_a_row(state)

    async def run(self) -> Result:
        await self._server.start()
        logs.event("study_started", study=self._study.short_id, rounds=self._study.rounds)
        plan = self._study.algorithm_plan(self._mechanism)
        measure = measure_of(self._study.task)
        steps = study_steps(algorithm(self._study.algorithm), plan, self._mechanism, measure)
        query = next(steps)
        past = self._journal.rounds()
        number = len(past)
        try:
            for earlier, result in enumerate(past, start=1):
                query = steps.send(self._aggregate(earlier, result))
            if past:
                logs.event("study_resumed", after_round=number)
                await self._rounds.settle_left()
            await self._pause()
            while True:
                number += 1
                query = steps.send(await self._round(number, query))
        except StopIteration as finished:
            if all(result.total is None for result in self._journal.rounds()):
                raise StudyFailed("every round was void: there is no model") from None
            await self._membership.close("the study is complete")
            ended: Result = finished.value
            self._show(ended)
            return ended

    async def _pause(self) -> None:
        """Wait before the first round, if too many rounds of earlier processes were void in a row.

        Whoever starts the server again and again must not spend the silos' budget on nothing.
        """
        if self._void_in_a_row >= _VOID_LIMIT:
            pause_s = min(2.0**self._void_in_a_row, _LONGEST_PAUSE_S)
            logs.warning("pause", rounds_void=self._void_in_a_row, seconds=pause_s)
            await asyncio.sleep(pause_s)

    def _show(self, result: Result) -> None:
        found = result.evaluation
        if found is not None:
            error, spread = f"{found.error:.5g}", f"{found.standard_error:.5g}"
            logs.event("model_evaluated", error=error, standard_error=spread)
        elif self._study.held_out:
            logs.warning("model_not_evaluated", reason="the round that asks for it was void")

    async def close(self) -> None:
        self._channel.close_lease("the coordinator stops")
        await self._server.stop(1.0)
        await self._chain.close()
        self._journal.close()
        self._heights.close()
        if self._tokens is not None:
            self._tokens.close()

    def _keep_height(self, sign_key: bytes, height: Height) -> None:
        """Note a height without waiting for the disk: the first mix has every height durably."""
        with note(self._heights):
            keep_height(self._heights, sign_key, height)

    async def _round(self, number: int, query: Query) -> Aggregate | None:
        self._check_room()
        tried_before = bool(self._journal.attempts(number))
        await self._membership.open(number, tried_before=tried_before)
        started = time.perf_counter()
        outcome = await self._rounds.play(number, self._encoded(query))
        void = outcome.result.total is None
        if outcome.asked:  # a round that was skipped cost nobody anything
            self._void_in_a_row = self._void_in_a_row + 1 if void else 0
        self._report_progress(number, query, outcome, time.perf_counter() - started)
        if self._void_in_a_row >= _VOID_LIMIT:
            raise StudyFailed(
                f"{self._void_in_a_row} rounds in a row were void: no batch of at least "
                f"{self._study.batching.minimum} valid reports came through the mixes; "
                "read their logs, then run the server again to go on"
            )
        return self._aggregate(number, outcome.result)

    def _check_room(self) -> None:
        """Refuse without disk space: a round that cannot be stored would be charged for nothing."""
        if (lack := lack_of_room(self._config.state)) is not None:
            raise StudyFailed(
                f"{lack}, and run the server again to go on; no silo was asked and no budget spent"
            )

    def _encoded(self, query: Query) -> bytes:
        """The query's bytes, which the descriptor covers and the silos read."""
        message = round_pb2.Query(point=query.point.astype("<f8").tobytes())
        if query.control is not None:
            message.control = query.control.astype("<f8").tobytes()
        encoded: bytes = message.SerializeToString(deterministic=True)
        return encoded

    def _aggregate(self, number: int, result: ClosedRound) -> Aggregate | None:
        if result.total is None:
            return None
        grid = self._mechanism.grids[self._mechanism.phase_of(number)]
        return Aggregate.of(result.total, result.reports, grid)

    def _report_progress(
        self, number: int, query: Query, outcome: RoundOutcome, seconds: float
    ) -> None:
        line: dict[str, object] = {
            "round": number,
            "asked": outcome.asked,
            "accepted": outcome.accepted,
            "abstained": outcome.abstained,
            "dropped": outcome.dropped,
            "injected": outcome.injected,
            "repeated": outcome.repeated,
            "too_long": outcome.too_long,
            "outlying": outcome.outlying,
            "attempts": outcome.attempts,
            "void": outcome.result.total is None,
            "seconds": round(seconds, 6),
            "closed_at": round(time.time(), 6),
        }
        if self._holdout is not None:  # the score of the model before this round's step
            line |= self._holdout.score(query.model)
        append_progress(self._config.state, line)
        logs.event(
            "round_closed",
            round=number,
            accepted=outcome.accepted,
            abstained=outcome.abstained,
            asked=outcome.asked,
        )
