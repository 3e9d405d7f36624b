"""A study as an operator is shown it before a yes or no: what speaks against it, and its history.

Nothing is written: a silo that has no ledger yet has none afterwards.
"""

from dataclasses import dataclass

from silomix_core.accounting.budget import Budget, PrivacyLoss
from silomix_core.study.study import Study

from silomix_client.approval.approve import (
    Asked,
    Review,
    policy_objections,
    read_people,
    read_study,
)
from silomix_client.config.silo_config import MAIN, SiloConfig
from silomix_client.errors import BadRecords, SiloError
from silomix_client.ledger.entries import Approval, worst
from silomix_client.ledger.ledger import ledger_or_empty


@dataclass(frozen=True, slots=True)
class Earlier:
    """A study that was approved here before: its file, and when."""

    study: Study
    content: bytes
    at: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A study that was offered for approval.

    `reviewed` is there if it can be approved; else `objections` or `data_problem` say why not.
    `data_problem` may show what stands in the data: it is for the operator's eyes only.
    """

    asked: Asked
    content: bytes
    population: str
    budget: Budget
    reserved: PrivacyLoss  # of the budget, by other studies
    earlier: tuple[Earlier, ...]  # oldest first
    objections: tuple[str, ...]
    data_problem: str | None
    reviewed: Review | None

    @property
    def study(self) -> Study:
        return self.asked.study

    @property
    def epsilon(self) -> float:
        """What the whole study would cost this silo, at the δ of its own policy."""
        return self.study.mechanism().epsilon(self.asked.participant, self.budget.target.delta)

    @property
    def epsilon_reserved(self) -> float:
        return self.budget.epsilon(self.reserved)

    @property
    def epsilon_together(self) -> float | None:
        """The ε reserved together with this study.

        None if the study is in the sum already, or the accountant has no figure.
        """
        known = any(each.study.identity == self.study.identity for each in self.earlier)
        if known or not self.budget.covers(self.study.minibatch.scheme):
            return None
        planned = worst(self.budget, self.study.mechanism().transcripts(self.asked.participant))
        return self.budget.epsilon(self.reserved + planned)


def look(config: SiloConfig, content: bytes, population: str = MAIN) -> Offer:
    """Review everything that can be said about a study before it is approved."""
    asked = read_study(config, content)
    objections = policy_objections(config, asked, population)
    budget = config.policy.budgets[population]
    approval = Approval(asked.study, config.name, b"", b"", population)
    reserved, earlier, refusal = _history(config, approval)
    objections += [refusal] if refusal else []
    records, problem = None, None
    try:
        records = read_people(config, asked, population)
    except BadRecords as error:
        problem = str(error)
    reviewed = None
    if records is not None and not objections:
        reviewed = Review(asked.study, content, records, asked.participant, population)
    return Offer(
        asked=asked,
        content=content,
        population=population,
        budget=budget,
        reserved=reserved,
        earlier=earlier,
        objections=tuple(objections),
        data_problem=problem,
        reviewed=reviewed,
    )


def _history(
    config: SiloConfig, approval: Approval
) -> tuple[PrivacyLoss, tuple[Earlier, ...], str | None]:
    """What is reserved, what was approved, and why the ledger would refuse the study."""
    with ledger_or_empty(config) as ledger:
        earlier = tuple(
            Earlier(each.study, ledger.study_file(each.study.identity), each.at)
            for each in ledger.approvals()
        )
        reserved = ledger.reserved(approval.population).loss
        try:
            ledger.check_new(approval)
        except SiloError as refusal:
            return reserved, earlier, str(refusal)
        return reserved, earlier, None
