"""From transcripts to a verdict.

The attacker projects every report on the canary's direction and adds up the rounds of a study: for
Gaussian noise that is the sufficient statistic, no attacker has a better one.  In units of the
claimed noise it is N(∓μ/2, 1) for a silo that does as it claims (a report that sums up K noised
gradients moves K times as far, and has √K times the noise); D′ is guessed when it is above 0,
a threshold that was fixed before the first trial.

**False alarms.**  Every check below has its share of `ALPHA` (0.1 %), so a silo that keeps its
promise is called violated with probability at most `ALPHA` in all; the ledger and repeated noise
are no statistics and never fail it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from silomix_core.accounting.gaussian import gaussian_epsilon
from silomix_core.audit_bounds import (
    correlation,
    detection,
    epsilon_lower,
    gaussian_detection,
    gaussian_mu,
    gaussian_mu_lower,
    mu_lower,
    mu_lower_pooled,
    noise_upper,
    rate_upper,
)
from silomix_core.noise import SIGMA_UNITS

from silomix.audit.canary import BLANK
from silomix.audit.claim import Claim
from silomix.audit.trials import Observed, Transcript

ALPHA = 0.001
_ALPHA_RATE = ALPHA / 8  # of each of the two error rates
_ALPHA_POOLED = ALPHA / 4  # of their average
_ALPHA_GAUSSIAN = ALPHA / 4
_ALPHA_NOISE = ALPHA / 8
_ALPHA_CORRELATION = ALPHA / 8
_SAME_EPSILON = 1e-3  # how far the ledger's ε may be from the claimed one, relatively

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    says: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was measured, what it proves, and whether it contradicts the claim."""

    claim: Claim
    first: Floats  # statistic of each trial with D
    second: Floats  # … with D′
    false_positives: int
    false_negatives: int
    mu_lower: float  # whatever the noise is
    mu_lower_gaussian: float
    mu_estimate: float
    mu_error: float  # its standard error
    epsilon_lower: float  # at the claimed δ, whatever the noise is
    epsilon_lower_gaussian: float
    noise_upper: float  # in units of the claimed standard deviation
    noise_estimate: float
    checks: tuple[Check, ...]

    @property
    def trials(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def violated(self) -> bool:
        return not all(check.passed for check in self.checks)


def judge(claim: Claim, observed: Observed, direction: Floats) -> Verdict:
    transcripts = observed.transcripts
    sd = SIGMA_UNITS * sqrt(claim.steps)  # of a coordinate of a report
    first = statistics([each for each in transcripts if not each.second], direction, sd)
    second = statistics([each for each in transcripts if each.second], direction, sd)
    positives, negatives = int((first > 0).sum()), int((second <= 0).sum())
    rates = (
        rate_upper(positives, len(first), _ALPHA_RATE),
        rate_upper(negatives, len(second), _ALPHA_RATE),
    )
    fewest = min(len(each.reports) for each in transcripts)  # of a silo that checks in too often
    noise = np.array([each.reports[:fewest, BLANK] for each in transcripts]) / sd
    mu_estimate = gaussian_mu(first, second)
    mu_gaussian = gaussian_mu_lower(first, second, _ALPHA_GAUSSIAN)
    pooled = rate_upper(positives + negatives, len(transcripts), _ALPHA_POOLED)
    mu_any = max(mu_lower(*rates), mu_lower_pooled(pooled))
    epsilon_any = epsilon_lower(*rates, claim.target.delta)
    largest_sd = noise_upper(noise, _ALPHA_NOISE)
    return Verdict(
        claim=claim,
        first=first,
        second=second,
        false_positives=positives,
        false_negatives=negatives,
        mu_lower=mu_any,
        mu_lower_gaussian=mu_gaussian,
        mu_estimate=mu_estimate,
        mu_error=mu_error(mu_estimate, len(first), len(second)),
        epsilon_lower=epsilon_any,
        epsilon_lower_gaussian=gaussian_epsilon(claim.target.delta, max(mu_any, mu_gaussian)),
        noise_upper=largest_sd,
        noise_estimate=sqrt(float((noise**2).mean())),
        checks=(
            Check("mu", mu_any <= claim.mu, f"mu is at least {mu_any:.3f}"),
            Check(
                "epsilon",
                epsilon_any <= claim.target.epsilon,
                f"epsilon is at least {epsilon_any:.3f} at the claimed delta",
            ),
            Check(
                "mu-gaussian",
                mu_gaussian <= claim.mu,
                f"mu is at least {mu_gaussian:.3f} if the noise is Gaussian",
            ),
            Check(
                "noise",
                largest_sd >= 1,
                f"the noise has at most {largest_sd:.3f} of its claimed standard deviation",
            ),
            *_freshness(noise),
            *_ledger(claim, observed),
        ),
    )


def statistics(transcripts: Sequence[Transcript], direction: Floats, sd: float) -> Floats:
    """Σ over reports of ⟨report, direction⟩, in units of its own claimed standard deviation."""
    sums = [
        (each.reports @ direction).sum() / (sd * sqrt(len(each.reports))) for each in transcripts
    ]
    return np.array(sums, dtype=np.float64)


def mu_error(mu: float, n: int, m: int) -> float:
    """Standard error of a difference of means in standard deviations, for large samples.

    Hedges, Olkin 1985, "Statistical methods for meta-analysis", ch. 5 (their d is our μ).
    It is only shown; the checks use exact limits.
    """
    return sqrt((n + m) / (n * m) + mu * mu / (2 * (n + m)))


def power(claim: Claim, trials: int) -> tuple[float, float]:
    """Probability that half the noise is found: whatever the noise is, and by any of the bounds."""
    anyhow = detection(claim.mu, 2 * claim.mu, trials, _ALPHA_POOLED)
    gaussian = gaussian_detection(claim.mu, 2 * claim.mu, trials, _ALPHA_GAUSSIAN)
    return anyhow, max(anyhow, gaussian)


def _freshness(noise: Floats) -> Iterator[Check]:
    """noise: (trials, rounds, blanks), pure noise.  Equal draws, or draws that know each other."""
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


def _ledger(claim: Claim, observed: Observed) -> Iterator[Check]:
    transcripts = observed.transcripts
    late = sum(not early for each in transcripts for early in each.charged_first)
    total = sum(len(each.charged_first) for each in transcripts)
    yield Check(
        "charged-first",
        late == 0,
        f"{late} of {total} reports left before their round was charged to the ledger",
    )
    worst = max(transcripts, key=lambda each: abs(each.charged_epsilon - claim.target.epsilon))
    yield Check(
        "charge",
        all(each.charged_rounds == claim.answers for each in transcripts)
        and abs(worst.charged_epsilon / claim.target.epsilon - 1) <= _SAME_EPSILON,
        f"the ledger's events amount to epsilon {worst.charged_epsilon:.4f} for "
        f"{worst.charged_rounds} rounds",
    )
    broken = observed.broken_ledgers
    yield Check(
        "ledger-intact",
        not broken,
        f"the ledger does not verify: {broken[0]}" if broken else "every ledger verifies",
    )
