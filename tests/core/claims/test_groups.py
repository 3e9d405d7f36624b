"""A person in several silos, a family in one: against the Gaussian mechanism's own formula."""

from math import exp, sqrt

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.claims.groups import in_two_silos, most_exposed, several_people
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind

STRICT, LOOSE = PrivacyTarget(0.5, 1e-6), PrivacyTarget(2.0, 1e-5)
SMALL, LARGE = Participant(500, STRICT, 0.5), Participant(1500, LOOSE, 1.5)


def calibrated(*phases: Phase, batch: Minibatch | None = None) -> Mechanism:
    return Mechanism.calibrate(
        [SMALL, LARGE], clip=0.25, dimension=7, phases=phases, minibatch=batch
    )


def epsilon(mu: float, delta: float) -> float:
    """Balle, Wang 2018, Theorem 8."""

    def excess(each: float) -> float:
        far = norm.cdf(-each / mu - mu / 2)
        return float(norm.cdf(-each / mu + mu / 2) - exp(each) * far) - delta

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


def test_somebody_in_two_silos_and_a_family_lose_what_the_gaussian_mechanism_says() -> None:
    mechanism = calibrated(Phase(20, 0.5), Phase(40, 0.5))
    spent = {
        silo: max(
            sqrt(phase.rounds) * mechanism.event(silo, index).mu
            for index, phase in enumerate(mechanism.phases)
        )
        for silo in (SMALL, LARGE)
    }
    both = in_two_silos(mechanism, SMALL, LARGE, 1e-5)
    mu = sqrt(spent[SMALL] ** 2 + spent[LARGE] ** 2)
    assert both == pytest.approx(epsilon(mu, 1e-5), rel=1e-5)
    for people in (1, 2, 5):
        family = several_people(mechanism, LARGE, people, 1e-5)
        assert family == pytest.approx(epsilon(people * spent[LARGE], 1e-5), rel=1e-5)
    assert several_people(mechanism, LARGE, 1, 1e-5) == pytest.approx(mechanism.epsilon(LARGE))
    alone, together = mechanism.epsilon(SMALL, 1e-5), in_two_silos(mechanism, SMALL, LARGE, 1e-5)
    assert together is not None
    assert together > max(alone, mechanism.epsilon(LARGE))  # at the same δ, whatever the silos' own


def test_the_silos_that_tell_most_come_first() -> None:
    mechanism = calibrated(Phase(30))
    heavy = Participant(300, LOOSE, 1.5)  # a record of it moves a report five times as far
    assert most_exposed(mechanism, [LARGE, heavy, SMALL]) == heavy


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_nothing_is_claimed_of_drawn_batches(scheme: Scheme) -> None:
    mechanism = calibrated(Phase(5), batch=Minibatch(scheme, 0.1))
    assert in_two_silos(mechanism, SMALL, LARGE, 1e-5) is None
    assert several_people(mechanism, SMALL, 2, 1e-5) is None


def test_turns_and_an_evaluation_count_as_what_a_silo_answers() -> None:
    mechanism = calibrated(
        Phase(30, 0.75, turns=12), Phase(1, 0.25, kind=PhaseKind.EVALUATION, turns=1)
    )
    mu = max(sqrt(12) * mechanism.event(LARGE, 0).mu, mechanism.event(LARGE, 1).mu)
    assert several_people(mechanism, LARGE, 3, 1e-5) == pytest.approx(
        epsilon(3 * mu, 1e-5), rel=1e-5
    )
