"""Finds who is to blame for a report that a chain dropped, without opening any report.

A mix that voids a batch has destroyed its release key, so that no report of it can ever be opened;
then the mix may disclose what it did to each: its seal key, and which report that went out came
from which that came in (`Disclosure`).  `trace` follows a dropped report back to the silo that sent
it: that silo sealed it wrongly, or the mix that dropped it lied.  `at_fault` tells which of the
two, from the onion, which the silo has and anybody can open with the disclosed keys.  A mix may
also lie about whose report it dropped: then the onion of the silo that it names turns up in what
went out (`Displaced`), and the onion of the silo whose report it dropped does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from google.protobuf.message import DecodeError
from silomix_core.study.study import Study
from silomix_proto import round_pb2

from silomix_protocol.keys import SealKey, UnusableKey, verify
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import UnopenableLayer, open_layer
from silomix_protocol.rounds.round_keys import fingerprint
from silomix_protocol.rounds.statements import BrokenChain, check_ending, digests, input_of

Chain = Sequence[round_pb2.HopStatement]


class NotLost(ValueError):
    """Every mix forwarded the report: none lost it."""


class Displaced(ValueError):
    """The report went out, but the mix at `hop` says that what went out came from another silo.

    That is a lie, or two silos sent the same content, which one onion alone cannot rule out: two
    silos could otherwise convict an honest mix.  The onion of the other silo decides.
    """

    def __init__(self, hop: int) -> None:
        super().__init__("the report went out as somebody else's")
        self.hop = hop


@dataclass(frozen=True, slots=True)
class Drop:
    """A report that the mix at `hop` dropped, and the place of the silo that sent it."""

    hop: int
    silo: int


@dataclass(frozen=True, slots=True)
class Disclosed:
    """One mix's disclosure, checked against what that mix stated about the batch."""

    seal_key: SealKey
    senders: tuple[tuple[int, bytes], ...]  # first mix: each silo and its onion's digest
    origins: tuple[int, ...]  # of each report that went out: its place coming in
    received: int

    @property
    def dropped(self) -> list[int]:
        """Places of the reports that came in and did not go out."""
        kept = set(self.origins)
        return [place for place in range(self.received) if place not in kept]


def disclosed(
    ending: round_pb2.Ending,
    statement: round_pb2.HopStatement,
    descriptor: Descriptor,
    study: Study,
) -> Disclosed:
    """Check the disclosure of the mix that made this statement; BrokenChain if it does not fit."""
    mix = study.mixes[statement.hop]
    check_ending(ending, descriptor.digest, mix)
    if not ending.disclosure:
        raise BrokenChain(f"{mix.name} disclosed nothing")
    try:
        content = round_pb2.Disclosure.FromString(ending.disclosure)
        key = SealKey.from_raw(content.seal)
    except (DecodeError, UnusableKey) as error:
        raise BrokenChain(f"{mix.name} disclosed something that cannot be read") from error
    named = fingerprint(content.keys) == descriptor.mix_keys[statement.hop]
    if not named or key.public != content.keys.seal:
        raise BrokenChain(f"{mix.name} disclosed another key than the one of the round")
    origins = tuple(content.origins)
    fits = len(set(origins)) == len(origins) == statement.forwarded
    if not fits or any(place >= statement.received for place in origins):
        raise BrokenChain(f"{mix.name} disclosed other reports than it forwarded")
    senders = _senders(content.senders, statement, descriptor, study)
    return Disclosed(key, senders, origins, statement.received)


def _senders(
    senders: Sequence[round_pb2.Sender],
    statement: round_pb2.HopStatement,
    descriptor: Descriptor,
    study: Study,
) -> tuple[tuple[int, bytes], ...]:
    """The silos that the first mix names, each by its own signature; no other mix names any."""
    mix = study.mixes[statement.hop].name
    if statement.hop:
        if senders:
            raise BrokenChain(f"{mix} cannot know who sent a report")
        return ()
    places = [each.silo for each in senders]
    came_in = input_of(each.report for each in senders) == statement.input
    if not came_in or len(set(places)) != len(places) or len(places) != statement.received:
        raise BrokenChain(f"{mix} names other reports than it stated")
    for each in senders:
        if each.silo >= len(study.silos):
            raise BrokenChain(f"{mix} names somebody who is not of the study")
        silo = study.silos[each.silo]
        verify(silo.sign_key, each.signature, "report", descriptor.digest, each.report)
    return tuple((each.silo, each.report) for each in senders)


def trace(
    chain: Chain, endings: Sequence[round_pb2.Ending], descriptor: Descriptor, study: Study
) -> list[Drop]:
    """Every report that a mix says it dropped, with the silo that it came from.

    Needs a checked chain, and the disclosures of all mixes up to the last that dropped a report.
    """
    drops: list[Drop] = []
    way: list[Disclosed] = []
    last = max((each.hop for each in chain if each.dropped), default=-1)
    for statement, ending in _paired(chain, endings)[: last + 1]:
        way.append(disclosed(ending, statement, descriptor, study))
        for place in way[-1].dropped:
            drops.append(Drop(statement.hop, _sender(way, place)))
    return drops


def _paired(
    chain: Chain, endings: Sequence[round_pb2.Ending]
) -> list[tuple[round_pb2.HopStatement, round_pb2.Ending]]:
    if len(chain) != len(endings):
        raise BrokenChain("not every mix said how the round ended")
    return list(zip(chain, endings, strict=True))


def _sender(way: Sequence[Disclosed], place: int) -> int:
    """The silo (its place in the roster) whose report came in at `place` of the way's last mix."""
    for each in reversed(way[:-1]):
        place = each.origins[place]
    return way[0].senders[place][0]


def at_fault(
    onion: bytes,
    silo: int,
    chain: Chain,
    endings: Sequence[round_pb2.Ending],
    descriptor: Descriptor,
    study: Study,
) -> int | None:
    """The hop whose mix lost a report, as disclosed keys prove; None if it was sealed wrongly.

    `silo` is a place in the roster: that silo has the first mix's receipt for the onion.  NotLost
    if no mix lost the report, Displaced if a mix says that what went out came from another silo;
    BrokenChain if a key is missing that would show it.
    """
    layer, place, displaced = onion, 0, None
    for statement, ending in _paired(chain, endings):
        told = disclosed(ending, statement, descriptor, study)
        if statement.hop == 0:
            sent = silo, sha256(onion).digest()
            if sent not in told.senders:
                return 0  # the receipt says that the report came in
            place = told.senders.index(sent)
        try:
            layer = open_layer(layer, told.seal_key, statement.hop, descriptor.digest)
        except UnopenableLayer:
            return None
        output, digest = digests(statement.output), sha256(layer).digest()
        if digest not in output:
            return statement.hop
        if told.origins[output.index(digest)] != place and displaced is None:
            displaced = statement.hop
        place = output.index(digest)
    if displaced is not None:
        raise Displaced(displaced)
    raise NotLost("the report is in the list of every mix")
