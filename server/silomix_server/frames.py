"""What silos say on the round channel, and how much of it is listened to.

Tokens once for every stretch, one answer and one inspection for every round in view (the current
one and the two before it), one echo for every round that it was asked.  Anything else is an
`UnwelcomeFrame`; the channel puts up with a few of them.
"""

import asyncio
from dataclasses import dataclass

from silomix_core.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.statements import check_token_request

from silomix_server.complaint_box import ComplaintBox
from silomix_server.errors import UnwelcomeFrame
from silomix_server.followers import AskedRound, Event, Follower
from silomix_server.token_desk import TokenDesk, check_request

_LONGEST_ECHO = 16


@dataclass(slots=True)
class View:
    """What the channel is about at the moment."""

    stretch: channel_pb2.StretchOpened | None = None
    current: AskedRound | None = None
    last: AskedRound | None = None
    earlier: AskedRound | None = None  # who heard late of its list may still complain

    @property
    def rounds(self) -> range:
        """Of the current stretch."""
        if self.stretch is None:
            return range(0)
        first = self.stretch.first_round
        return range(first, first + len(self.stretch.lists[0].keys))

    def asked(self, digest: bytes, silo: str) -> AskedRound:
        """The round in view with this D, if it asked the silo."""
        for each in (self.current, self.last, self.earlier):
            if each is not None and each.descriptor.digest == digest:
                if silo in each.descriptor.silos:
                    return each
                break
        raise UnwelcomeFrame("nothing is known of that round here")


class FrameReader:
    def __init__(self, study: Study, tokens: TokenDesk | None, complaints: ComplaintBox) -> None:
        self._study, self._tokens, self._complaints = study, tokens, complaints

    def supply(self, follower: Follower, view: View) -> None:
        """A stretch begins for this silo: may it ask for tokens, or has it all of them?"""
        follower.may_ask_tokens = self._tokens is not None and view.stretch is not None
        follower.without_token = frozenset()
        follower.supplied = view.stretch is not None and (
            self._tokens is None or self._tokens.has_all(follower.silo, view.rounds)
        )

    def is_supplied(self, follower: Follower, round_number: int, view: View) -> bool:
        """Whether the silo has what it needs to answer that round."""
        if round_number in view.rounds:
            return follower.supplied and round_number not in follower.without_token
        only = range(round_number, round_number + 1)  # its keys come with it
        return self._tokens is None or self._tokens.has_all(follower.silo, only)

    async def read(self, frame: channel_pb2.SiloFrame, follower: Follower, view: View) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "tokens":
            await self._give_tokens(frame.tokens, follower, view)
        elif kind == "answer":
            self._take_answer(frame.answer, follower, view)
        elif kind == "inspect":
            self._show(RoundDigest(frame.inspect), follower, view)
        elif kind == "echo":
            self._echo(frame.echo, follower)
        else:
            raise UnwelcomeFrame("an unknown message")

    async def _give_tokens(
        self, request: channel_pb2.TokenRequest, follower: Follower, view: View
    ) -> None:
        if self._tokens is None or not follower.may_ask_tokens:
            raise UnwelcomeFrame("a request for tokens where none are due")
        stretch, rounds = view.stretch, view.rounds
        check_request(request, rounds)
        silo = self._study.silo(follower.silo)
        try:
            if silo is not None:
                check_token_request(request, self._study, silo)
        except ForgedSignature as error:
            raise UnwelcomeFrame(str(error)) from error
        follower.may_ask_tokens = False
        reply = await asyncio.to_thread(self._tokens.issue, follower.silo, request)
        follower.tell([Event(tokens=reply)])
        if view.stretch is stretch:
            refused = zip(rounds, request.blinded, reply.evaluated, strict=True)
            follower.without_token = frozenset(
                number for number, asked, given in refused if asked and not given
            )
            follower.supplied = True

    def _take_answer(
        self, answer: channel_pb2.CommittedAnswer, follower: Follower, view: View
    ) -> None:
        asked = view.asked(answer.digest, follower.silo)
        if asked.descriptor.digest in follower.answered:
            raise UnwelcomeFrame("a second answer about one round")
        if not asked.chain:
            raise UnwelcomeFrame("an answer about a round without a list")
        follower.answered.add(asked.descriptor.digest)
        kind = answer.WhichOneof("answer")
        if kind == "confirmation" and asked.gate is not None:
            asked.gate.confirm(follower.silo, answer.confirmation)
        elif kind == "complaint":
            self._complaints.put(follower.silo, asked.descriptor, answer.complaint)
        else:
            raise UnwelcomeFrame("an answer that says nothing")

    def _show(self, digest: RoundDigest, follower: Follower, view: View) -> None:
        asked = view.asked(digest, follower.silo)
        if digest in follower.inspected:
            raise UnwelcomeFrame("a second inspection of one round")
        follower.inspected.add(digest)
        follower.tell(asked.passages())

    def _echo(self, asked: bytes, follower: Follower) -> None:
        """Send a silo's bytes back: what it hears before them is older than its question."""
        if not follower.may_ask_echo or len(asked) > _LONGEST_ECHO:
            raise UnwelcomeFrame("an echo that is not due")
        follower.may_ask_echo = False
        follower.tell([Event(echo=asked)])
