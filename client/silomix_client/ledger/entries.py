"""What stands in a ledger: approvals, events, and what they add up to, as values and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from math import isclose
from typing import Any

from silomix_core.accounting.budget import NOTHING, Budget, PrivacyLoss
from silomix_core.accounting.composition import Transcript, epsilon_of
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.mechanism.attendance import Attendance, attend
from silomix_core.mechanism.mechanism import Mechanism, Participant
from silomix_core.study.study import Study

from silomix_client.config.silo_config import MAIN
from silomix_client.errors import NotApproved
from silomix_client.random_stream import derived_key, stream_of


@dataclass(frozen=True)
class Approval:
    """A study that this silo may answer: on which snapshot, out of which budget, as which silo."""

    study: Study
    silo: str
    snapshot: bytes
    partition: bytes = field(repr=False)  # secret of the split, check-ins and noise; b"" when gone
    population: str = MAIN
    closed: bool = False
    plan: Sequence[dict[str, Any]] = ()  # as the ledger has it; empty before it was written down
    at: str = ""  # when the approval was given

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
        """The rounds in which this silo takes part: the same at every start."""
        place = [silo.name for silo in self.study.silos].index(self.silo)
        return attend(self.mechanism, place, stream_of(derived_key(self.partition, "check-ins")))

    def event(self, round_number: int) -> tuple[int, PrivacyEvent]:
        """The phase of a round and the event of each of its steps, to the last bit as agreed to.

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
        agreed = planned_run(self.plan, phase)
        known = self.mechanism.phases[phase]
        if known.steps != agreed.steps or known.answers > agreed.rounds:
            raise NotApproved("this release would take more steps than were agreed to")
        if derived.sensitivity > agreed.event.sensitivity * (1 + 1e-6):
            raise NotApproved("this release would add less noise than was agreed to")
        return agreed.event

    def planned(self, budget: Budget) -> PrivacyLoss:
        """The loss that the whole study may cost."""
        return worst(budget, self.mechanism.transcripts(self.participant))


@dataclass(frozen=True, slots=True)
class Spending:
    """The charges of one study: for each phase its events and their counts; rounds charged."""

    phases: tuple[Transcript, ...]
    rounds: int

    def epsilon(self, delta: float) -> float:
        """The ε of what was sent so far; phases are disjoint in records, so the worst counts."""
        return max((epsilon_of(transcript, delta) for transcript in self.phases), default=0.0)

    def loss(self, budget: Budget) -> PrivacyLoss:
        return worst(budget, self.phases)

    def events_of(self, phase: int) -> int:
        """The number of charged events of one phase."""
        return sum(count for _, count in self.phases[phase]) if phase < len(self.phases) else 0

    def with_round(self, phase: int, event: PrivacyEvent, times: int) -> "Spending":
        """The spending with one more charged round, in which `event` happened so many times."""
        missing = phase + 1 - len(self.phases)
        phases = [*self.phases, *([()] * missing)]
        phases[phase] = (*phases[phase], (event, times))
        return Spending(tuple(phases), self.rounds + 1)


@dataclass(frozen=True, slots=True)
class Total:
    """The rounds and the loss of a population's studies, in the unit of its budget."""

    budget: Budget
    rounds: int
    loss: PrivacyLoss

    def epsilon(self, delta: float | None = None) -> float:
        return self.budget.epsilon(self.loss, delta)


def worst(budget: Budget, phases: Sequence[Transcript]) -> PrivacyLoss:
    """The largest loss of any phase: a record is in one of them, and nobody says which."""
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
    """The plan that was agreed to: runs of like phases, their rounds, the event of a step."""
    mechanism, lines = approval.mechanism, []
    pairs = zip(mechanism.phases, mechanism.transcripts(approval.participant), strict=True)
    costs = ((phase.answers, phase.steps, event) for phase, ((event, _),) in pairs)
    for (rounds, steps, event), run in groupby(costs):
        line = {"phases": len(list(run)), "rounds": rounds, "steps": steps}
        lines.append(line | {"event": event_line(event)})
    return lines


def event_line(event: PrivacyEvent) -> dict[str, Any]:
    """The event's fields by name; nothing in it is nested."""
    line = {each.name: getattr(event, each.name) for each in fields(event)}
    return line | {"scheme": event.scheme.value}


def event_of(line: dict[str, Any]) -> PrivacyEvent:
    return PrivacyEvent(**(line | {"scheme": Scheme(line["scheme"])}))


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What a plan says about a phase: the event of each step, steps in a round, rounds charged."""

    event: PrivacyEvent
    steps: int
    rounds: int


def planned_run(plan: Sequence[dict[str, Any]], phase: int) -> PlannedRun:
    for run in plan:
        if phase < run["phases"]:
            return PlannedRun(event_of(run["event"]), run["steps"], run["rounds"])
        phase -= run["phases"]
    raise ValueError("the plan has no such phase")


def whole_plan(
    plan: Sequence[dict[str, Any]],
) -> Iterator[tuple[int, PrivacyEvent, int, int]]:
    """For each phase: its number, its event, how often that may happen, in how many rounds."""
    runs = (run for run in plan for _ in range(run["phases"]))
    for phase, run in enumerate(runs):
        yield phase, event_of(run["event"]), run["steps"] * run["rounds"], run["rounds"]


def is_plan_of(plan: Sequence[dict[str, Any]], approval: Approval) -> bool:
    """Whether a recorded plan is the study's own, up to what numerical libraries differ by."""
    derived = plan_line(approval)
    return len(plan) == len(derived) and all(
        all(one[key] == two[key] for key in ("phases", "rounds", "steps"))
        and one["event"] | {"sensitivity": 0} == two["event"] | {"sensitivity": 0}
        and isclose(one["event"]["sensitivity"], two["event"]["sensitivity"], rel_tol=2e-3)
        for one, two in zip(plan, derived, strict=True)
    )
