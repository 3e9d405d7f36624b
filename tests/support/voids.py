"""A round that every mix made void: what each stated about it and disclosed, honest or not."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from silomix_proto import round_pb2
from silomix_protocol.rounds.onion import UnopenableLayer, open_layer
from silomix_protocol.rounds.statements import input_of, sign_hop, sign_voided

from support.rounds import Parties, Round, joined

# What a mix does to the reports that go out and to what it says of their origins, at a hop.
Theft = Callable[[int, list[bytes], list[int]], None]


def nothing(hop: int, reports: list[bytes], origins: list[int]) -> None:
    """Every mix is honest."""


@dataclass
class VoidRound:
    """Statements and disclosures of all mixes; a test may change the latter."""

    parties: Parties
    round: Round
    chain: list[round_pb2.HopStatement] = field(default_factory=list)
    told: list[round_pb2.Disclosure] = field(default_factory=list)

    @property
    def endings(self) -> list[round_pb2.Ending]:
        return [
            sign_voided(
                self.round.digest, "void", each.SerializeToString(), self.parties.mix_key(hop)
            )
            for hop, each in enumerate(self.told)
        ]


def void_round(
    parties: Parties, round_: Round, onions: Sequence[bytes], theft: Theft = nothing
) -> VoidRound:
    """The onions of the roster's first silos through the chain."""
    made, reports, order = VoidRound(parties, round_), list(onions), random.Random(7)
    for hop, mix in enumerate(round_.mixes):
        inner = {
            place: opened
            for place, layer in enumerate(reports)
            if (opened := _opened(layer, round_, hop)) is not None
        }
        origins = order.sample(sorted(inner), len(inner))
        out = [inner[place] for place in origins]
        theft(hop, out, origins)
        made.chain.append(_stated(made, hop, reports, out))
        told = round_pb2.Disclosure(keys=mix.public, seal=mix.seal.raw, origins=origins)
        if hop == 0:
            _name_senders(told, made, reports, origins)
        made.told.append(told)
        reports = out
    return made


def _opened(layer: bytes, round_: Round, hop: int) -> bytes | None:
    try:
        return open_layer(layer, round_.mixes[hop].seal, hop, round_.digest)
    except UnopenableLayer:
        return None


def _stated(
    made: VoidRound, hop: int, came: Sequence[bytes], out: Sequence[bytes]
) -> round_pb2.HopStatement:
    statement = round_pb2.HopStatement(
        hop=hop,
        received=len(came),
        forwarded=len(out),
        dropped=len(came) - len(out),
        input=sha256(made.chain[-1].output).digest() if hop else input_of(map(_digest, came)),
        output=joined(out),
    )
    return sign_hop(made.round.digest, statement, made.parties.mix_key(hop))


def _name_senders(
    told: round_pb2.Disclosure, made: VoidRound, came: Sequence[bytes], origins: Sequence[int]
) -> None:
    ordered = sorted(range(len(came)), key=lambda silo: _digest(came[silo]))
    for silo in ordered:
        report, key = _digest(came[silo]), made.parties.keys[made.parties.roster[silo]]
        signature = key.sign("report", made.round.digest, report)
        told.senders.append(round_pb2.Sender(silo=silo, report=report, signature=signature))
    told.ClearField("origins")
    told.origins.extend(ordered.index(silo) for silo in origins)


def _digest(report: bytes) -> bytes:
    return sha256(report).digest()
