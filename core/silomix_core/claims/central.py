"""Central figures, honestly: what a study's reports give away, and to whom.

Three figures, in this order:

local     against everybody but the silo itself; what the mechanism was calibrated for
shuffled  against the server, if a mix is honest.  Shuffling amplifies only if a report is private
          in its *whole* input.  A report on many records is private in each of them, not in all of
          them at once, so for full batches nothing is claimed; one-record reports have a theorem
sum       against outsiders who see only models.  Where the study's rule is the mean, a model is a
          function of sums of k reports or more, whose noises add up.  This trusts the server to
          keep the reports to itself; it is not amplification by shuffling.  In a study with
          check-ins a sum may be of one report; there, *check-ins* stands in its place: outsiders
          do not know when a silo took part

Neighbouring data sets: one record of one silo replaced.  Where no theorem applies a figure has no
ε but a reason, and the local figure is the one to quote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import isfinite, sqrt

from silomix_core.accounting.bounds.check_in_theorems import (
    Amplified,
    LocalRandomizer,
    averaged,
    fixed_window,
    sliding_window,
)
from silomix_core.accounting.bounds.shuffling import CentralFigure, one_record_reports
from silomix_core.accounting.bounds.validity import OutsideValidity
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon
from silomix_core.accounting.integers import Released, discretization_delta, with_integers
from silomix_core.mechanism.mechanism import CheckIn, Mechanism, Participant, Phase

NO_THEOREM = "none"


class Against(Enum):
    """Whom a figure protects against."""

    EVERYBODY = "everybody: server, mixes and all other silos"
    SERVER = "the server (honest mix)"
    OUTSIDERS = "outsiders who see only the published models"


@dataclass(frozen=True, slots=True)
class TheoremCondition:
    """A condition of a theorem, and whether it holds in the study."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """(ε, δ) of the whole study for every one of its records, or why none is claimed.

    `assumption` says who is trusted, and with what.
    """

    name: str
    against: Against
    epsilon: float | None
    delta: float
    theorem: str
    assumption: str
    conditions: tuple[TheoremCondition, ...] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.reason is not None):
            raise ValueError("a figure has either an epsilon or a reason for having none")
        if self.epsilon is not None and not (isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon={self.epsilon} is no claim")
        if self.epsilon is not None and not all(each.holds for each in self.conditions):
            raise ValueError("an epsilon is claimed although a condition fails")


def central_figures(
    mechanism: Mechanism,
    participants: Sequence[Participant],
    *,
    minimum_batch: int,
    asked: int | None = None,
    is_mean: bool = True,
) -> tuple[Figure, Figure, Figure]:
    """The figures (local, shuffled, sum or check-ins) that hold for every silo, all at the largest
    of the silos' δ.

    `participants` are all silos of the study; a round with fewer than `minimum_batch` reports
    releases nothing.  `asked`: how many silos a round asks, by default all.  `is_mean`: whether
    nothing but sums of reports is used.
    """
    if not participants:
        raise ValueError("a study needs at least one silo")
    if not 1 <= minimum_batch <= len(participants):
        raise ValueError(
            f"the minimum batch must lie between 1 and {len(participants)}, got {minimum_batch}"
        )
    study = _Study(
        mechanism=mechanism,
        kinds=tuple(set(participants)),
        silos=len(participants),
        minimum_batch=minimum_batch,
        delta=max(each.target.delta for each in participants),
        is_mean=is_mean,
        asks_all=asked is None or asked == len(participants),
    )
    local = _local(study)
    outsiders = _check_ins if study.check_ins else _sum
    return local, _shuffled(study, local.epsilon), outsiders(study, local.epsilon)


@dataclass(frozen=True, slots=True)
class _Study:
    mechanism: Mechanism
    kinds: tuple[Participant, ...]  # the different silos, each kind once
    silos: int
    minimum_batch: int
    delta: float
    is_mean: bool
    asks_all: bool

    @property
    def check_ins(self) -> bool:
        return any(phase.check_in is not None for phase in self.mechanism.phases)

    def released(self, phase: int) -> Released:
        """The coordinates of all reports of a phase: where noise of several silos enters a proof,
        that of all of them has to be exchanged for continuous noise."""
        mechanism = self.mechanism
        samples = self.silos * mechanism.dimension * mechanism.phases[phase].rounds
        return Released.of(samples, mechanism.sigma_units)


def _local(study: _Study) -> Figure:
    theorem = {
        Scheme.FULL: "Dong, Roth, Su 2022, Corollary 2; Balle, Wang 2018, Theorem 8",
        Scheme.POISSON: "Zhu, Dong, Wang 2022, Theorem 10 (privacy loss distributions)",
        Scheme.WITHOUT_REPLACEMENT: "Wang, Balle, Kasiviswanathan 2019, Theorem 27 (Rényi)",
    }[study.mechanism.minibatch.scheme]
    epsilon = max(study.mechanism.epsilon(each, study.delta) for each in study.kinds)
    claimed = isfinite(epsilon)
    return Figure(
        name="local",
        against=Against.EVERYBODY,
        epsilon=epsilon if claimed else None,
        delta=study.delta,
        theorem=f"{theorem}; for integer noise docs/decisions/0005-integer-noise.md"
        if claimed
        else NO_THEOREM,
        assumption="a silo trusts its own machine and nobody else",
        reason=None if claimed else "no guarantee claimed, because delta is too small for any",
    )


# The server, behind an honest mix -----------------------------------------------------------------


def _shuffled(study: _Study, epsilon_local: float | None) -> Figure:
    one_record = all(_one_record(study.mechanism, each) for each in study.kinds)
    conditions: tuple[TheoremCondition, ...] = (
        _single_gradient(study),
        TheoremCondition("a report depends on one record, its whole input", one_record),
        TheoremCondition("a batch has at least two reports", study.minimum_batch >= 2),
    )
    bound: CentralFigure | None = None
    reason = _no_shuffling(study, one_record)
    if reason is None and epsilon_local is not None:
        bound = _one_record_bound(study, epsilon_local)
        gained = bound is not None and not bound.vacuous and bound.epsilon < epsilon_local
        conditions += (TheoremCondition("the bound is below the local epsilon", gained),)
        if not gained:
            reason = _none(f"no bound for {study.minimum_batch} reports is below the local epsilon")
    elif reason is None:
        reason = _none("there is no local guarantee to amplify")
    return Figure(
        name="shuffled",
        against=Against.SERVER,
        epsilon=bound.epsilon if bound is not None and reason is None else None,
        delta=study.delta,
        theorem=bound.theorem if bound is not None and reason is None else NO_THEOREM,
        assumption="at least one mix is honest in every round, and no silo of the batch tells "
        "which report is its own",
        conditions=conditions,
        reason=reason,
    )


def _one_record(mechanism: Mechanism, participant: Participant) -> bool:
    """Return whether each report of this silo is made from exactly one record.

    A Poisson batch of expected size 1 may hold several.
    """
    sizes = {
        mechanism.batch(index).size(phase.records(participant.records))
        for index, phase in enumerate(mechanism.phases)
    }
    return mechanism.minibatch.scheme is not Scheme.POISSON and sizes == {1.0}


def _single_gradient(study: _Study) -> TheoremCondition:
    """The condition, common to the central theorems, that a report is one noised gradient."""
    phases = study.mechanism.phases
    alone = all(each.steps == 1 and not each.control for each in phases)
    return TheoremCondition("a report is one noised gradient", alone)


def _no_shuffling(study: _Study, one_record: bool) -> str | None:
    if any(each.control for each in study.mechanism.phases):
        return _none(
            "with control variates two reports of a silo contain the same noise, once added and "
            "once subtracted, so they can be linked; the local figure holds against the server too"
        )
    if not _single_gradient(study).holds:
        return _none(
            "a report sums up several local steps, and shuffling theorems are about one; the local "
            "figure, which counts every step, holds against the server too"
        )
    if not one_record:
        kind = "full-batch" if study.mechanism.minibatch.scheme is Scheme.FULL else "many-record"
        return _none(
            f"a {kind} report is private in each of its records, not in all that a silo put into "
            "it, and shuffling theorems need the latter; the mixes hide who sent what, and the "
            "local figure holds against the server too"
        )
    if study.check_ins:
        return _none(
            "silos come when they please: how many reports a round has, among which one hides, "
            "is chance"
        )
    if study.minimum_batch < 2:
        return _none("a report may be alone in its batch; raise the minimum batch")
    return None


def _one_record_bound(study: _Study, epsilon_local: float) -> CentralFigure | None:
    """The worst phase's bound; None where the theorem does not apply.

    All reports come from one randomizer with input (weight, record), whose outputs are at most
    max Δ apart: so silos of different weights hide each other too, at the heaviest one's μ.  The
    fewest reports are those of the smallest batch: of a larger one, all but so many may be told to
    the attacker, who could have made them himself.  The integers' cost is taken at the local ε,
    which the claim never exceeds.
    """
    mechanism = study.mechanism
    fewest = min(each.records for each in study.kinds)
    bounds = []
    for index in mechanism.different_phases:
        phase = mechanism.phases[index]
        mu = max(mechanism.event(each, index).mu for each in study.kinds)
        slack = discretization_delta(epsilon_local, study.released(index))
        try:
            bounds.append(
                one_record_reports(
                    silos=study.minimum_batch,
                    records=phase.records(fewest),
                    rounds=phase.answers,
                    noise_multiplier=1 / mu,
                    delta=study.delta - slack,
                )
            )
        except OutsideValidity:
            return None
    return max(bounds, key=lambda each: each.epsilon)


# Outsiders ----------------------------------------------------------------------------------------


def _sum(study: _Study, epsilon_local: float | None) -> Figure:
    full = study.mechanism.minibatch.scheme is Scheme.FULL
    single = _single_gradient(study)
    conditions = (
        single,
        TheoremCondition("full batches", full),
        TheoremCondition("of reports nothing but their sum is used", study.is_mean),
        TheoremCondition("a sum has at least two reports", study.minimum_batch >= 2),
    )
    reason: str | None = None
    epsilon: float | None = None
    if not single.holds:
        reason = _none(
            "a report is more than one noised gradient (local steps or control variates): its own "
            "noise moves the next step, other silos' noise does not, and we have no theorem for "
            "such sums"
        )
    elif not study.is_mean:
        reason = _none(
            "reports are not summed: what a rule that holds off bad silos makes of them may follow "
            'one report more than the others\' noise hides (aggregation.rule = "mean" sums them)'
        )
    elif not full:
        reason = _none("we have a theorem for sums of full-batch reports only")
    elif study.minimum_batch < 2:
        reason = _none("a sum may consist of one report; raise the minimum batch")
    else:
        epsilon = max(_sum_epsilon(study, each) for each in study.kinds)
        if not isfinite(epsilon):
            reason, epsilon = _none("delta is below the cost of all silos' integer noise"), None
        elif epsilon_local is None or epsilon >= epsilon_local:
            reason, epsilon = _none("the sum's epsilon is not below the local one"), None
    return Figure(
        name="sum",
        against=Against.OUTSIDERS,
        epsilon=epsilon,
        delta=study.delta,
        theorem=NO_THEOREM
        if reason
        else f"Gaussian mechanism on sums of {study.minimum_batch} reports or more: "
        "Dong, Roth, Su 2022, Corollary 2; Balle, Wang 2018, Theorem 8; sums of discrete "
        "Gaussians: Kairouz, Liu, Steinke 2021",
        assumption="server and mixes are honest: they publish models and keep every report secret; "
        "all silos are honest, none tells its own noise; the study's aggregation.rule is the mean "
        "(not amplification by shuffling)",
        conditions=conditions,
        reason=reason,
    )


def _check_ins(study: _Study, epsilon_local: float | None) -> Figure:
    one_report = len(study.mechanism.phases) == 1
    single = _single_gradient(study)
    bound: Amplified | None = None
    reason: str | None = None
    if not single.holds:
        reason = _none("a report is more than one noised gradient (local steps)")
    elif not one_report:
        reason = _none("a silo sends more than one report, and the theorems are about one")
    elif not study.asks_all and not _lone(study):
        reason = _none(
            "the theorem needs silos that are all asked in every round, so that any two of them "
            "could have changed places, and a round asks some of them only"
        )
    elif epsilon_local is None:
        reason = _none("there is no local guarantee to amplify")
    else:
        bound = _check_in_bound(study)
        if bound is None or bound.epsilon >= epsilon_local:
            reason = _none(_no_check_in(study, bound))
    claimed = bound if reason is None else None
    return Figure(
        name="check-ins",
        against=Against.OUTSIDERS,
        epsilon=claimed.epsilon if claimed else None,
        delta=study.delta,
        theorem=claimed.theorem if claimed else NO_THEOREM,
        assumption="server and mixes are honest: they publish models and keep every report secret; "
        "no silo tells when it takes part (it does not protect against the server, who sees how "
        f"many abstain in a round){_presence(study)}",
        conditions=(
            single,
            TheoremCondition("a silo sends one report in all", one_report),
            TheoremCondition("every round asks the same silos", study.asks_all or _lone(study)),
            TheoremCondition("the bound is below the local epsilon", claimed is not None),
        ),
        reason=reason,
    )


def _presence(study: _Study) -> str:
    """The assumption that Theorem 4.1 adds: its silos are alike in every slot, so that any two of
    them could have changed places.  With lone reports other silos may come and go."""
    return "" if _lone(study) else "; who is away is away in all rounds"


def _lone(study: _Study) -> bool:
    """Return whether a single report of each round with check-ins is used."""
    check_ins = [phase.check_in for phase in study.mechanism.phases]
    return all(each is None or each.lone for each in check_ins)


def _no_check_in(study: _Study, bound: Amplified | None) -> str:
    if any(each.records > 1 for each in study.kinds):
        return (
            "the theorems need a report that is private in all that a silo put into it, and a "
            "report on many records is private in each of them; what it is in all of them at once "
            "gives no bound below the local epsilon"
        )
    if bound is None:
        return "no bound for these rounds is below the local epsilon"
    return f"the bound, {bound.bound:.3g}, for these rounds is not below the local epsilon"


def _check_in_bound(study: _Study) -> Amplified | None:
    """The smallest bound within the study's δ; None where there is none.

    The randomizer is the report as a function of the silo's whole input: Gaussian with μ = Δ/σ, Δ
    for all records replaced, so (ε₀, δ₀)-DP for a range of δ₀, each of which gives a valid bound.
    """
    mechanism, (phase,) = study.mechanism, study.mechanism.phases
    mu = max(mechanism.whole_silo_units(each) for each in study.kinds) / mechanism.sigma_units
    report = Released.of(mechanism.dimension, mechanism.sigma_units)
    found = []
    for exponent in range(2, 24):
        delta_0 = study.delta / phase.rounds * 10.0**-exponent
        epsilon_0 = with_integers(lambda left: gaussian_epsilon(left, mu), report, delta_0)
        if not isfinite(epsilon_0):
            continue
        try:
            bound = _amplified(study, phase, LocalRandomizer(epsilon_0, delta_0))
        except OutsideValidity:
            continue
        if not bound.vacuous and bound.delta <= study.delta:
            found.append(bound)
    return min(found, key=lambda each: each.epsilon, default=None)


def _amplified(study: _Study, phase: Phase, local: LocalRandomizer) -> Amplified:
    """The guarantee of the theorem for this kind of check-in; half of δ is left to Lemma A.3."""
    check_in, delta = phase.check_in or CheckIn(), study.delta / 2
    if check_in.sliding is not None:
        return sliding_window(local, delta, window=check_in.sliding, silos=study.silos)
    if check_in.lone:
        return fixed_window(
            local, delta, window=phase.rounds, check_in_probability=check_in.probability
        )
    return averaged(
        local,
        delta / 2,
        delta_loads=delta / 2,
        slots=phase.rounds,
        silos=study.silos,
        present=study.minimum_batch,
    )


def _sum_epsilon(study: _Study, participant: Participant) -> float:
    """The ε of a record of this silo from sums of k reports: μ = μ_local/√k.

    The other k − 1 reports are the same for both neighbours; the sum moves by the silo's own Δ, and
    its noise has variance k·σ² at least.  Two discrete Gaussians of variances s and t add up to
    Pr[X + Y = z] ∝ e^{−z²/2(s+t)}·θ(z), with θ constant up to a factor 1 ± 4·e^{−2π²·st/(s+t)}:
    for σ ≥ 2²⁰ steps, a discrete Gaussian of variance kσ² but for e^{−10¹³} (Kairouz, Liu,
    Steinke 2021, "The distributed discrete Gaussian mechanism").  That one is nearer to a rounded
    Gaussian than a single one is; the errors of the sampling tables count for all N silos.
    """
    mechanism = study.mechanism
    worst = 0.0
    for index in mechanism.different_phases:
        event = PrivacyEvent(
            scheme=Scheme.FULL,
            ratio=1.0,
            sensitivity=mechanism.sensitivity_units(participant, index),
            noise=sqrt(study.minimum_batch) * mechanism.sigma_units,
            samples=study.silos * mechanism.dimension,
        )
        worst = max(worst, epsilon_of([(event, mechanism.phases[index].answers)], study.delta))
    return worst


def _none(because: str) -> str:
    return f"no amplification claimed, because {because}"
