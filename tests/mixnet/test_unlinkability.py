"""The game behind "nobody can tell who sent which report": one honest mix, everybody else hostile.

Two honest silos, A and B.  A coin decides which of two payloads A sends; B sends the other one.
The adversary is the server, two of three mixes and all other silos.  It sees every byte that
enters and leaves the honest mix, in order, the statements, both payloads opened, the honest mix's
log, metrics and file names, and guesses the coin with each strategy below.  The honest mix is a
real process, once at every place of the chain.

False alarms: a strategy without information wins Binomial(TRIALS, ½) times; it fails here outside
the two-sided interval of level 10⁻⁶ / strategies, so all together once in a million runs.
Resolution: with 240 trials an advantage of 0.24 (winning 74 %) is caught with probability 98 %; a
mix that does not shuffle gives an advantage of ½ and is caught always.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from mixnet.real_mix import (
    Chain,
    HostileRound,
    RealMix,
    Successor,
    output,
    prepared,
    quick_folder,
    real_mix,
    successor,
)
from scipy.special import bdtr, bdtrc
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.onion import Onion
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    SiloStream,
    asked,
    calling,
    confirmations,
    described,
    mix_serving,
    run,
    silo_stream,
    submission,
)

SILOS, MIXES = 4, 3
A, B = "silo-2", "silo-3"
TRIALS_EACH = 80  # at every place of the honest mix
MUTANT_TRIALS = 20


@dataclass(frozen=True, slots=True)
class View:
    """What the adversary has in a trial, its own reports left out; `coin` is what it wants."""

    coin: int  # A sent payload number `coin`
    a_in: bytes  # A's report as it entered the honest mix, and B's
    b_in: bytes
    a_came_first: bool
    out: tuple[bytes, bytes]  # the two reports that are not its own, in the order they left
    opened: tuple[int, int]  # which payload each turned out to be
    statement: bytes  # the honest mix's, as signed
    traces: str  # log, metrics and file names of the honest mix, after the batch left


# Strategies: does A's report come out first? -----------------------------------------------------


def by_position(view: View) -> bool:
    return view.a_came_first


def by_digest(view: View) -> bool:
    """The smaller digest first."""
    return sha256(view.a_in).digest() < sha256(view.b_in).digest()


def by_order_of_both_digests(view: View) -> bool:
    """The smaller digest before is the smaller digest after."""
    first_is_smaller = sha256(view.out[0]).digest() < sha256(view.out[1]).digest()
    return by_digest(view) == first_is_smaller


def by_length(view: View) -> bool:
    if len(view.out[0]) == len(view.out[1]):
        return True
    return (len(view.a_in) < len(view.b_in)) == (len(view.out[0]) < len(view.out[1]))


def by_bytes(view: View) -> bool:
    """The output that has more bytes in common with A's input, place by place from the end."""

    def common(one: bytes, other: bytes) -> int:
        size = min(len(one), len(other))
        left, right = (np.frombuffer(each[-size:], np.uint8) for each in (one, other))
        return int((left == right).sum())

    straight = common(view.a_in, view.out[0]) + common(view.b_in, view.out[1])
    crossed = common(view.a_in, view.out[1]) + common(view.b_in, view.out[0])
    return straight >= crossed


def by_histogram(view: View) -> bool:
    """The output whose bytes are distributed most like A's input."""

    def distance(one: bytes, other: bytes) -> float:
        counts = [
            np.bincount(np.frombuffer(each, np.uint8), minlength=256) / len(each)
            for each in (one, other)
        ]
        return float(((counts[0] - counts[1]) ** 2).sum())

    straight = distance(view.a_in, view.out[0]) + distance(view.b_in, view.out[1])
    crossed = distance(view.a_in, view.out[1]) + distance(view.b_in, view.out[0])
    return straight <= crossed


def by_statement(view: View) -> bool:
    """Where in the statement A's digest, or any byte of it, stands."""
    digests = [sha256(each).digest() for each in (view.a_in, view.b_in)]
    places = [view.statement.find(digest) for digest in digests]
    if max(places) >= 0:
        return places[0] <= places[1]
    return bool((view.statement[-1] ^ digests[0][0]) & 1)


def by_traces(view: View) -> bool:
    """Whether log, metrics or file names name a silo or a digest, and in which order."""
    for names in (
        (A, B),
        tuple(sha256(each).hexdigest()[:12] for each in (view.a_in, view.b_in)),
        tuple(sha256(each).hexdigest()[:12] for each in view.out),
    ):
        places = [view.traces.find(name) for name in names]
        if max(places) >= 0:
            return places[0] < places[1]
    return bool(len(view.traces) & 1)


Strategy = Callable[[View], bool]
STRATEGIES: tuple[Strategy, ...] = (
    by_position,
    by_digest,
    by_order_of_both_digests,
    by_length,
    by_bytes,
    by_histogram,
    by_statement,
    by_traces,
)
LEVEL = 1e-6 / len(STRATEGIES)


def wins(strategy: Strategy, views: Sequence[View]) -> int:
    return sum(view.opened[0 if strategy(view) else 1] == view.coin for view in views)


# Playing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """The adversary's connections to the honest mix, and what it reads there."""

    made: Consortium
    honest: int
    server: mix_pb2_grpc.MixStub
    before: mix_pb2_grpc.MixStub | None
    streams: dict[str, SiloStream]
    taker: Successor
    traces: Callable[[], str]


@asynccontextmanager
async def seated(made: Consortium, honest: int, traces: Callable[[], str]) -> AsyncIterator[Table]:
    name = made.study.mixes[honest].name
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(calling(made, "server", name))
        taker = await stack.enter_async_context(successor(made, honest))
        before, streams = None, {}
        if honest:
            neighbour = made.study.mixes[honest - 1].name
            before = await stack.enter_async_context(calling(made, neighbour, name))
        else:
            for silo in made.study.silos:
                stream = silo_stream(made, silo.name, 120.0)
                streams[silo.name] = await stack.enter_async_context(stream)
        yield Table(made, honest, server, before, streams, taker, traces)


async def play(table: Table, trials: int) -> list[View]:
    views: list[View] = []
    for start in range(1, trials + 1, LONGEST_STRETCH):
        rounds = min(LONGEST_STRETCH, trials + 1 - start)
        keys = (await prepared(table.made, table.honest, start, rounds=rounds)).keys
        views += [await trial(table, number, key) for number, key in enumerate(keys, start)]
    return views


async def trial(table: Table, number: int, honest_keys: round_pb2.RoundKeys) -> View:
    round_ = joined_round(table, number, honest_keys)
    await asked(table.server.Open, round_.played.descriptor.to_wire())
    coin = random.randrange(2)
    payloads = [random.randbytes(16), random.randbytes(16)]
    content = {A: payloads[coin], B: payloads[1 - coin]}
    onions = {
        silo.name: round_.onion(content.get(silo.name, b"the adversary's"))
        for silo in table.made.study.silos
    }
    order = random.sample(sorted(onions), SILOS)
    entered = await send(table, round_, onions, order)
    chain, out = await output(round_, table.taker)
    mine = {onions[name].trail[table.honest + 1] for name in onions if name not in content}
    first, second = (each for each in out if sha256(each).digest() not in mine)
    opened = await opened_reports(table, round_, chain, out)
    return View(
        coin=coin,
        a_in=entered[A],
        b_in=entered[B],
        a_came_first=order.index(A) < order.index(B),
        out=(first, second),
        opened=(payloads.index(opened[first][:16]), payloads.index(opened[second][:16])),
        statement=chain[table.honest].SerializeToString(),
        traces=table.traces(),
    )


def joined_round(table: Table, number: int, honest_keys: round_pb2.RoundKeys) -> HostileRound:
    """A round with the honest mix's keys and the adversary's own for the other mixes."""
    others = [hop for hop in range(MIXES) if hop != table.honest]
    seal_keys = {hop: SealKey.generate() for hop in others}
    release_keys = {hop: SealKey.generate() for hop in others}
    keys = [
        honest_keys
        if hop == table.honest
        else round_pb2.RoundKeys(seal=seal_keys[hop].public, release=release_keys[hop].public)
        for hop in range(MIXES)
    ]
    return HostileRound(described(table.made, keys, number), table.honest, seal_keys, release_keys)


async def send(
    table: Table, round_: HostileRound, onions: dict[str, Onion], order: Sequence[str]
) -> dict[str, bytes]:
    """The reports to the honest mix in this order; every silo's as it entered there."""
    sealed = [onions[name].sealed for name in order]
    if table.before is None:
        for name in order:
            descriptor = round_.played.descriptor
            message = submission(table.made, name, descriptor, onions[name].sealed)
            receipt = await table.streams[name].send(message)
            assert receipt.status == mix_pb2.Receipt.ACCEPTED
        return dict(zip(order, sealed, strict=True))
    chain, reports = round_.before(sealed)
    batch = frames(round_.played.descriptor.digest, chain, reports)
    await table.before.Forward(iter(list(batch)), timeout=RPC_S, wait_for_ready=True)
    return dict(zip(order, reports, strict=True))


async def opened_reports(
    table: Table, round_: HostileRound, chain: Chain, out: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Every report that left the honest mix, with its payload: all silos confirm the list."""
    chain, gated = round_.after(chain, out)
    listed = chain[-1].output
    digest, hashed = round_.played.descriptor.digest, sha256(listed).digest()
    await asked(table.server.Commit, mix_pb2.CommitRequest(digest=digest, list=listed))
    confirmed = confirmations(round_.played, listed)
    request = mix_pb2.ReleaseRequest(digest=digest, list=hashed, confirmations=confirmed)
    released = await asked(table.server.Release, request)
    keys = round_.release_keys | {table.honest: SealKey.from_raw(released.key)}
    in_order = [keys[hop] for hop in range(MIXES)]
    payloads = [round_.opens(each, in_order) for each in gated]
    return dict(zip(out, payloads, strict=True))


# The honest mix -----------------------------------------------------------------------------------


def make(folder: Path) -> Consortium:
    return make_consortium(
        folder, records=(40,) * SILOS, mixes=MIXES, rounds=TRIALS_EACH, minimum_batch=2
    )


@pytest.fixture(scope="module")
def views() -> list[View]:
    """All trials, at every place of the honest mix."""
    found: list[View] = []
    for honest in range(MIXES):
        with quick_folder() as folder, real_mix(make(folder / "c"), honest) as mix:
            found += run(game(mix), timeout_s=120.0)
    return found


async def game(mix: RealMix) -> list[View]:
    def traces() -> str:
        names = sorted(str(path) for path in mix.state.rglob("*"))
        return "\n".join([mix.log, mix.metrics, *names])

    async with seated(mix.made, mix.hop, traces) as table:
        seen = await play(table, TRIALS_EACH)
        assert all(len(each) == 1 for each in table.taker.batches.values()), "one batch a round"
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_a_strategy_wins_no_more_often_than_a_coin(views: list[View], strategy: Strategy) -> None:
    won, played = wins(strategy, views), len(views)
    assert played == MIXES * TRIALS_EACH
    at_most, at_least = bdtr(won, played, 0.5), bdtrc(won - 1, played, 0.5)
    assert min(at_most, at_least) > LEVEL / 2, f"{won} of {played}"


def test_reports_of_a_batch_have_one_length_on_either_side(views: list[View]) -> None:
    assert all(len(view.a_in) == len(view.b_in) for view in views)
    assert all(len(view.out[0]) == len(view.out[1]) for view in views)


def test_no_trace_names_a_silo_or_a_report(views: list[View]) -> None:
    last = views[-1].traces
    for view in views:
        for each in (view.a_in, view.b_in, *view.out):
            assert sha256(each).hexdigest()[:12] not in last
    assert not any(name in view.traces for view in views for name in (A, B))


# Mixes that give it away --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unshuffled() -> list[View]:
    async def scene(made: Consortium) -> list[View]:
        async with mix_serving(made, 1) as rounds:
            rounds.sealing.shuffle = lambda x: None
            async with seated(made, 1, lambda: "") as table:
                return await play(table, MUTANT_TRIALS)

    with quick_folder() as folder:
        return run(scene(make(folder / "c")), timeout_s=60.0)


def test_a_mix_that_does_not_shuffle_loses_every_time(unshuffled: list[View]) -> None:
    assert wins(by_position, unshuffled) == MUTANT_TRIALS


def test_every_strategy_wins_where_there_is_something_to_see(unshuffled: list[View]) -> None:
    """The same trials, changed to what a broken mix would show: in order of digests, of different
    lengths, with its layer left on, with the order in its statement or its log."""
    for view in unshuffled:
        a_is_first = view.a_came_first
        a_hash, b_hash = (sha256(each).digest() for each in (view.a_in, view.b_in))
        straight = replace(view, out=(view.a_in, view.b_in))
        crossed = replace(view, out=(view.b_in, view.a_in))
        for strategy in (by_bytes, by_histogram, by_order_of_both_digests):
            assert strategy(straight)
            assert not strategy(crossed)
        assert not by_length(replace(view, b_in=view.b_in + b"x", out=(b"xx", b"x")))
        assert by_digest(view) == (a_hash < b_hash)
        assert by_statement(replace(view, statement=a_hash + b_hash))
        assert not by_statement(replace(view, statement=b_hash + a_hash))
        said = f"{A} {B}" if a_is_first else f"{B} {A}"
        assert by_traces(replace(view, traces=said)) == a_is_first
