"""The coordinator: one study from its first round to its model.

Asks the algorithm for a query, publishes a signed descriptor, waits for the mixnet's batch, opens
it, gives the mean to the algorithm.  Leases bound how many rounds one Flower message covers;
between them membership is read anew.
"""

import secrets
import time

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.algorithms.seam import Aggregate, Query
from silomix_proto import channel_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.descriptor import issue
from silomix_protocol.keys import SealKey, SigningKey, check_public_keys
from silomix_protocol.tls import Identity

from silomix_server.channel import RoundChannel
from silomix_server.collector import Collected, Collector
from silomix_server.config import ServerConfig
from silomix_server.errors import StudyFailed
from silomix_server.holdout import Holdout
from silomix_server.journal import ClosedRound, Journal
from silomix_server.leases import Lease, LeaseOffice
from silomix_server.results import append_progress, save_model

_FOLLOW_S = 20.0  # from a lease's message to all its silos on the channel
_REJOIN_S = 10.0  # how long to wait when too few silos follow
_REPLY_S = 15.0
_VOID_LIMIT = 3  # void rounds in a row: they cost the silos budget and bring nothing
_RENEW = 0.8  # a lease is renewed after this part of its deadline


async def run_study(config: ServerConfig, grid: Grid) -> None:
    """Run, or go on with, the configured study; leaves the model in the state folder."""
    coordinator = Coordinator(config, grid)
    try:
        model = await coordinator.run()
    finally:
        await coordinator.close()
    study = config.study
    save_model(config.state, study, model)
    logs.event("study_completed", study=study.short_id, rounds=study.rounds)


class Coordinator:
    def __init__(self, config: ServerConfig, grid: Grid) -> None:
        study = config.study
        self._config, self._study = config, study
        self._mechanism = study.mechanism()
        self._sign_key = SigningKey.load(config.folder / "sign.key")
        seal_key = SealKey.load(config.folder / "seal.key")
        check_public_keys(study)
        if (study.server.sign_key, study.server.seal_key) != (
            self._sign_key.public,
            seal_key.public,
        ):
            raise StudyFailed(f"study {study.short_id} lists other keys for this server")
        identity = Identity.load(config.name, config.folder)
        self._channel = RoundChannel(study, self._sign_key)
        self._collector = Collector(study, self._mechanism, seal_key, identity)
        self._office = LeaseOffice(study, grid)
        self._journal = Journal(config.state / f"journal-{study.short_id}.sqlite")
        self._holdout = Holdout(study.task, config.holdout) if config.holdout else None
        self._server = identity.server(config.channel_listen)
        channel_pb2_grpc.add_RoundChannelServicer_to_server(self._channel, self._server)
        self._lease: Lease | None = None
        self._lease_left = 0
        self._lease_ends = 0.0
        self._gone: frozenset[str] = frozenset()
        self._void_in_a_row = 0

    async def run(self) -> NDArray[np.float64]:
        await self._server.start()
        logs.event("study_started", study=self._study.short_id, rounds=self._study.rounds)
        plan = self._study.algorithm_plan(self._mechanism)
        steps = algorithm(self._study.algorithm).start(plan)
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
            await self._close_lease("the study is complete")
            model: NDArray[np.float64] = finished.value
            return model

    async def close(self) -> None:
        self._channel.close_lease("the coordinator stops")
        await self._server.stop(1.0)
        await self._collector.close()
        self._journal.close()

    # One round ----------------------------------------------------------------------------------

    async def _round(self, number: int, query: Query) -> Aggregate | None:
        silos = await self._silos()
        started = time.perf_counter()
        encoded = round_pb2.Query(point=query.point.astype("<f8").tobytes()).SerializeToString()
        descriptor = issue(self._study, number, tuple(silos), encoded, self._sign_key)
        self._journal.opened(number, descriptor.digest)
        self._channel.open_round(descriptor, encoded)
        collected = await self._collector.collect(descriptor)
        self._journal.closed(number, collected.result)
        void = collected.result.total is None
        self._void_in_a_row = self._void_in_a_row + 1 if void else 0
        self._channel.close_round(descriptor, collected.sealed, void=void)
        self._lease_left -= 1
        self._report_progress(number, query, collected, len(silos), time.perf_counter() - started)
        if self._void_in_a_row >= _VOID_LIMIT:
            raise StudyFailed(
                f"{_VOID_LIMIT} rounds in a row were void: no batch of at least "
                f"{descriptor.minimum_batch} valid reports came through the mixes; "
                "read their logs, then run the server again to go on"
            )
        return self._aggregate(number, collected.result)

    def _aggregate(self, number: int, result: ClosedRound) -> Aggregate | None:
        if result.total is None:
            return None
        scale = self._mechanism.grids[self._mechanism.phase_of(number)] / result.reports
        return Aggregate(result.total.astype(np.float64) * scale, result.reports)

    def _report_progress(
        self, number: int, query: Query, collected: Collected, asked: int, seconds: float
    ) -> None:
        line: dict[str, object] = {
            "round": number,
            "asked": asked,
            "accepted": collected.result.reports,
            "dropped": collected.dropped,
            "void": collected.result.total is None,
            "seconds": round(seconds, 6),
            "closed_at": round(time.time(), 6),
        }
        if self._holdout is not None:  # of the model before this round's step
            line |= self._holdout.score(query.model)
        append_progress(self._config.state, line)
        logs.event("round_closed", round=number, accepted=collected.result.reports, asked=asked)

    # Leases -------------------------------------------------------------------------------------

    async def _silos(self) -> frozenset[str]:
        """Who can be asked now: the followers of a lease that has rounds left."""
        if self._lease is None or not self._lease_left or time.monotonic() > self._lease_ends:
            await self._next_lease()
        minimum = self._study.batching.minimum
        followers = self._channel.followers
        if len(followers) < minimum:
            roster = frozenset(silo.name for silo in self._study.silos)
            followers = await self._channel.wait_for(roster, _REJOIN_S)
        if len(followers) < minimum:
            raise StudyFailed(
                f"only {len(followers)} silos are connected and a batch needs {minimum}; "
                f"{await self._refusals()}"
                "start the missing silos and run the server again to go on"
            )
        if self._lease is not None:
            self._gone = self._lease.silos - followers
        return followers

    async def _refusals(self) -> str:
        """What silos that left the lease said, if they did."""
        if self._lease is None:
            return ""
        replies = await self._office.replies(self._lease, len(self._lease.silos), 1.0)
        refused = sorted(reply["silo"] for reply in replies if reply.get("ending") == "refused")
        if not refused:
            return ""
        return (
            f"{', '.join(refused)} refused: is study {self._study.short_id} the one that they "
            "approved (silomix study show)? Then "
        )

    async def _next_lease(self) -> None:
        await self._close_lease("the lease is used up")
        config, minimum = self._config, self._study.batching.minimum
        wanted = len(self._study.silos) - len(self._gone)
        nodes = await self._office.wait_for_nodes(wanted, minimum, config.wait_for_silos_s)
        if len(nodes) < minimum:
            raise StudyFailed(
                f"only {len(nodes)} of {len(self._study.silos)} silos are online after "
                f"{config.wait_for_silos_s:g} s and a batch needs {minimum}"
            )
        if not await self._collector.reachable():
            mix = self._study.mixes[-1]
            raise StudyFailed(
                f"{mix.name} ({mix.address}) does not answer; no silo was asked and no budget "
                "spent; start it (silomix mix run) and run the server again"
            )
        identity = secrets.token_hex(8)
        self._channel.open_lease(identity)
        self._lease = await self._office.offer(identity, nodes, config.lease_deadline_s)
        self._lease_left = config.lease_rounds
        self._lease_ends = time.monotonic() + _RENEW * config.lease_deadline_s
        logs.event("lease_offered", lease=identity, silos=len(nodes), rounds=self._lease_left)
        await self._channel.wait_for(frozenset(nodes) - self._gone, _FOLLOW_S)

    async def _close_lease(self, reason: str) -> None:
        """End the current lease and take the Flower replies of those who followed it."""
        if self._lease is None:
            return
        followers = self._channel.followers
        self._channel.close_lease(reason)
        replies = await self._office.replies(self._lease, len(followers), _REPLY_S)
        for reply in replies:
            logs.event("lease_reply", **reply)
        self._lease = None
