"""A chain of three with one honest mix, and what the others do around it."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import grpc
from mixnet.real_mix import Chain, HostileRound, Successor, feed, output
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.rounds.onion import Onion
from support.consortia import make_consortium
from support.mixes import submission, submit

ACCEPTED = mix_pb2.Receipt.ACCEPTED
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
SILOS, MINIMUM, MIXES = 5, 3, 3


def consortium(folder: Path, *, gate: bool = True, deadline_s: float = 20.0) -> Consortium:
    return make_consortium(
        folder,
        records=(40,) * SILOS,
        mixes=MIXES,
        rounds=100,
        minimum_batch=MINIMUM,
        deadline_s=deadline_s,
        gate=gate,
    )


def sent_by_silos(round_: HostileRound) -> dict[str, Onion]:
    """Every silo's onion; its payload starts with the silo's name."""
    return {silo: round_.onion(silo.encode()) for silo in round_.played.descriptor.silos}


async def deliver(round_: HostileRound, onions: Sequence[bytes]) -> None:
    """These onions reach the honest mix, from silos or from the attacker's mix before it."""
    if round_.honest:
        await feed(round_, *round_.before(onions))
        return
    for silo, sealed in zip(round_.played.descriptor.silos, onions, strict=False):
        frames = submission(round_.made, silo, round_.played.descriptor, sealed)
        (receipt,) = await submit(round_.made, silo, frames)
        assert receipt.status == ACCEPTED


async def whole_chain(
    round_: HostileRound, onions: Sequence[bytes], taker: Successor
) -> tuple[Chain, list[bytes]]:
    """The onions through all three mixes, nobody misbehaving: the gated reports."""
    await deliver(round_, onions)
    return round_.after(*await output(round_, taker))


async def isolate(
    round_: HostileRound, victim: bytes, taker: Successor, others: int = SILOS - 1
) -> tuple[Chain, list[bytes], list[Onion]]:
    """The victim's onion among fakes, through the chain."""
    fakes = [round_.onion(b"fake") for _ in range(others)]
    onions = [victim, *(each.sealed for each in fakes)]
    chain, gated = await whole_chain(round_, onions, taker)
    return chain, gated, fakes


def victims_gated(gated: Sequence[bytes], fakes: Sequence[Onion]) -> bytes:
    """The attacker knows its own fakes: what is left is the victim's."""
    own = {fake.trail[-1] for fake in fakes}
    (left,) = (report for report in gated if sha256(report).digest() not in own)
    return left


def restated(
    round_: HostileRound, chain: Chain, reports: Sequence[bytes]
) -> round_pb2.HopStatement:
    """The statement of the mix before the honest one about these reports instead of its own."""
    return round_.statement(chain[-1].hop, chain[-1].input, reports)
