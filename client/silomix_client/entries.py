"""What stands in a ledger: approvals, events, and what they add up to, as values and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from math import isclose
from typing import Any

from silomix_core.accounting.budget import NOTHING, Budget, Loss
from silomix_core.accounting.composition import Transcript, epsilon_of
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.attendance import Attendance, attend
from silomix_core.mechanism import Mechanism, Participant
from silomix_core.study import Study

from silomix_client.config import MAIN
from silomix_client.errors import NotApproved
from silomix_client.keystream import derived_key, stream_of


@dataclass(frozen=True)
class Approval:
    """A study that this silo may answer: on which snapshot, out of which budget, as which silo."""

    study: Study
    silo: str
    snapshot: bytes
    partition: bytes = field(repr=False)  # secret key of the split into phases, and of check-ins
    population: str = MAIN
    closed: bool = False
    plan: Sequence[dict[str, Any]] = ()  # as it was written down; empty before that

    @cached_property
    def participant(self) -> Participant:
        own = self.study.silo(self.silo)
        if own is None:
            raise NotApproved(f"the study does not name {self.silo!r} among its silos")
        return self.study.participant(own)

    @cached_property
    def mechanism(self) -> Mechanism:
        return self.study.mechanism()

    @cached_property
    def attendance(self) -> Attendance:
        """In which rounds this silo takes part: the same at every start."""
        place = [silo.name for silo in self.study.silos].index(self.silo)
        return attend(self.mechanism, place, stream_of(derived_key(self.partition, "check-ins")))

    def event(self, round_number: int) -> tuple[int, PrivacyEvent]:
        """The phase of a round and what taking part costs: what was agreed to, to the last bit.

        Another release, or another machine's numerical libraries, may derive another noise scale.
        A little more noise than agreed is fine, less is not.
        """
        phase = self.mechanism.phase_of(round_number)
        if phase not in self._events:
            self._events[phase] = self._event(phase)
        return phase, self._events[phase]

    @cached_property
    def _events(self) -> dict[int, PrivacyEvent]:
        return {}

    def _event(self, phase: int) -> PrivacyEvent:
        derived = self.mechanism.event(self.participant, phase)
        if not self.plan:
            return derived
        agreed, _ = planned_event(self.plan, phase)
        if derived.sensitivity > agreed.sensitivity * (1 + 1e-6):
            raise NotApproved("this release would add less noise than was agreed to")
        return agreed

    def planned(self, budget: Budget) -> Loss:
        """What the whole study may cost."""
        return worst(budget, self.mechanism.transcripts(self.participant))


@dataclass(frozen=True, slots=True)
class Spending:
    """What was charged in one study: for each phase, its events and how often."""

    phases: tuple[Transcript, ...]

    @property
    def rounds(self) -> int:
        return sum(count for transcript in self.phases for _, count in transcript)

    def epsilon(self, delta: float) -> float:
        """ε of what was sent so far; phases are disjoint in records, so the worst counts."""
        return max((epsilon_of(transcript, delta) for transcript in self.phases), default=0.0)

    def loss(self, budget: Budget) -> Loss:
        return worst(budget, self.phases)

    def rounds_of(self, phase: int) -> int:
        """Charged rounds of one phase."""
        return sum(count for _, count in self.phases[phase]) if phase < len(self.phases) else 0

    def with_round(self, phase: int, event: PrivacyEvent) -> "Spending":
        """The same with one more charged round."""
        missing = phase + 1 - len(self.phases)
        phases = [*self.phases, *([()] * missing)]
        phases[phase] = (*phases[phase], (event, 1))
        return Spending(tuple(phases))


@dataclass(frozen=True, slots=True)
class Total:
    """What was answered in all studies of a population, in the unit of its budget."""

    budget: Budget
    rounds: int
    loss: Loss

    def epsilon(self, delta: float | None = None) -> float:
        return self.budget.epsilon(self.loss, delta)


def worst(budget: Budget, phases: Sequence[Transcript]) -> Loss:
    """A record is in one phase, and nobody says which: the largest of their losses."""
    largest = NOTHING
    for transcript in phases:
        loss = sum((budget.loss(event, count) for event, count in transcript), NOTHING)
        largest = largest.at_least(loss)
    return largest


# As JSON ------------------------------------------------------------------------------------------


def approval_line(approval: Approval, now: datetime) -> dict[str, Any]:
    return {
        "kind": "approval",
        "at": now.isoformat(),
        "study": approval.study.identity.hex(),
        "name": approval.study.name,
        "silo": approval.silo,
        "records": approval.participant.records,
        "population": approval.population,
        "snapshot": approval.snapshot.hex(),
        "partition": sha256(approval.partition).hexdigest(),
        "plan": plan_line(approval),
    }


def plan_line(approval: Approval) -> list[dict[str, Any]]:
    """The events that were agreed to: runs of like phases, their rounds, the event of a round."""
    (transcripts, lines) = approval.mechanism.transcripts(approval.participant), []
    for ((event, rounds),), run in groupby(transcripts):
        lines.append({"phases": len(list(run)), "rounds": rounds, "event": event_line(event)})
    return lines


def event_line(event: PrivacyEvent) -> dict[str, Any]:
    """The event's fields by name; nothing in it is nested."""
    line = {each.name: getattr(event, each.name) for each in fields(event)}
    return line | {"scheme": event.scheme.value}


def event_of(line: dict[str, Any]) -> PrivacyEvent:
    return PrivacyEvent(**(line | {"scheme": Scheme(line["scheme"])}))


def planned_event(plan: Sequence[dict[str, Any]], phase: int) -> tuple[PrivacyEvent, int]:
    """The event of that phase in a plan, and how many rounds the phase has."""
    for run in plan:
        if phase < run["phases"]:
            return event_of(run["event"]), run["rounds"]
        phase -= run["phases"]
    raise ValueError("the plan has no such phase")


def is_plan_of(plan: Sequence[dict[str, Any]], approval: Approval) -> bool:
    """Whether a recorded plan is what the study asks for, give or take numerical libraries."""
    derived = plan_line(approval)
    return len(plan) == len(derived) and all(
        (one["phases"], one["rounds"]) == (two["phases"], two["rounds"])
        and one["event"] | {"sensitivity": 0} == two["event"] | {"sensitivity": 0}
        and isclose(one["event"]["sensitivity"], two["event"]["sensitivity"], rel_tol=2e-3)
        for one, two in zip(plan, derived, strict=True)
    )
