"""The order in which a real mix hands a batch on: uniform, and tied to nothing that anybody knows.

Several hundred small batches, each with its silos in an order of its own, through one mix.  Every
claim is a χ² test of a permutation or a place that must be uniform.  False alarms: the tests of a
run are `TESTS` many, each at 10⁻⁷ / TESTS, so that an honest mix fails here less than once in a
million runs, even if χ² has the tail right only within a factor of ten.
Power: a mix that does not shuffle, only rotates, sorts by anything or draws its order once is
caught with 100 batches (the mutants below, every time).
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, MutableSequence, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise, permutations
from math import factorial
from pathlib import Path
from typing import Any

from mixnet.real_mix import prepared, quick_folder, real_mix
from scipy.special import gammaincc
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    SiloStream,
    asked,
    calling,
    described,
    mix_serving,
    run,
    sealed_reports,
    silo_stream,
    submission,
)

SILOS = 4
BATCHES, MUTANT_BATCHES = 360, 100
TESTS = 5
FALSE_ALARM = 1e-7 / TESTS

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """One batch: for every output, when it arrived, who sent it, the rank of its digest before
    and after the mix."""

    arrival: Order
    sender: Order
    onion_rank: Order
    output_rank: Order


# Batches through a mix ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connections:
    made: Consortium
    stub: mix_pb2_grpc.MixStub
    streams: dict[str, SiloStream]


@asynccontextmanager
async def connected(made: Consortium) -> AsyncIterator[Connections]:
    """One connection of every silo and of the coordinator, for all rounds."""
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(calling(made, "server", "mix-1"))
        streams = {
            silo.name: await stack.enter_async_context(silo_stream(made, silo.name, 120.0))
            for silo in made.study.silos
        }
        yield Connections(made, stub, streams)


async def batches(to: Connections, count: int, first: int = 1) -> list[Passed]:
    """This many rounds, one after the other; who is first is drawn anew in each."""
    passed: list[Passed] = []
    for start in range(first, first + count, LONGEST_STRETCH):
        rounds = min(LONGEST_STRETCH, first + count - start)
        keys = (await prepared(to.made, 0, start, rounds=rounds)).keys
        for number, key in enumerate(keys, start):
            passed.append(await _batch(to, number, key))
    return passed


async def _batch(to: Connections, number: int, key: Any) -> Passed:
    played = described(to.made, [key], number)
    descriptor = played.descriptor
    await asked(to.stub.Open, descriptor.to_wire())
    onions = sealed_reports(played)
    order = random.sample(sorted(onions), SILOS)
    for silo in order:
        frames = submission(to.made, silo, descriptor, onions[silo].sealed)
        assert (await to.streams[silo].send(frames)).status == mix_pb2.Receipt.ACCEPTED
    request = mix_pb2.CollectRequest(digest=descriptor.digest)
    frames_out = [
        frame async for frame in to.stub.Collect(request, timeout=RPC_S, wait_for_ready=True)
    ]
    body = b"".join(frame.chunk for frame in frames_out[1:])
    cut = [body[at : at + played.length] for at in range(0, len(body), played.length)]
    outputs = [sha256(each).digest() for each in cut]
    owners = {onion.trail[-1]: silo for silo, onion in onions.items()}
    senders = [owners[each] for each in outputs]
    roster = sorted(onions)
    sealed = sorted(roster, key=lambda silo: onions[silo].trail[0])
    return Passed(
        arrival=tuple(order.index(silo) for silo in senders),
        sender=tuple(roster.index(silo) for silo in senders),
        onion_rank=tuple(sealed.index(silo) for silo in senders),
        output_rank=tuple(sorted(outputs).index(each) for each in outputs),
    )


# Tests of uniformity ------------------------------------------------------------------------------


def p_value(observed: Sequence[object], kinds: Sequence[object]) -> float:
    """Of Pearson's χ² test that every kind is equally likely."""
    counts, expected = Counter(observed), len(observed) / len(kinds)
    assert expected >= 4
    statistic = sum((counts[kind] - expected) ** 2 / expected for kind in kinds)
    return float(gammaincc((len(kinds) - 1) / 2, statistic / 2))


def p_values(passed: Sequence[Passed]) -> dict[str, float]:
    orders = list(permutations(range(SILOS)))
    steps = [
        tuple(after.arrival.index(place) for place in before.arrival)
        for before, after in pairwise(passed)
    ]
    found = {
        "order of arrival": p_value([each.arrival for each in passed], orders),
        "place of the first to arrive": p_value(
            [each.arrival.index(0) for each in passed], range(SILOS)
        ),
        "order of the roster": p_value([each.sender for each in passed], orders),
        "order of digests": min(
            1.0,
            2
            * min(
                p_value([each.onion_rank for each in passed], orders),
                p_value([each.output_rank for each in passed], orders),
            ),
        ),
        "from one batch to the next": p_value(steps, orders),
    }
    assert len(found) == TESTS
    return found


def make(folder: Path) -> Consortium:
    return make_consortium(
        folder, records=(40,) * SILOS, mixes=1, rounds=1000, minimum_batch=SILOS, gate=False
    )


def test_every_order_of_a_batch_is_equally_likely() -> None:
    async def scene(made: Consortium) -> list[Passed]:
        async with connected(made) as to:
            return await batches(to, BATCHES)

    with quick_folder() as folder, real_mix(make(folder / "c")) as mix:
        passed = run(scene(mix.made), timeout_s=120.0)
    assert len({each.arrival for each in passed}) == factorial(SILOS)
    found = p_values(passed)
    assert min(found.values()) > FALSE_ALARM, found


# Mutants that must be caught ----------------------------------------------------------------------

Shuffle = Callable[[MutableSequence[Any]], None]


def not_at_all(entries: MutableSequence[Any]) -> None:
    pass


def by_rotation(entries: MutableSequence[Any]) -> None:
    shift = random.randrange(len(entries))
    entries[:] = [*entries[shift:], *entries[:shift]]


def by_digest(entries: MutableSequence[Any]) -> None:
    entries[:] = sorted(entries)


def always_the_same(entries: MutableSequence[Any]) -> None:
    random.Random(1).shuffle(entries)


MUTANTS: dict[Shuffle, set[str]] = {
    not_at_all: {"order of arrival", "place of the first to arrive", "from one batch to the next"},
    by_rotation: {"order of arrival", "from one batch to the next"},
    by_digest: {"order of digests"},
    always_the_same: {"order of arrival", "from one batch to the next"},
}


def test_mixes_that_shuffle_badly_are_caught() -> None:
    async def scene(made: Consortium) -> dict[Shuffle, list[Passed]]:
        passed, first = {}, 1
        async with mix_serving(made, 0) as rounds, connected(made) as to:
            for mutant in MUTANTS:
                rounds.sealing.shuffle = mutant  # type: ignore[assignment]
                passed[mutant] = await batches(to, MUTANT_BATCHES, first)
                first += MUTANT_BATCHES
        return passed

    with quick_folder() as folder:
        seen = run(scene(make(folder / "c")), timeout_s=120.0)
    for mutant, passed in seen.items():
        caught = {name for name, value in p_values(passed).items() if value <= FALSE_ALARM}
        assert caught >= MUTANTS[mutant], f"{mutant.__name__} is caught by {caught or 'nothing'}"
