"""The filter (docs/privacy.md, "The ledger"): may this be approved, may this round be answered?

A round is answered iff the losses so far and its own stay inside the operator's lifetime budget,
where a study counts with the worst of its disjoint phases.  Approval reserves the whole study
beforehand, so that an approved study is never cut short by another one.
"""

from silomix_core.accounting.budget import NOTHING, Budget, PrivacyLoss

from silomix_client.config.silo_config import Policy
from silomix_client.errors import BudgetExhausted, InvalidSiloConfig, NotApproved, RefusedQuery
from silomix_client.ledger.entries import Approval, Total
from silomix_client.ledger.studies import Approvals
from silomix_client.ledger.tallies import RoundCost, Tallies


class PrivacyFilter:
    """The operator's policy, held against what was approved and what was spent."""

    def __init__(self, studies: Approvals, tallies: Tallies, policy: Policy) -> None:
        self._studies, self._tallies = studies, tallies
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Go by this policy; refuse one that leaves out what was charged, which must count."""
        for name in self._studies.populations():
            if name not in policy.budgets:
                raise InvalidSiloConfig(
                    f"your policy names no population {name!r}, but the ledger has studies of it; "
                    "keep it in the policy, with its budget"
                )
            for study in self._studies.of_population(name):
                schemes = {
                    event.scheme
                    for part in self._tallies.spending(study).phases
                    for event, _ in part
                }
                if not all(policy.budgets[name].covers(scheme) for scheme in schemes):
                    raise InvalidSiloConfig(
                        "the ledger has subsampled studies, which the Gaussian accountant does not "
                        'cover; keep accountant = "renyi" in your policy'
                    )
        self.policy = policy

    def check_room(self, approval: Approval) -> None:
        """Raise unless the policy has room for all of the study beside what is reserved."""
        budget, scheme = self._budget(approval.population), approval.study.minibatch.scheme
        if not budget.covers(scheme):
            raise NotApproved(
                f"the study draws {scheme.value} batches, which the exact Gaussian accountant of "
                'your policy does not cover; accountant = "renyi" would, at a looser bound for '
                "all your studies"
            )
        if not budget.holds(self._reserved(approval.population) + approval.planned(budget)):
            raise BudgetExhausted(
                f"this study would take the total beyond your policy's {_named(budget)}; "
                "`silomix silo ledger` shows what the others reserved"
            )

    def cost(self, approval: Approval, round_number: int) -> RoundCost:
        """What a round costs; raises if the budget has no room for it."""
        number, event = approval.event(round_number)
        phase = approval.mechanism.phases[number]
        takes_part = approval.attendance.takes_part(round_number)
        spent = self._tallies.spending(approval.study.identity)
        room = phase.events - spent.events_of(number)
        if takes_part and room < phase.steps:
            raise BudgetExhausted(f"round {round_number} is one more than its phase has")
        # Checked as if the silo took part in any case: a refusal must not tell who does.
        if room >= phase.steps:
            spent = spent.with_round(number, event, phase.steps)
        budget = self._budget(approval.population)
        if not budget.covers(approval.study.minibatch.scheme):
            raise RefusedQuery(_not_covered(approval))
        if not budget.holds(self._spent_on_others(approval) + spent.loss(budget)):
            raise BudgetExhausted(
                f"round {round_number} would exceed your policy's {_named(budget)}"
            )
        return RoundCost(number, event, phase.steps, takes_part)

    def total(self, population: str) -> Total:
        """The privacy spent on all studies of a population."""
        budget = self._budget(population)
        spent = [self._tallies.spending(each) for each in self._studies.of_population(population)]
        loss = sum((spending.loss(budget) for spending in spent), NOTHING)
        return Total(budget, sum(spending.rounds for spending in spent), loss)

    def reserved(self, population: str) -> Total:
        """What open studies of a population may cost in all, and what its closed ones did cost."""
        budget, rounds = self._budget(population), 0
        for approval in map(self._studies.find, self._studies.of_population(population)):
            if not approval.closed and not budget.covers(approval.study.minibatch.scheme):
                raise InvalidSiloConfig(_not_covered(approval))
            spent = self._tallies.spending(approval.study.identity)
            asked = sum(phase.answers for phase in approval.study.phases)
            rounds += spent.rounds if approval.closed else asked
        return Total(budget, rounds, self._reserved(population))

    def _budget(self, population: str) -> Budget:
        budget = self.policy.budgets.get(population)
        if budget is None:
            raise NotApproved(f"your policy names no population {population!r}")
        return budget

    def _reserved(self, population: str) -> PrivacyLoss:
        """What open studies may still cost in all, and what closed ones did cost."""
        budget = self._budget(population)
        losses = (
            self._studies.find(study).planned(budget)
            if self._studies.is_open(study)
            else self._tallies.spending(study).loss(budget)
            for study in self._studies.of_population(population)
        )
        return sum(losses, NOTHING)

    def _spent_on_others(self, approval: Approval) -> PrivacyLoss:
        budget = self._budget(approval.population)
        losses = (
            self._tallies.spending(study).loss(budget)
            for study in self._studies.of_population(approval.population)
            if study != approval.study.identity
        )
        return sum(losses, NOTHING)


def _not_covered(approval: Approval) -> str:
    return (
        f"the Gaussian accountant of your policy does not cover the open study "
        f"{approval.study.short_id}, which draws batches; "
        'keep accountant = "renyi" in your policy, or revoke it'
    )


def _named(budget: Budget) -> str:
    return f"epsilon={budget.target.epsilon:g} at delta={budget.target.delta:g}"
