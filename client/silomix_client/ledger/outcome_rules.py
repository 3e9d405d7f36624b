"""What became of a silo's last report, and when a silo stops: state machines without I/O.

A fault must not stop a silo, an attack must, and signed statements tell them apart.  Of a report
that was answered the silo knows one of: its digest is in a list that every mix stands by (LISTED);
such a list lacks it although the first mix gave a receipt for it (MISSING: no fault does that);
every mix stated that nothing of the batch will ever be opened (VOID: budget is lost, no more than
that); or none of these (UNHEARD).  Two missing reports in a study, whatever happened in between, or
half of the last rounds missing or unheard: then somebody loses what this silo sends.  A round that
the study prescribes and the server does not tell of counts too: as missing while the silo listened
all the time, as unheard if the connection broke.  Otherwise a server could ask one silo every
second time, and learn from the difference what it said.

`ReportOutcome` also says whether the server used the report, which its next control variate depends
on: in a study with control variates no other round is answered before that is known.
"""

from dataclasses import dataclass, replace
from enum import Enum

from silomix_proto import mix_pb2
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

from silomix_client.errors import RefusedQuery

MISSING_BEFORE_STOP = 2  # in a study
MOST_SAME = 4  # answers to one question without every mix's word that the last one was void
UNHEARD_BEFORE_STOP, WINDOW = 8, 16


class Fate(Enum):
    LISTED = "listed"
    MISSING = "missing"
    VOID = "void"
    UNHEARD = "unheard"


class Closing(Enum):
    """The coordinator's signed word about a round: was the batch used?"""

    OPEN = 0
    USED = 1
    VOID = 2


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """What is known of a report of D since it was sent."""

    receipt: mix_pb2.Receipt | None = None
    committed: bytes | None = None  # SHA-256 of the one list that every mix stands by
    included: bool = False  # its digest is in that list
    closing: Closing = Closing.OPEN
    ended: bool = False  # every mix stated that nothing of the batch will be opened

    def listed(self, list_hash: bytes, *, included: bool) -> "ReportOutcome":
        """The outcome after a list that every mix signed; a second list of D is refused."""
        if self.committed not in (None, list_hash):
            raise RefusedQuery("the server committed to two lists for one round")
        return replace(self, committed=list_hash, included=included)

    def closed(self, *, void: bool, ended: bool) -> "ReportOutcome":
        """The outcome after the coordinator's word, used or void; the contrary later is refused."""
        closing = Closing.VOID if void else Closing.USED
        if self.closing not in (Closing.OPEN, closing):
            raise RefusedQuery("the server said of one round that it was void, and that it was not")
        return replace(self, closing=closing, ended=self.ended or ended)

    @property
    def fate(self) -> Fate:
        if self.included:
            return Fate.LISTED
        if self.committed is not None:  # without a receipt nobody owes us the report
            return Fate.UNHEARD if self.receipt is None else Fate.MISSING
        return Fate.VOID if self.ended else Fate.UNHEARD

    @property
    def settled(self) -> bool:
        """Whether it is known if the report was used."""
        if self.closing is Closing.USED:
            return self.committed is not None
        return self.closing is Closing.VOID

    @property
    def used(self) -> bool:
        return self.included and self.closing is Closing.USED


NOTHING = ReportOutcome()


def may_answer(
    last: Descriptor | None, known: ReportOutcome, asked: Descriptor, *, control: bool
) -> bool:
    """Whether another round may be answered now; with control variates only after a settled one.

    A further attempt of the last round brings nothing new: it is the same report.
    """
    if last is None or last.round == asked.round or not control:
        return True
    return known.settled


def is_sealed_again(earlier: Descriptor, known: ReportOutcome, asked: Descriptor) -> bool:
    """Whether the stored report of `earlier` is to be sealed for this attempt, or sent as it is.

    To be sealed again it also takes every mix's word that it abandoned the attempt before.  Raises
    RefusedQuery for any other question.
    """
    number = asked.round
    if asked.digest == earlier.digest:
        return False
    if asked.query != earlier.query:
        raise RefusedQuery(f"round {number} was asked again with another query")
    if asked.token_key != earlier.token_key:
        raise RefusedQuery(f"round {number} was asked again with another token key")
    if asked.attempt <= earlier.attempt:
        raise RefusedQuery(f"round {number} was asked again without being a later attempt")
    if known.committed is not None:
        raise RefusedQuery(f"round {number} was asked again after its reports had come out")
    return True


def may_repeat(known: ReportOutcome, answers: int) -> bool:
    """Whether a question may be answered again in another round; `known` is of the last answer.

    It may if nothing of that answer will ever be opened, as all mixes say; by the server's word
    alone a few times, since the server may have died just when it had the mixes' keys.
    """
    if known.ended:
        return True
    return known.closing is Closing.VOID and answers < MOST_SAME


@dataclass(frozen=True, slots=True)
class Tally:
    """The count of what became of a silo's reports over a study."""

    missing: int = 0  # reports, and rounds that the silo was left out of
    unheard: tuple[bool, ...] = ()  # of the last rounds that were not void: whether nothing came
    last: RoundDigest | None = None  # the last report that was judged, and how
    fate: Fate | None = None

    def judged(self, digest: RoundDigest, fate: Fate) -> "Tally":
        """Count what became of a report, once for each D; late news takes the place of no news."""
        before = self
        if digest == self.last:
            if fate is self.fate or self.fate is not Fate.UNHEARD:
                return self
            before = replace(self, unheard=self.unheard[:-1])
        unheard = before.unheard
        if fate is not Fate.VOID:
            unheard = (*unheard, fate is not Fate.LISTED)[-WINDOW:]
        return Tally(before.missing + (fate is Fate.MISSING), unheard, digest, fate)

    def left_out(self, *, listening: bool) -> "Tally":
        """Count prescribed rounds that this silo was not told of, however many in a row."""
        if listening:
            return replace(self, missing=self.missing + 1)
        return replace(self, unheard=(*self.unheard, True)[-WINDOW:])

    @property
    def stops(self) -> bool:
        """Whether our reports go nowhere: time for the operator to ask why."""
        return self.missing >= MISSING_BEFORE_STOP or sum(self.unheard) >= UNHEARD_BEFORE_STOP
