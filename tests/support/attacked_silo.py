"""A silo under attack, the rounds that it answered, and what it may be asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import count

from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2

from support.hostile import HostileServer, Outcome, Script, Siege, lease_of, opening, whole_round
from support.scripted_lease import Event, gated_digest
from support.silos import NOW, asked, give_tokens, open_ledger, study_file

OFTEN = 12  # below what a silo puts up with, in leases that bring nothing and in the same question


class Attacked:
    """The silo under attack: its leases, and two rounds that it has answered before."""

    def __init__(self, runner: asyncio.Runner, siege: Siege) -> None:
        self._runner, self.siege, self.made = runner, siege, siege.made
        self._names = (f'name = "another {number}"'.encode() for number in count(1))
        self.expected: list[bytes] = []  # everything that may ever reach the first mix
        self.sealed_again = 0  # of those, second onions of one report
        self.said: list[channel_pb2.SiloFrame] = []  # in the last lease that it refused
        self._times = 0  # that a round it has answered was asked again
        self._known = [(made, self.answered(made, 1)) for made in (self.made, self.another_study())]

    def lease(self, fields: dict[str, str], script: Script, *, announced: bool = True) -> Outcome:
        return self._runner.run(self.siege.lease(fields, script, announced=announced))

    def answered(self, made: Consortium, number: int, point: list[float] | None = None) -> bytes:
        """An honest round in a lease of its own; the report that it brought."""
        outcome = self.lease(lease_of(made), whole_round(made, asked(made, number, point)))
        assert outcome.reply == reply("done", 1), outcome.log
        assert [frame.answer.WhichOneof("answer") for frame in outcome.said] == ["confirmation"]
        (onion,) = outcome.onions
        assert outcome.frames == 1
        self.expected.append(onion)
        return onion

    def sent(self, made: Consortium, number: int) -> bytes:
        """A round whose report arrives, and of which the silo hears nothing more; the report."""
        outcome = self.lease(lease_of(made), answered_then(made, number=number))
        assert outcome.reply == reply("done", 1), outcome.log
        assert (outcome.frames, outcome.said) == (1, [])
        (onion,) = outcome.onions
        self.expected.append(onion)
        return onion

    def refused(
        self,
        fields: dict[str, str],
        script: Script,
        *,
        answered: int = 0,
        confirmed: int = 0,
        announced: bool = True,
    ) -> str:
        """This lease ends as refused and leaves no trace; why, as the operator reads it.

        With `answered` rounds before what is refused, those are all that was charged and sent;
        only the lists of the `confirmed` ones among them are confirmed.
        """
        before = self.siege.on_disk()
        outcome = self.lease(fields, script, announced=announced)
        assert outcome.reply == reply("refused", answered), outcome.log
        assert outcome.frames == answered
        self.said = outcome.said
        assert sum(frame.answer.HasField("confirmation") for frame in outcome.said) == confirmed
        if not answered:
            assert self.siege.on_disk() == before
            assert outcome.said == []
        self.expected += outcome.onions
        self.goes_on()
        (told,) = (line for line in outcome.log.splitlines() if "_refused " in line)
        return told.partition("reason=")[2].strip('"')

    def goes_on(self) -> None:
        """The next lease is served.  Its question is an old one: the same report, no charge.

        A silo sends the same bytes only so often; then it is asked the other one, or started anew.
        """
        self._times += 1
        if self._times % (2 * OFTEN) == 0:
            self.kill_and_restart()
            self.answered(self.made, 1)  # by now it has written that it joined
        made, report = self._known[self._times // OFTEN % 2]
        before = self.siege.on_disk()
        assert self.answered(made, 1) == report
        assert self.siege.on_disk() == before

    def another_study(self, *changes: tuple[bytes, bytes]) -> Consortium:
        """A study that the operator approves while the silo runs, and of which nothing is asked."""
        renamed = study_file(self.made).replace(b'name = "test"', next(self._names), 1)
        content = changed(renamed, *changes)
        approve(self.siege.config, review(self.siege.config, content), NOW)
        made = replace(self.made, study=parse_study(content))
        give_all_tokens(made)
        self.siege.server.known[made.study.identity] = made
        return made

    def kill_and_restart(self) -> None:
        self._runner.run(self.siege.kill())
        self._runner.run(self.siege.start())


def give_all_tokens(made: Consortium) -> None:
    """What the first stretch would bring; then later ones change nothing on disk."""
    ledger = open_ledger(load(made.silos[0]))
    give_tokens(ledger, made.study)
    ledger.close()


def reply(ending: str, answered: int) -> dict[str, str]:
    return {"silo": "silo-1", "ending": ending, "answered": str(answered)}


def changed(content: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    for old, new in changes:
        assert old in content
        content = content.replace(old, new, 1)
    return content


def answered_then(made: Consortium, *events: Callable[[bytes], Event], number: int = 1) -> Script:
    """A round whose report arrives; then these events, made from its digest at the server."""
    question = asked(made, number)
    descriptor = question.descriptor

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        signed = descriptor.to_wire()
        async for event in opening(made, signed, question.query)(server):
            yield event
        gated = gated_digest(made, await server.arrivals.get(), descriptor)
        for make in events:
            yield make(gated)

    return script
