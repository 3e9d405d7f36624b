"""The policy's rules about studies: what an operator allows, whatever anybody else asks.

Checked when a study is reviewed and approved, and with every lease against the policy as it is
then: a rule that was tightened afterwards holds for approved studies too.  Every rule only ever
refuses; a study or a server can say nothing that loosens one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from string import hexdigits

from silomix_core.accounting.budget import Budget
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Participant
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_core.task.task import Task
from silomix_core.toml_table import InvalidField, TomlTable
from silomix_protocol.keys import fingerprint

from silomix_client.config.hours import Hours, read_hours

# These hold unless the policy says otherwise.  Of three reports, no single other hospital that
# works with the server can tell which one is ours: of two, it could.
LEAST_PEOPLE, LEAST_BATCH = 11, 3
_SLACK = 1 + 1e-9  # for what calibration rounds
_FINGERPRINT_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a policy; None: no such rule.

    Parties are named by their keys: names are the study author's choice.
    """

    minimum_people: int = LEAST_PEOPLE
    minimum_batch: int = LEAST_BATCH
    most_rounds: int | None = None
    study_epsilon: float | None = None
    losses: frozenset[str] | None = None
    algorithms: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    mixes: frozenset[str] | None = None
    require_person_column: bool = False
    hours: Hours | None = None

    def objections(self, study: Study, own: Participant, budget: Budget) -> list[str]:
        """What these rules have against a study, in words; nothing if they allow it."""
        return [*self._about_people(study, own, budget), *self._about_the_study(study)]

    def _about_people(self, study: Study, own: Participant, budget: Budget) -> Iterator[str]:
        if own.records < self.minimum_people:
            yield (
                f"it is about {own.records} of your people, your policy asks for at least "
                f"{self.minimum_people} (minimum_people)"
            )
        if self.require_person_column and not names_persons(study.task):
            yield (
                "it does not say which column names a person, as your policy asks "
                "(require_person_column)"
            )
        if self.study_epsilon is None:
            return
        cost = study.mechanism().epsilon(own, budget.target.delta)
        if not cost <= self.study_epsilon * _SLACK:
            yield (
                f"it would cost epsilon {cost:.4g} at your delta {budget.target.delta:g}, your "
                f"policy allows {self.study_epsilon:g} for one study (study_epsilon)"
            )

    def _about_the_study(self, study: Study) -> Iterator[str]:
        if self.losses is not None and study.task.loss.value not in self.losses:
            yield f"its loss, {study.task.loss.value}, is not one of your policy's losses"
        if self.algorithms is not None and study.algorithm not in self.algorithms:
            yield f"its algorithm, {study.algorithm}, is not one of your policy's algorithms"
        if self.most_rounds is not None and study.rounds > self.most_rounds:
            yield (
                f"it has {study.rounds} rounds, your policy allows {self.most_rounds} (most_rounds)"
            )
        if study.batching.minimum < self.minimum_batch:
            yield (
                f"it mixes as few as {study.batching.minimum} reports, your policy asks for at "
                f"least {self.minimum_batch} (minimum_batch)"
            )
        if (
            self.servers is not None
            and fingerprint(study.server.sign_key).hex() not in self.servers
        ):
            yield f"the key of its server, {study.server.name}, is not one of your policy's servers"
        for mix in study.mixes:
            if self.mixes is not None and fingerprint(mix.sign_key).hex() not in self.mixes:
                yield f"the key of its mix {mix.name} is not one of your policy's mixes"


def names_persons(task: Task) -> bool:
    """Whether the study says which column names a person; else every row counts as one."""
    return task.person is not None


def read_rules(table: TomlTable) -> Rules:
    """The rules in a policy file; InvalidField for what cannot be meant."""
    epsilon = table.number("study_epsilon") if table.has("study_epsilon") else None
    if epsilon is not None and not epsilon > 0:
        raise InvalidField("study_epsilon must be above 0")
    return Rules(
        minimum_people=_at_least_one(table, "minimum_people", LEAST_PEOPLE),
        minimum_batch=_at_least_one(table, "minimum_batch", LEAST_BATCH),
        most_rounds=_at_least_one(table, "most_rounds", 1) if table.has("most_rounds") else None,
        study_epsilon=epsilon,
        losses=_some_of(table, "losses", [loss.value for loss in LossName]),
        algorithms=_some_of(table, "algorithms", list(ALGORITHMS)),
        servers=_fingerprints(table, "servers"),
        mixes=_fingerprints(table, "mixes"),
        require_person_column=table.flag("require_person_column", default=False),
        hours=_hours(table),
    )


def _at_least_one(table: TomlTable, key: str, default: int) -> int:
    if (value := table.whole(key, default)) < 1:
        raise InvalidField(f"{key} must be at least 1")
    return value


def _some_of(table: TomlTable, key: str, known: list[str]) -> frozenset[str] | None:
    """Read a list of names; a misspelt one, which would forbid what was meant, is refused."""
    if not table.has(key):
        return None
    named = table.texts(key)
    for name in named:
        if name not in known:
            raise InvalidField(f"{key}: {name!r:.60} is not one of {', '.join(sorted(known))}")
    return frozenset(named)


def _fingerprints(table: TomlTable, key: str) -> frozenset[str] | None:
    if not table.has(key):
        return None
    named = [text.lower() for text in table.texts(key)]
    for text in named:
        if len(text) != _FINGERPRINT_DIGITS or set(text) - set(hexdigits):
            raise InvalidField(
                f"{key}: {text!r:.80} is not the fingerprint of a key, {_FINGERPRINT_DIGITS} hex "
                "digits as `silomix silo review` shows them; names prove nothing, since the author "
                "of a study chooses them"
            )
    return frozenset(named)


def _hours(table: TomlTable) -> Hours | None:
    zone = table.text("time_zone", "UTC")
    return read_hours(table.texts("hours"), zone) if table.has("hours") else None
