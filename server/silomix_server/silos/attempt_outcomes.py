"""What became of every round, for silos that were away: lists, closings, statements of the mixes.

The journal keeps them.  A silo that does not know what became of its last report says so when it
follows, and hears it before anything else.  A round that was open when the coordinator died is
void: the mixes are asked to say so.
"""

from collections.abc import Sequence

from silomix_core.study.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.blame import trace
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check
from silomix_protocol.rounds.statements import BrokenChain, sign_closing

from silomix_server.errors import MixFailed, MixRefused
from silomix_server.mixes.mix_chain import MixChain
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.followers import Event, passages
from silomix_server.study.journal import AttemptOutcome, Journal

Chain = Sequence[round_pb2.HopStatement]


class AttemptOutcomes:
    def __init__(
        self,
        study: Study,
        sign_key: SigningKey,
        journal: Journal,
        chain: MixChain,
        complaints: ComplaintBox,
    ) -> None:
        self._study, self._sign_key = study, sign_key
        self._journal, self._chain, self._complaints = journal, chain, complaints
        self._left = [check(each, study) for each in journal.unsettled()]

    # What happened ------------------------------------------------------------------------------

    def abandoned(
        self, descriptor: Descriptor, statements: Sequence[round_pb2.Abandonment]
    ) -> None:
        """Record that an attempt came to nothing, as every mix states."""
        endings = [round_pb2.Ending(abandoned=each) for each in statements]
        closed = self._closed(descriptor, endings, void=True)
        self._journal.settled(AttemptOutcome(descriptor.digest, closed=closed))

    def used(self, descriptor: Descriptor) -> AttemptOutcome:
        """The outcome of an attempt that was summed; the caller records it with the sum."""
        closed = self._closed(descriptor, (), void=False)
        return AttemptOutcome(descriptor.digest, closed=closed)

    async def void(
        self, descriptor: Descriptor, chain: Chain = (), *, listed: bool = False
    ) -> AttemptOutcome:
        """Let every mix sign that no report of this attempt, which came to nothing, is opened.

        As long as a mix does not answer, and silos were shown no list, it is to be asked again.
        """
        answers = await self._chain.void(descriptor)
        failures = [each for each in answers if isinstance(each, MixFailed)]
        endings = [each for each in answers if isinstance(each, round_pb2.Ending)]
        for failure in failures:
            logs.warning("not_voided", round=descriptor.round, reason=failure)
        pending = not listed and any(not isinstance(each, MixRefused) for each in failures)
        if pending:
            self._left.append(descriptor)
        if failures:
            closed = self._closed(descriptor, (), void=True)
            return AttemptOutcome(descriptor.digest, closed=closed, pending=pending)
        return AttemptOutcome(
            descriptor.digest,
            closed=self._closed(descriptor, endings, void=True),
            evidence=_evidence(descriptor, chain, endings) if chain else None,
            traced=self._traced(descriptor, chain, endings),
        )

    def _closed(
        self, descriptor: Descriptor, endings: Sequence[round_pb2.Ending], *, void: bool
    ) -> channel_pb2.RoundClosed:
        return sign_closing(descriptor.digest, endings, self._sign_key, void=void)

    def _traced(
        self, descriptor: Descriptor, chain: Chain, endings: Sequence[round_pb2.Ending]
    ) -> tuple[int, ...]:
        """The places of silos that should check if their report was dropped: all, if one was.

        A mix may name another silo than the one whose report it dropped; only the latter can tell.
        """
        if not any(each.dropped for each in chain):
            return ()
        self._name_dropped(descriptor, chain, endings)
        return tuple(sorted(self._study.places[silo] for silo in descriptor.silos))

    def _name_dropped(
        self, descriptor: Descriptor, chain: Chain, endings: Sequence[round_pb2.Ending]
    ) -> None:
        """Log whose reports were dropped, as the mixes say, and keep the evidence."""
        try:
            drops = trace(chain, endings, descriptor, self._study)
        except (BrokenChain, ForgedSignature) as error:
            logs.warning("drop_not_traced", round=descriptor.round, reason=error)
            return
        file = self._complaints.keep(descriptor, _evidence(descriptor, chain, endings))
        for drop in drops:
            logs.warning(
                "report_dropped",
                round=descriptor.round,
                mix=self._study.mixes[drop.hop].name,
                silo=self._study.silos[drop.silo].name,
                file=file,
                hint="the silo sealed it wrongly, or the mix lies: the silo's operator can tell",
            )

    # What is still to be found out ----------------------------------------------------------------

    async def settle_left(self) -> list[AttemptOutcome]:
        """Ask the mixes about every attempt of which they have not said all yet.

        Rounds that were open when the coordinator died are among them: they are void.
        """
        left, self._left = self._left, []
        settled = []
        for descriptor in left:
            known = self._journal.outcome(descriptor.digest)
            listed = known is not None and known.committed is not None
            outcome = await self.void(descriptor, listed=listed)
            self._journal.settled(outcome)
            settled.append(outcome)
        return settled

    # What a silo is told --------------------------------------------------------------------------

    def events(self, digest: RoundDigest, silo: str) -> list[Event]:
        """The list and closing of D, for a silo that does not know what became of its report."""
        known = self._journal.outcome(digest)
        if known is None:
            return []
        told = []
        if known.committed is not None:
            told.append(Event(committed=known.committed))
        if known.closed is not None:
            told.append(Event(closed=closing_for(known, self._study.places[silo])))
        return told

    def passages(self, digest: RoundDigest) -> list[Event]:
        """The statement and ending of every mix about a void round; nothing of any other."""
        known = self._journal.outcome(digest)
        if known is None or known.evidence is None:
            return []
        return passages(digest, known.evidence.chain, known.evidence.endings)


def closing_for(outcome: AttemptOutcome, place: int) -> channel_pb2.RoundClosed:
    """The closing of a round for the silo at `place`, with whether its report may be dropped."""
    closed = channel_pb2.RoundClosed()
    if outcome.closed is not None:
        closed.CopyFrom(outcome.closed)
    closed.traced = place in outcome.traced
    return closed


def _evidence(
    descriptor: Descriptor, chain: Chain, endings: Sequence[round_pb2.Ending]
) -> channel_pb2.Complaint:
    """The evidence from which anybody can find out who dropped what."""
    return channel_pb2.Complaint(descriptor=descriptor.to_wire(), chain=chain, endings=endings)
