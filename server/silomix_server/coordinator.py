"""The coordinator: one study from its first round to its model.

Asks the algorithm for a query, plays a round about it with mixes and silos, gives the mean of what
came back to the algorithm.
"""

import asyncio
import time

from flwr.serverapp import Grid
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.algorithms.seam import Aggregate, Query
from silomix_core.private_evaluation import Result, measure_of, study_steps
from silomix_proto import channel_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.introduction import Door
from silomix_protocol.keys import SigningKey, check_public_keys
from silomix_protocol.renewal import Keeper
from silomix_protocol.tls import Identity

from silomix_server.chain import MixChain
from silomix_server.channel import RoundChannel
from silomix_server.complaint_box import ComplaintBox
from silomix_server.config import ServerConfig
from silomix_server.errors import StudyFailed
from silomix_server.frames import FrameReader
from silomix_server.holdout import Holdout
from silomix_server.journal import ClosedRound, Journal
from silomix_server.leases import LeaseOffice
from silomix_server.membership import Membership
from silomix_server.results import append_progress, save_evaluation, save_model
from silomix_server.rounds import Outcome, Rounds
from silomix_server.token_desk import TokenDesk

_VOID_LIMIT = 3  # void rounds in a row: they cost the silos budget and bring nothing


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
        reader = FrameReader(study, self._tokens, ComplaintBox(study, state))
        introduced = (study,) if config.inspected_listen else ()
        door = Door(config.name, identity.authority, introduced)
        self._channel = RoundChannel(study, reader, door, sign_key)
        office = LeaseOffice(study, grid, identity.revocations)
        self._membership = Membership(config, office, self._channel, self._chain, self._tokens)
        self._rounds = Rounds(
            study,
            self._mechanism,
            sign_key,
            self._journal,
            self._membership,
            self._chain,
            self._channel,
            self._tokens,
        )
        self._holdout = Holdout(study.task, config.holdout) if config.holdout else None
        self._server = identity.server(config.channel_listen, inspected=config.inspected_listen)
        channel_pb2_grpc.add_RoundChannelServicer_to_server(self._channel, self._server)
        self._void_in_a_row = 0
        self._void: list[int] = []  # rounds whose reports were not used

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
        if self._tokens is not None:
            self._tokens.close()

    async def _round(self, number: int, query: Query) -> Aggregate | None:
        tried_before = bool(self._journal.attempts(number))
        await self._membership.open(number, tried_before=tried_before)
        started = time.perf_counter()
        outcome = await self._rounds.play(number, self._encoded(query))
        void = outcome.result.total is None
        self._void_in_a_row = self._void_in_a_row + 1 if void else 0
        self._report_progress(number, query, outcome, time.perf_counter() - started)
        if self._void_in_a_row >= _VOID_LIMIT:
            raise StudyFailed(
                f"{_VOID_LIMIT} rounds in a row were void: no batch of at least "
                f"{self._study.batching.minimum} valid reports came through the mixes; "
                "read their logs, then run the server again to go on"
            )
        return self._aggregate(number, outcome.result)

    def _encoded(self, query: Query) -> bytes:
        """The bytes that a descriptor covers and silos read."""
        message = round_pb2.Query(point=query.point.astype("<f8").tobytes())
        if query.control is not None:
            message.control = query.control.astype("<f8").tobytes()
            message.void.extend(self._void)
        encoded: bytes = message.SerializeToString(deterministic=True)
        return encoded

    def _aggregate(self, number: int, result: ClosedRound) -> Aggregate | None:
        if result.total is None:
            self._void.append(number)
            return None
        grid = self._mechanism.grids[self._mechanism.phase_of(number)]
        return Aggregate.of(result.total, result.reports, grid)

    def _report_progress(self, number: int, query: Query, outcome: Outcome, seconds: float) -> None:
        line: dict[str, object] = {
            "round": number,
            "asked": outcome.asked,
            "accepted": outcome.accepted,
            "abstained": outcome.abstained,
            "dropped": outcome.dropped,
            "injected": outcome.injected,
            "repeated": outcome.repeated,
            "attempts": outcome.attempts,
            "void": outcome.result.total is None,
            "seconds": round(seconds, 6),
            "closed_at": round(time.time(), 6),
        }
        if self._holdout is not None:  # of the model before this round's step
            line |= self._holdout.score(query.model)
        append_progress(self._config.state, line)
        logs.event(
            "round_closed",
            round=number,
            accepted=outcome.accepted,
            abstained=outcome.abstained,
            asked=outcome.asked,
        )
