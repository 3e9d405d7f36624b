"""A small world: silos and mixes that keep to the rules, and everybody else, who need not.

Three silos, a chain of two mixes, rounds, attempts, variants.  The server says whatever its
vocabulary has (`silo`, `mix`), in any order, to anybody; so does the mix that is not honest, which
also signs anything, and so do silos that collude.  Honest parties crash and lose their power at any
time.  A signature of an honest party exists only after it signed, and what was ever signed or given
away stays known: that is kept beside the states of the parties, and is never looked up in them.

What must hold in every state (`wrong` names what does not):

1. no payload is opened in two batches;
2. no report is opened that is not in the one list which its honest mixes signed, confirmed by as
   many silos as the batch has reports (k at least), behind an honest first mix by its own silo;
3. a silo charges a round once;
4. and noises it once;
5. a silo with a receipt that is shown a list confirms it or complains, confirms only what it is in
   and what every honest mix signed, and one list for each D; it sends a report again only for the
   same question and after every mix abandoned it, and answers nothing after two are missing;
6. a mix that signed that D is void or abandoned gives its key of D never afterwards; one that gave
   it does not sign so without doubt, discloses nothing, and abandons nothing that left;
7. a mix signs one list for each D, of as many different reports as it forwarded, forwards one
   batch for each D, and opens no further attempt of what it forwarded;
8. every report that an honest first mix gave a receipt for is in what it forwards.

**Why fewer states are all states.**  *Symmetry*: which silo is which matters to nobody.  A silo's
state names no other silo (lists have tags, by the order in which mixes signed them), so a world is
the same after its silos are sorted; a mix's state is renamed by taking its steps again with other
names.  *Knowing more*: a release is tried with all confirmations that exist, and a further attempt
asked with all abandonments that exist.  A refusal changes nothing, and the rules of both are
monotone (more valid statements never turn a yes into a no), so fewer would lead nowhere else.
*Steps that lead nowhere* (the same state, nothing said that is new) are taken, and not followed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exploration.machines import Event, Output
from exploration.mix import PLACES, Listed, bits, permuted
from exploration.players import MixPlayer, SiloPlayer
from exploration.questions import Name
from exploration.vocabulary import (
    MINIMUM,
    UNSIGNED,
    Evil,
    Vocabulary,
    about,
    closings,
    faults,
    incoming,
    shown,
    unsigned,
)
from silomix_client.ledger.outcome_rules import MISSING_BEFORE_STOP

_COLLUDING = -1  # instead of a silo's history

Here = tuple[int, ...]  # silos' histories, honest mixes' states round by round, what is known
Places = tuple[int, ...]
_SWAPS: dict[tuple[int, int], Places] = {(0, 1): (1, 0, 2), (0, 2): (2, 1, 0), (1, 2): (0, 2, 1)}


@dataclass(frozen=True, slots=True)
class Silo:
    """A silo, by the number of its state, and all that it ever sent and said."""

    state: int
    sent: frozenset[Name] = frozenset()  # onions that left
    payloads: frozenset[tuple[int, Any]] = frozenset()  # round, which
    confirmed: frozenset[tuple[Name, int]] = frozenset()  # D, the tag of the list
    missing: frozenset[int] = frozenset()  # rounds that it complained about
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What honest mixes signed and gave away; (hop, D, …) each."""

    lists: tuple[tuple[Name, Listed], ...] = ()  # in the order of the first signature: their tags
    listed: frozenset[tuple[int, Name, Listed]] = frozenset()
    receipts: frozenset[tuple[Name, int]] = frozenset()
    left: frozenset[tuple[int, Name, int, int]] = frozenset()  # …, whose reports, fakes
    keys: frozenset[tuple[int, Name]] = frozenset()
    abandoned: frozenset[tuple[int, Name]] = frozenset()
    voided: frozenset[tuple[int, Name]] = frozenset()
    certain: frozenset[tuple[int, Name]] = frozenset()  # of those voided
    wrong: str = ""

    def lists_of(self, name: Name) -> list[Listed]:
        """The lists of D that honest mixes signed, by their tags."""
        return [listed for each, listed in self.lists if each == name]

    def renamed(self, places: Places) -> "Known":
        def moved(listed: Listed) -> Listed:
            return permuted(listed[0], places), *listed[1:]

        return Known(
            tuple((name, moved(each)) for name, each in self.lists),
            frozenset((hop, name, moved(each)) for hop, name, each in self.listed),
            frozenset((name, places[silo]) for name, silo in self.receipts),
            frozenset((hop, name, permuted(own, places), n) for hop, name, own, n in self.left),
            self.keys,
            self.abandoned,
            self.voided,
            self.certain,
            self.wrong,
        )


class Interned:
    """Values by small numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = []

    def number(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class SmallWorld:
    """Everything that can happen around a silo's and honest mixes' machines."""

    def __init__(
        self,
        silo: SiloPlayer,
        mixes: Sequence[Sequence[MixPlayer]],
        evil: Evil,
        may: Vocabulary,
    ) -> None:
        """`mixes` has, for every honest mix, a machine for every round."""
        self._silo, self._evil, self._may = silo, evil, may
        self._rounds, self._hops = may.names, evil.honest
        self._players = [each for own in mixes for each in own]
        self._where = [(hop, names) for hop in self._hops for names in self._rounds]
        self._all_names = [each for names in self._rounds for each in names]
        self._silos, self._knowns = Interned(), Interned()
        self._silo_steps: dict[Any, int] = {}
        self._mix_steps: dict[Any, tuple[int, int]] = {}
        self._memberships_in: dict[int, tuple[Any, ...]] = {}
        self._renamed: dict[tuple[int, Places], int] = {}
        self._judged: dict[Any, str | None] = {}
        self._from_mix: dict[Any, list[tuple[Event, int, int]]] = {}
        self._from_silo: dict[Any, list[tuple[Event, int]]] = {}
        self._said_to_mixes, self._handovers = Interned(), dict[int, int]()

    def taken(self) -> set[tuple[str, Any]]:
        """The kinds of steps that were taken, those that led nowhere too."""
        silos = {("silo", event[0]) for _, event in self._silo_steps}
        return silos | {("mix", event[0]) for _, _, event, _ in self._mix_steps}

    def said(self, here: Here) -> tuple[tuple[Any, ...], Known]:
        """What every silo sent and said, and what mixes did, in a state."""
        told = tuple(
            None
            if row == _COLLUDING
            else [sorted(each) for each in (silo.sent, silo.payloads, silo.confirmed, silo.missing)]
            for row in here[:3]
            for silo in [self._silos.values[row]]
        )
        return told, self._knowns.values[here[-1]]

    def start(self) -> Here:
        first = self._silos.number(Silo(self._silo.first))
        honest = len(PLACES) - self._may.colluding
        rows = (_COLLUDING,) * self._may.colluding + (first,) * honest
        return (*rows, *(each.first for each in self._players), self._knowns.number(Known()))

    # Moves ----------------------------------------------------------------------------------------

    def moves(self, here: Here) -> Iterator[tuple[Any, Here]]:
        rows, states, known = here[:3], here[3:-1], here[-1]
        for place in PLACES:
            if rows[place] == _COLLUDING or self._has_twin_before(here, place):
                continue
            for event, after in self._steps_of_silo(rows[place], known, place):
                changed = (*rows[:place], after, *rows[place + 1 :])
                there = self._sorted(changed, states, known)
                yield ("silo", event[0], place, event), there
        for at, state in enumerate(states):
            for event, after, known_after in self._steps_of_mix(at, state, known, rows):
                changed = (*states[:at], after, *states[at + 1 :])
                there = self._sorted(rows, changed, known_after)
                yield ("mix", event[0], self._where[at][0], event), there

    # What may be said to a silo -------------------------------------------------------------------

    def _steps_of_silo(self, row: int, known: int, place: int) -> list[tuple[Event, int]]:
        """All steps that lead somewhere."""
        key = row, known, place
        if key not in self._from_silo:
            events = self._silo_vocabulary(row, known, place)
            steps = [(event, self._silo_step(row, event)) for event in events]
            self._from_silo[key] = [each for each in steps if each[1] != row]
        return self._from_silo[key]

    def _silo_vocabulary(self, row: int, known_number: int, place: int) -> Iterator[Event]:
        silo, known = self._silos.values[row], self._knowns.values[known_number]
        for names in self._rounds:
            ended = [each for each in names if self._all_said(known.abandoned, each)]
            for name in names:
                yield "ask", name, tuple(each for each in ended if each[1] < name[1])
                if name in silo.sent:
                    yield from self._about_report(known, place, name)
        yield from faults(self._may)

    def _about_report(self, known: Known, place: int, name: Name) -> Iterator[Event]:
        if 0 not in self._hops or (name, place) in known.receipts:
            yield "receipt", name
        if not self._hops:
            yield from shown(name, self._evil, self._may)
            yield from self._closings(known, name)
            return
        for tag, listed in enumerate(known.lists_of(name)):
            silos, fakes, doubled = listed
            mine = bool(silos >> place & 1)
            others = silos.bit_count() - mine + fakes
            signers = tuple(
                hop
                for hop in (0, 1)
                if hop not in self._hops or (hop, name, listed) in known.listed
            )
            told = tag if len(signers) == len((0, 1)) else UNSIGNED
            yield "list", name, mine, others, doubled, told, signers
        yield unsigned(name, True, self._evil)
        yield unsigned(name, False, self._evil)
        yield from self._closings(known, name)

    def _closings(self, known: Known, name: Name) -> Iterator[Event]:
        if self._may.closings:
            yield from closings(name, ended=self._all_said(known.abandoned | known.certain, name))

    def _all_said(self, said: frozenset[tuple[int, Name]], name: Name) -> bool:
        return all((hop, name) in said for hop in self._hops)

    def _silo_step(self, row: int, event: Event) -> int:
        key = row, event
        if key not in self._silo_steps:
            before: Silo = self._silos.values[row]
            state, said = self._silo.step(before.state, event)
            after = self._heard(before, state, event, said)
            self._silo_steps[key] = self._silos.number(after)
        return self._silo_steps[key]

    def _heard(self, before: Silo, state: int, event: Event, said: Output) -> Silo:
        """The silo's history after what it said to an event."""
        after = replace(before, state=state)
        for word in said:
            match word:
                case ("report", name, payload):
                    after = _sent_report(after, name, payload, event)
                case ("confirmed", name, tag):
                    after = _confirmed(after, name, tag, event)
                case ("complained", name, tag):
                    if tag == UNSIGNED or event[2]:
                        after = replace(after, wrong="complained about a list without cause")
                    after = replace(after, missing=after.missing | {name[0]})
                case ("silent", _):
                    after = replace(after, wrong="neither confirmed nor complained")
        if self._silo.charged_twice(state):
            after = replace(after, wrong="charged a round twice")
        return after

    # What may be said to a mix --------------------------------------------------------------------

    def _steps_of_mix(
        self, at: int, state: int, known: int, rows: Sequence[int]
    ) -> list[tuple[Event, int, int]]:
        """All steps that lead somewhere; of silos only what they sent and confirmed matters."""
        key = at, state, known, *(self._handed_over(row) for row in rows)
        if key not in self._from_mix:
            events = self._mix_vocabulary(at, state, known, rows)
            steps = [(event, *self._mix_step(at, state, event, known)) for event in events]
            self._from_mix[key] = [each for each in steps if each[1:] != (state, known)]
        return self._from_mix[key]

    def _handed_over(self, row: int) -> int:
        """The same number for silos that sent and confirmed the same."""
        if row == _COLLUDING:
            return _COLLUDING
        if row not in self._handovers:
            silo: Silo = self._silos.values[row]
            self._handovers[row] = self._said_to_mixes.number((silo.sent, silo.confirmed))
        return self._handovers[row]

    def _mix_vocabulary(
        self, at: int, state: int, known_number: int, rows: Sequence[int]
    ) -> Iterator[Event]:
        known: Known = self._knowns.values[known_number]
        hop, names = self._where[at]
        for name in names:
            view = self._players[at].view(state, name)
            yield from about(name, view, self._may)
            if view is None:
                continue
            if hop == 0 or self._evil is Evil.FIRST:
                yield from incoming(name, hop, self._sent(rows, name), view, self._may)
            else:  # the mix before is honest and hands on what it has
                left = [each[2:] for each in known.left if each[:2] == (0, name)]
                yield from (("take", name, *each) for each in left)
            for tag, listed in enumerate(known.lists_of(name)):
                if (hop, name, listed) in known.listed:
                    yield "release", name, listed, self._confirmations(rows, name, tag)
        yield from faults(self._may)

    def _sent(self, rows: Sequence[int], name: Name) -> int:
        """Whose reports of D there are."""
        return sum(
            1 << place
            for place in PLACES
            if rows[place] == _COLLUDING or name in self._silos.values[rows[place]].sent
        )

    def _confirmations(self, rows: Sequence[int], name: Name, tag: int) -> int:
        return sum(
            1 << place
            for place in PLACES
            if rows[place] == _COLLUDING or (name, tag) in self._silos.values[rows[place]].confirmed
        )

    def _mix_step(self, at: int, state: int, event: Event, known: int) -> tuple[int, int]:
        key = at, state, event, known
        if key not in self._mix_steps:
            after, said = self._players[at].step(state, event)
            values = self._knowns.values[known]
            for word in said:
                values = _learned(values, self._where[at][0], word)
            self._mix_steps[key] = after, self._knowns.number(values)
        return self._mix_steps[key]

    # Which silo is which matters to nobody --------------------------------------------------------

    def _sorted(self, rows: Sequence[int], states: Sequence[int], known: int) -> Here:
        """The same world with its silos in order."""
        if self._may.colluding:
            return (*rows, *states, known)
        marks = [
            (
                rows[each],
                mark,
                *(self._players[at].marks(own)[each] for at, own in enumerate(states)),
            )
            for each, mark in enumerate(self._memberships(known))
        ]
        order = sorted(PLACES, key=marks.__getitem__)
        if order == list(PLACES):
            return (*rows, *states, known)
        places = [0] * len(PLACES)
        for new, old in enumerate(order):
            places[old] = new
        moved = tuple(places)
        renamed = (self._players[at].renamed(own, moved) for at, own in enumerate(states))
        return (*(rows[each] for each in order), *renamed, self._known_renamed(known, moved))

    def _has_twin_before(self, here: Here, place: int) -> bool:
        """Whether swapping this silo with one before it changes nothing at all: then all that can
        happen to it can happen to the other one, and leads to the same."""
        for other in range(self._may.colluding, place):
            if here[other] == here[place]:
                swap = _SWAPS[other, place]
                states = here[3:-1]
                if self._known_renamed(here[-1], swap) == here[-1] and all(
                    self._players[at].renamed(own, swap) == own for at, own in enumerate(states)
                ):
                    return True
        return False

    def _known_renamed(self, known: int, places: Places) -> int:
        if (known, places) not in self._renamed:
            other = self._knowns.values[known].renamed(places)
            self._renamed[known, places] = self._knowns.number(other)
        return self._renamed[known, places]

    def _memberships(self, known: int) -> tuple[Any, ...]:
        """In what of all that is known each silo is."""
        if known not in self._memberships_in:
            values = self._knowns.values[known]
            self._memberships_in[known] = tuple(
                (
                    tuple(listed[0] >> each & 1 for _, listed in values.lists),
                    tuple(sorted(name for name, silo in values.receipts if silo == each)),
                    tuple((h, n) for h, n, own, _ in sorted(values.left) if own >> each & 1),
                )
                for each in PLACES
            )
        return self._memberships_in[known]

    # What must hold -------------------------------------------------------------------------------

    def wrong(self, here: Here) -> str | None:
        rows, known_number = here[:3], here[-1]
        key = *rows, known_number
        if key not in self._judged:
            self._judged[key] = self._judge(rows, self._knowns.values[known_number])
        return self._judged[key]

    def _judge(self, rows: Sequence[int], known: Known) -> str | None:
        if known.wrong:
            return known.wrong
        for place in PLACES:
            if rows[place] == _COLLUDING:
                continue
            silo: Silo = self._silos.values[rows[place]]
            problem = silo.wrong or self._wrongly_opened(rows, known, place)
            if problem:
                return f"silo {place}: {problem}"
        return None

    def _wrongly_opened(self, rows: Sequence[int], known: Known, place: int) -> str | None:
        opened = [name for name in self._all_names if self._is_open(known, name, place)]
        if len({name[0] for name in opened}) < len(opened):
            return "a payload was opened in two batches"
        for name in opened:
            problem = self._badly_opened(rows, known, name, place)
            if problem is not None:
                return problem
        return None

    def _is_open(self, known: Known, name: Name, place: int) -> bool:
        """Whether nothing keeps the adversary from reading the report; where no mix is honest
        nothing ever did."""
        return bool(self._hops) and all(
            (hop, name) in known.keys
            and any(h == hop and n == name and own >> place & 1 for h, n, own, _ in known.left)
            for hop in self._hops
        )

    def _badly_opened(
        self, rows: Sequence[int], known: Known, name: Name, place: int
    ) -> str | None:
        for hop in self._hops:
            lists = [listed for h, n, listed in known.listed if (h, n) == (hop, name)]
            if len(lists) != 1 or not lists[0][0] >> place & 1:
                return "a report was opened that is not in the list"
            confirmed = self._confirmations(rows, name, known.lists_of(name).index(lists[0]))
            if confirmed.bit_count() < max(MINIMUM, sum(lists[0][1:]) + lists[0][0].bit_count()):
                return "a report was opened without enough confirmations of its list"
            if hop == 0 and not confirmed >> place & 1:
                return "a report was opened whose silo did not confirm the list"
        return None


def _sent_report(silo: Silo, name: Name, payload: Any, event: Event) -> Silo:
    """A report left, for D; it may have left before only in attempts that all mixes abandoned."""
    _, asked, enclosed = event
    wrong = silo.wrong
    earlier = [each for each in silo.sent if each[0] == name[0] and each != name]
    if any(each[2] != name[2] for each in earlier):
        wrong = "sent a report again for another question"
    elif name not in silo.sent and max(earlier, default=None) not in (None, *enclosed):
        wrong = "sent a report again that not every mix had abandoned"
    if name != asked:
        wrong = "answered with a report of another round"
    payloads = silo.payloads | {(name[0], payload)}
    if len({number for number, _ in payloads}) < len(payloads):
        wrong = "noised a round twice"
    if len(silo.missing - {name[0]}) >= MISSING_BEFORE_STOP:
        wrong = "answered after two of its reports were missing"
    return replace(silo, sent=silo.sent | {name}, payloads=payloads, wrong=wrong)


def _confirmed(silo: Silo, name: Name, tag: int, event: Event) -> Silo:
    wrong, mine, doubled = silo.wrong, event[2], event[4]
    if tag == UNSIGNED:
        wrong = "confirmed a list that not every honest mix signed"
    elif not mine or doubled:
        wrong = "confirmed a list that it is not in"
    elif any(each == name and other != tag for each, other in silo.confirmed):
        wrong = "confirmed two lists of one round"
    return replace(silo, confirmed=silo.confirmed | {(name, tag)}, wrong=wrong)


def _learned(known: Known, hop: int, word: Any) -> Known:
    """What everybody knows when an honest mix has said this."""
    wrong = known.wrong
    match word:
        case ("receipt", name, silo):
            return replace(known, receipts=known.receipts | {(name, silo)})
        case ("forwarded", name, own, fakes):
            owed = {silo for each, silo in known.receipts if each == name}
            if hop == 0 and not owed <= set(bits(own)):
                wrong = "a mix forwarded less than it gave receipts for"
            if (hop, name) in known.abandoned:
                wrong = "a mix forwarded what it had abandoned"
            left = known.left | {(hop, name, own, fakes)}
            if len({each for each in left if each[:2] == (hop, name)}) > 1:
                left, wrong = known.left, "a mix forwarded two batches"
            return replace(known, left=left, wrong=wrong)
        case ("listed", name, listed):
            (batch,) = [each[2:] for each in known.left if each[:2] == (hop, name)] or [(0, 0)]
            if listed[2] or listed[0].bit_count() + listed[1] != batch[0].bit_count() + batch[1]:
                wrong = "a mix signed a list that cannot be what it forwarded"
            if any(each[:2] == (hop, name) and each[2] != listed for each in known.listed):
                wrong = "a mix signed two lists of one round"
            lists = known.lists
            if (name, listed) not in lists:
                lists = (*lists, (name, listed))
            signed = known.listed | {(hop, name, listed)}
            return replace(known, lists=lists, listed=signed, wrong=wrong)
        case ("key", name):
            if (hop, name) in known.voided | known.abandoned and (hop, name) not in known.keys:
                wrong = "a mix gave the key of a round that it had signed to be void"
            return replace(known, keys=known.keys | {(hop, name)}, wrong=wrong)
        case ("opened", name):
            if any(each[0] == hop and each[1][0] == name[0] for each in known.left):
                wrong = "a mix opened a round again that it had forwarded"
            return replace(known, wrong=wrong)
        case ("abandoned", name):
            if any(each[:2] == (hop, name) for each in known.left):
                wrong = "a mix abandoned what it had forwarded"
            return replace(known, abandoned=known.abandoned | {(hop, name)}, wrong=wrong)
        case ("voided", name, disclosed, uncertain):
            if (hop, name) in known.keys and (disclosed or not uncertain):
                wrong = "a mix that gave its key signed without doubt that it is destroyed"
            voided = known.voided | {(hop, name)}
            certain = known.certain | (set() if uncertain else {(hop, name)})
            return replace(known, voided=voided, certain=certain, wrong=wrong)
    return known
