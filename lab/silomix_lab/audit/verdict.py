"""The verdict of an audit, from the transcripts of its trials.

The attacker projects every report of the canary's phase on the canary's direction.  In units of
the claimed noise each is N(∓move, 1) for a silo that does as it claims (a report that sums up K
noised gradients moves K times as far, and has √K times the noise); where batches are drawn, only if
the canary was drawn, and N(0, 1) otherwise.  What no attacker can improve on is the likelihood
ratio of D and D′.  Without drawn batches that is the sum of the reports, here in units of its own
noise: N(∓μ/2, 1).  D′ is guessed when it is above 0, a threshold that was fixed before the first
trial; the two cases being mirror images, it is the best one.

**False alarms.**  Every check below has its share of `ALPHA` (0.1 %), so a silo that keeps its
promise is called violated with probability at most `ALPHA` in all; the ledger and repeated noise
are no statistics and never fail it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from silomix_core.accounting.gaussian import gaussian_epsilon
from silomix_core.claims.audit_bounds import (
    correlation,
    detection,
    difference,
    epsilon_lower,
    gaussian_detection,
    gaussian_mu,
    gaussian_mu_lower,
    move,
    move_detection,
    move_lower,
    mu_lower,
    mu_lower_pooled,
    noise_detection,
    noise_upper,
    rate_upper,
)

from silomix_lab.audit.canary import BLANK, Neighbours
from silomix_lab.audit.claim import AuditClaim
from silomix_lab.audit.trials import Observed, Transcript

ALPHA = 0.001
_ALPHA_RATE = ALPHA / 16  # for each of the two error rates
_ALPHA_POOLED = ALPHA / 4  # for their average
_ALPHA_GAUSSIAN = ALPHA / 4
_ALPHA_NOISE = ALPHA / 8
_ALPHA_CORRELATION = ALPHA / 8
_ALPHA_ELSEWHERE = ALPHA / 8  # other phases, or other people: no audit looks at both
FACTORS = (1.25, 2.0)  # by which privacy may be lost: the power to notice it is told for these
NOTICED = 0.99  # the factor that is noticed with this probability is told, too
_SAME_EPSILON = 1e-3  # how far the ledger's ε may be from the planned one, relatively

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    says: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Measurements in units of noise, and what is claimed of each: N(0, 1), or with a chance
    N(centre, 1)."""

    values: Floats
    chances: Floats
    centres: Floats


@dataclass(frozen=True, slots=True)
class Shift:
    """The μ that would follow from Gaussian noise: the statistic's move from D to D′."""

    lower: float
    estimate: float
    error: float  # its standard error
    epsilon_lower: float  # at the claimed δ

    def check(self, claim: AuditClaim) -> Check:
        says = f"mu is at least {self.lower:.3f} if the noise is Gaussian"
        return Check("mu-gaussian", self.lower <= claim.mu, says)

    def figures(self) -> dict[str, float]:
        return {
            "mu_lower_bound_gaussian": self.lower,
            "mu_estimate": self.estimate,
            "mu_standard_error": self.error,
            "epsilon_lower_bound_gaussian": self.epsilon_lower,
        }

    def __str__(self) -> str:
        return (
            f"mu {self.estimate:.3f} ± {self.error:.2g} (standard error), "
            f"at least {self.lower:.3f}; epsilon at least {self.epsilon_lower:.3f}"
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """How many times as far as claimed the canary moves reports on average, for drawn batches."""

    lower: float
    estimate: float
    error: float  # its standard error

    def check(self, _: AuditClaim) -> Check:
        says = f"the canary moves reports at least {self.lower:.3f} times as far as it may"
        return Check("moved", self.lower <= 1, says)

    def figures(self) -> dict[str, float]:
        return {
            "moved_lower_bound": self.lower,
            "moved_estimate": self.estimate,
            "moved_standard_error": self.error,
        }

    def __str__(self) -> str:
        return (
            f"the canary moves reports {self.estimate:.3f} ± {self.error:.2g} (standard error) "
            f"times as far as it may, at least {self.lower:.3f} times"
        )


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What was measured, what it proves, and whether it contradicts the claim."""

    claim: AuditClaim
    first: Floats  # statistic of each trial with D
    second: Floats  # … with D′
    reports: tuple[Seen, ...]  # of the canary's phase, with D and with D′
    false_positives: int
    false_negatives: int
    mu_lower: float  # whatever the noise is
    epsilon_lower: float  # at the claimed δ, whatever the noise is
    sharper: Shift | Moved  # if the noise is Gaussian
    noise_upper: float  # in units of the claimed standard deviation
    noise_estimate: float
    checks: tuple[Check, ...]

    @property
    def trials(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def violated(self) -> bool:
        return not all(check.passed for check in self.checks)


def judge(claim: AuditClaim, observed: Observed, data: Neighbours) -> AuditVerdict:
    transcripts, direction = observed.transcripts, data.direction
    sd = claim.sigma_units * sqrt(claim.steps)  # of a coordinate of a report
    with_first = [each for each in transcripts if not each.second]
    with_second = [each for each in transcripts if each.second]
    first, second = (statistics(claim, each, direction / sd) for each in (with_first, with_second))
    positives, negatives = int((first > 0).sum()), int((second <= 0).sum())
    rates = (
        rate_upper(positives, len(first), _ALPHA_RATE),
        rate_upper(negatives, len(second), _ALPHA_RATE),
    )
    pooled = rate_upper(positives + negatives, len(transcripts), _ALPHA_POOLED)
    mu_any = mu_lower_pooled(pooled)
    if not claim.is_drawn:  # drawn batches trade errors off otherwise, but in the middle
        mu_any = max(mu_any, mu_lower(*rates))
    epsilon_any = epsilon_lower(*rates, claim.target.delta)
    fewest = min(len(each.reports) for each in transcripts)  # they differ if it checks in too often
    noise = np.array([each.reports[:fewest, BLANK] for each in transcripts]) / sd
    largest_sd = noise_upper(noise, _ALPHA_NOISE)
    reports = tuple(_seen(claim, each, direction / sd) for each in (with_first, with_second))
    sharper = _moved(*reports) if claim.is_drawn else _shift(claim, first, second, mu_any)
    return AuditVerdict(
        claim=claim,
        first=first,
        second=second,
        reports=reports,
        false_positives=positives,
        false_negatives=negatives,
        mu_lower=mu_any,
        epsilon_lower=epsilon_any,
        sharper=sharper,
        noise_upper=largest_sd,
        noise_estimate=sqrt(float((noise**2).mean())),
        checks=(
            Check("mu", mu_any <= claim.mu, f"mu is at least {mu_any:.3f}"),
            Check(
                "epsilon",
                epsilon_any <= claim.target.epsilon,
                f"epsilon is at least {epsilon_any:.3f} at the claimed delta",
            ),
            sharper.check(claim),
            Check(
                "noise",
                largest_sd >= 1,
                f"the noise has at most {largest_sd:.3f} of its claimed standard deviation",
            ),
            *_elsewhere(claim, with_first, with_second, direction / sd),
            *_others(with_first, with_second, data.crowd),
            *_freshness(noise),
            *_ledger(claim, observed),
        ),
    )


def statistics(claim: AuditClaim, transcripts: Sequence[Transcript], direction: Floats) -> Floats:
    """The attacker's evidence for D′ in each trial, from reports of the canary's phase alone."""
    found = []
    for each in transcripts:
        part, values = claim.parts[each.part], _own(claim, each) @ direction
        if part.chance < 1:
            found.append(_log_ratio(values, part.chance, part.move))
        else:
            found.append(values.sum() / sqrt(len(values)))
    return np.array(found, dtype=np.float64)


def _log_ratio(values: Floats, chance: float, move: float) -> float:
    """The logarithm of the likelihood ratio of D′ to D, given these values."""

    def drawn(values: Floats) -> Floats:
        found: Floats = np.logaddexp(
            np.log1p(-chance), np.log(chance) + move * values - move**2 / 2
        )
        return found

    return float((drawn(values) - drawn(-values)).sum())


def _rounds(claim: AuditClaim, part: int) -> slice:
    start = sum(each.rounds for each in claim.parts[:part])
    return slice(start, start + claim.parts[part].rounds)


def _own(claim: AuditClaim, transcript: Transcript) -> NDArray[np.int64]:
    """The reports of the canary's phase; whatever the silo sent, if there is only one phase."""
    if len(claim.parts) == 1:
        return transcript.reports
    return transcript.reports[_rounds(claim, transcript.part)]


def _seen(claim: AuditClaim, transcripts: Sequence[Transcript], direction: Floats) -> Seen:
    """The reports of the canary's phase, projected on its direction, and what each should be."""
    values, chances, centres = list[Floats](), list[Floats](), list[Floats]()
    for each in transcripts:
        part, projected = claim.parts[each.part], _own(claim, each) @ direction
        values.append(projected)
        chances.append(np.full(len(projected), part.chance))
        centres.append(np.full(len(projected), part.move if each.second else -part.move))
    return Seen(np.concatenate(values), np.concatenate(chances), np.concatenate(centres))


def _shift(claim: AuditClaim, first: Floats, second: Floats, mu_any: float) -> Shift:
    estimate = gaussian_mu(first, second)
    lower = gaussian_mu_lower(first, second, _ALPHA_GAUSSIAN)
    return Shift(
        lower=lower,
        estimate=estimate,
        error=mu_error(estimate, len(first), len(second)),
        epsilon_lower=gaussian_epsilon(claim.target.delta, max(mu_any, lower)),
    )


def _moved(first: Seen, second: Seen) -> Moved:
    values = np.concatenate([-first.values, second.values])
    chances = np.concatenate([first.chances, second.chances])
    moves = np.concatenate([-first.centres, second.centres])
    return Moved(
        lower=move_lower(values, chances, moves, _ALPHA_GAUSSIAN),
        estimate=move(values, chances, moves),
        error=sqrt(len(values)) * float(values.std()) / float(chances @ moves),
    )


def mu_error(mu: float, n: int, m: int) -> float:
    """The standard error of a difference of means in standard deviations, for large samples.

    Hedges, Olkin 1985, "Statistical methods for meta-analysis", ch. 5 (their d is our μ).
    It is only shown; the checks use exact limits.
    """
    return sqrt((n + m) / (n * m) + mu * mu / (2 * (n + m)))


@dataclass(frozen=True, slots=True)
class Power:
    """The probabilities to notice that privacy is lost by a factor.

    moved: if the canary moves reports so many times as far as it may (or, where batches are drawn,
    is drawn so many times as often, all canaries in the phase that shows least), whatever else it
    is due to; moved_any_noise: the same by the bound that holds whatever the noise is, where there
    is one; noise: if the noise is divided by the factor, by the coordinates that hold only noise.
    """

    factor: float
    moved: float
    moved_any_noise: float | None
    noise: float

    def figures(self) -> dict[str, float | None]:
        return {
            "moved": self.moved,
            "moved_any_noise": self.moved_any_noise,
            "noise": self.noise,
        }


def power(claim: AuditClaim, trials: int, factor: float) -> Power:
    values = trials * claim.answers * (BLANK.stop - BLANK.start)
    noise = noise_detection(factor, values, _ALPHA_NOISE)
    if claim.is_drawn:
        return Power(factor, _drawn_power(claim, trials, factor), None, noise)
    anyhow = detection(claim.mu, factor * claim.mu, trials, _ALPHA_POOLED)
    return Power(factor, max(anyhow, _gaussian_power(claim, trials, factor)), anyhow, noise)


def noticed_factor(claim: AuditClaim, trials: int) -> float:
    """How many times as far as allowed the canary must move reports to be noticed almost surely."""
    by = _drawn_power if claim.is_drawn else _gaussian_power
    highest = 2.0
    while by(claim, trials, highest) < NOTICED:
        highest *= 2
    found = optimize.brentq(lambda factor: by(claim, trials, factor) - NOTICED, 1.0, highest)
    return float(found)


def crowd_power(claim: AuditClaim, trials: int) -> float:
    """The probability to notice that one of the crowd counts in D or in D′ only."""
    return gaussian_detection(0.0, claim.mu / 2, trials, _ALPHA_ELSEWHERE / 2)


def _gaussian_power(claim: AuditClaim, trials: int, factor: float) -> float:
    return gaussian_detection(claim.mu, factor * claim.mu, trials, _ALPHA_GAUSSIAN)


def _drawn_power(claim: AuditClaim, trials: int, factor: float) -> float:
    return min(
        move_detection(part.chance, part.move, factor, trials * part.answers, _ALPHA_GAUSSIAN)
        for part in set(claim.parts)
    )


def _elsewhere(
    claim: AuditClaim, first: Sequence[Transcript], second: Sequence[Transcript], direction: Floats
) -> Iterator[Check]:
    """Check that reports of other phases do not depend on the canary: a record is in one phase."""
    if len(claim.parts) == 1:
        return

    def others(transcript: Transcript) -> float:
        values = np.delete(transcript.reports, _rounds(claim, transcript.part), axis=0) @ direction
        return float(values.sum() / sqrt(len(values)))

    chance = difference(
        np.array([others(each) for each in first]), np.array([others(each) for each in second])
    )
    yield Check(
        "one-phase",
        chance >= _ALPHA_ELSEWHERE,
        "reports of phases that the canary is not in depend on it",
    )


def _others(
    first: Sequence[Transcript], second: Sequence[Transcript], crowd: Floats | None
) -> Iterator[Check]:
    """Check that what reports hold of everybody else is the same beside either canary."""
    if crowd is None:
        return
    sums = [
        np.array([float((each.reports @ crowd).sum()) for each in transcripts])
        for transcripts in (first, second)
    ]
    yield Check(
        "others",
        difference(*sums) >= _ALPHA_ELSEWHERE,
        "what reports hold of other people depends on who the canary is",
    )


def _freshness(noise: Floats) -> Iterator[Check]:
    """Check that pure noise (trials, rounds, blanks) has no equal and no correlated draws."""
    rows = [tuple(row) for row in noise.reshape(-1, noise.shape[-1]).tolist()]
    seen = set(rows)
    repeated = len(rows) - len(seen)
    negated = sum(tuple(-value for value in row) in seen for row in rows)
    yield Check(
        "fresh-noise",
        repeated == 0 and negated == 0,
        f"{repeated} of {len(rows)} reports repeat the noise of another",
    )
    # Each pair holds every draw at most twice, once on each side: products stay uncorrelated.
    pairs = {"study": (noise[1:], noise[:-1])}
    if noise.shape[1] > 1:
        pairs["round"] = (noise[:, 1:], noise[:, :-1])
    for what, (later, earlier) in pairs.items():
        r, chance = correlation(later, earlier)
        yield Check(
            f"correlation-by-{what}",
            chance >= _ALPHA_CORRELATION / len(pairs),
            f"noise of one {what} and the next correlate by {r:+.4f}",
        )


def _ledger(claim: AuditClaim, observed: Observed) -> Iterator[Check]:
    transcripts = observed.transcripts
    late = sum(not early for each in transcripts for early in each.charged_first)
    total = sum(len(each.charged_first) for each in transcripts)
    yield Check(
        "charged-first",
        late == 0,
        f"{late} of {total} reports left before their round was charged to the ledger",
    )
    worst = max(transcripts, key=lambda each: abs(each.charged_epsilon - claim.epsilon))
    yield Check(
        "charge",
        all(each.charged_rounds == claim.answers for each in transcripts)
        and abs(worst.charged_epsilon / claim.epsilon - 1) <= _SAME_EPSILON,
        f"the ledger's events amount to epsilon {worst.charged_epsilon:.4f} for "
        f"{worst.charged_rounds} rounds",
    )
    broken = observed.broken_ledgers
    yield Check(
        "ledger-intact",
        not broken,
        f"the ledger does not verify: {broken[0]}" if broken else "every ledger verifies",
    )
