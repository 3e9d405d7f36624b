"""The reader of what silos say on the round channel, and how much of it is listened to.

A silo may ask for tokens once in every stretch, send one answer and one inspection for every round
in view (the current one and the two before it), and one echo for every round that it was asked.
Anything else is an `UnwelcomeFrame`; the channel puts up with a few of them.
"""

import asyncio
from dataclasses import dataclass

from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import check_token_request

from silomix_server.errors import UnwelcomeFrame
from silomix_server.mixes.token_desk import TokenDesk, check_request
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.followers import Event, Follower, RoundAttempt

_LONGEST_ECHO = 16


@dataclass(slots=True)
class View:
    """The stretch and the rounds that the channel is about at the moment."""

    stretch: channel_pb2.StretchOpened | None = None
    current: RoundAttempt | None = None
    last: RoundAttempt | None = None
    earlier: RoundAttempt | None = None  # silos that heard late of its list may still complain

    @property
    def rounds(self) -> range:
        """The numbers of the rounds in the current stretch."""
        if self.stretch is None:
            return range(0)
        first = self.stretch.first_round
        return range(first, first + len(self.stretch.lists[0].keys))

    def find(self, digest: bytes) -> RoundAttempt | None:
        """The round in view with this D, if there is one."""
        for each in (self.current, self.last, self.earlier):
            if each is not None and each.descriptor.digest == digest:
                return each
        return None

    def shows(self, digest: bytes) -> bool:
        """Whether a silo that joins hears of this D anyway."""
        shown = (each for each in (self.current, self.last) if each is not None)
        return any(each.descriptor.digest == digest for each in shown)

    def asked(self, digest: bytes, silo: str) -> RoundAttempt:
        """The round in view with this D; UnwelcomeFrame if there is none that asked the silo."""
        found = self.find(digest)
        if found is None or silo not in found.descriptor.silos:
            raise UnwelcomeFrame("nothing is known of that round here")
        return found


class FrameReader:
    def __init__(
        self,
        study: Study,
        tokens: TokenDesk | None,
        complaints: ComplaintBox,
        attempt_outcomes: AttemptOutcomes,
    ) -> None:
        self._study, self._tokens, self._complaints = study, tokens, complaints
        self._attempt_outcomes = attempt_outcomes

    def settle(self, follower: Follower, digest: RoundDigest) -> None:
        """Tell a silo what became of the report whose fate it does not know."""
        follower.tell(self._attempt_outcomes.events(digest, follower.silo))

    def supply(self, follower: Follower, view: View) -> None:
        """Begin the stretch for this silo: may it ask for tokens, or has it all of them?"""
        follower.may_ask_tokens = self._tokens is not None and view.stretch is not None
        follower.without_token = frozenset()
        follower.supplied = view.stretch is not None and (
            self._tokens is None or self._tokens.has_all(follower.silo, view.rounds)
        )

    def is_supplied(self, follower: Follower, round_number: int, view: View) -> bool:
        """Whether the silo has what it needs to answer that round."""
        if round_number in view.rounds:
            return follower.supplied and round_number not in follower.without_token
        only = range(round_number, round_number + 1)  # a further attempt: its keys come with it
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
            if asked.gate is not None:
                asked.gate.complain(follower.silo)
        else:
            raise UnwelcomeFrame("an answer that says nothing")

    def _show(self, digest: RoundDigest, follower: Follower, view: View) -> None:
        """Show what mixes stated of a round once it is over; if it is void, they disclose more."""
        if digest in follower.inspected:
            raise UnwelcomeFrame("a second inspection of one round")
        asked = view.find(digest)
        if asked is None:  # a round of an earlier run, or of long ago
            told = self._attempt_outcomes.passages(digest)
            if not told:
                raise UnwelcomeFrame("nothing is known of that round here")
        else:
            told = view.asked(digest, follower.silo).passages()
        follower.inspected.add(digest)
        if asked is not None and asked.outcome is None:
            asked.inspectors.add(follower.silo)
        else:
            follower.tell(told)

    def _echo(self, asked: bytes, follower: Follower) -> None:
        """Send a silo's bytes back: what it hears before them is older than its question."""
        if not follower.may_ask_echo or len(asked) > _LONGEST_ECHO:
            raise UnwelcomeFrame("an echo that is not due")
        follower.may_ask_echo = False
        follower.tell([Event(echo=asked)])
