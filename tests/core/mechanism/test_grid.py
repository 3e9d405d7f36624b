"""The fineness of the grid: a million coordinates cost little, and few keep the grid they had."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import one_stream
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.report_format import decode_report, encode_report
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import Linear
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.task.losses import LossName, loss
from support.privacy_checks import check_meets_target, check_promises, full_batch, seeded_bytes

# Finer grids, where rounding many coordinates to 2²⁰ steps would cost noise


MILLION = 10**6


@pytest.mark.parametrize("rounds", [1, 10, 100, 1000])
@pytest.mark.parametrize("target", [PrivacyTarget(0.1, 1e-6), PrivacyTarget(3, 1e-9)])
def test_a_million_coordinates_cost_less_than_one_percent_of_noise(
    target: PrivacyTarget, rounds: int
) -> None:
    """At ε = 0.1 steps of σ/2²⁰ would take 53 % more noise in 100 rounds, and be none in 1000."""
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    made = full_batch(target, clip=1.0, rounds=rounds, dimension=MILLION, records=1000)
    needed = 2 / 1000 * sqrt(rounds) * get_sigma_gaussian(target.epsilon, target.delta)
    assert 0.999 * needed < made.sigma() < 1.01 * needed
    check_meets_target(made, target, 1000)


def test_a_finer_grid_is_taken_only_where_it_saves_noise() -> None:
    target = PrivacyTarget(0.1, 1e-6)
    fineness = {
        dimension: full_batch(
            target, clip=1.0, rounds=100, dimension=dimension, records=1000
        ).fineness
        for dimension in (50, 500, 1000, MILLION // 10, MILLION)
    }
    assert fineness == {50: 1, 500: 1, 1000: 16, MILLION // 10: 16, MILLION: 256}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_drawn_batches_of_many_coordinates_keep_their_promise(scheme: Scheme) -> None:
    silo = Participant(400, PrivacyTarget(1, 1e-5))
    made = Mechanism.calibrate(
        [silo],
        clip=1.0,
        dimension=100 * MILLION,
        phases=[Phase(1)],
        minibatch=Minibatch(scheme, 0.5),
    )
    assert made.fineness > 1
    check_promises(made, [silo])
    assert made.epsilon(silo) <= 1


@pytest.mark.parametrize(
    ("choices", "grid"),
    [
        ((3, 3.33e-7, 100, 50, 1734), "0x1.30d5f32f8e8e2p-26"),
        ((0.1, 1e-6, 1000, 50, 1000), "0x1.283459bb9e7d0p-19"),
        ((2, 1e-6, 40, 30, 200), "0x1.20ed93d9cd257p-23"),
        ((1, 1e-5, 20, 7850, 500), "0x1.11bc81650c04ep-24"),
    ],
)
def test_a_study_of_few_coordinates_keeps_the_grid_that_it_always_had(
    choices: tuple[float, float, int, int, int], grid: str
) -> None:
    """To the last bit: parties of different releases must agree on it."""
    epsilon, delta, rounds, dimension, records = choices
    made = full_batch(
        PrivacyTarget(epsilon, delta), clip=1.0, rounds=rounds, dimension=dimension, records=records
    )
    assert made.grids[0] == pytest.approx(float.fromhex(grid), rel=1e-12)
    assert made.fineness == 1


def test_a_grid_too_fine_for_a_report_gives_way_to_a_coarser_one() -> None:
    """So many records leave no bits for a finer grid; more noise is better than a refusal."""
    target = PrivacyTarget(0.5, 1e-6)
    made = full_batch(target, clip=1.0, rounds=20, dimension=MILLION, records=10**8)
    assert made.fineness == 1
    assert full_batch(target, clip=1.0, rounds=20, dimension=MILLION, records=10**6).fineness > 1
    check_meets_target(made, target, 10**8)


def test_a_mechanism_has_one_of_the_finenesses_that_there_is_noise_for() -> None:
    with pytest.raises(ValueError, match="fineness"):
        Mechanism(1.0, 5, Minibatch(), (Phase(1),), (1e-6,), fineness=2)


def test_reports_on_a_finer_grid_have_its_noise_and_fit() -> None:
    """What a silo sends: false alarm 10⁻⁶ for the variance of 4000 coordinates."""
    target, dimension = PrivacyTarget(0.01, 1e-6), 4000
    made = full_batch(target, clip=1.0, rounds=100, dimension=dimension, records=10)
    assert made.fineness > 1
    records = Records(np.zeros((10, dimension)), np.ones(10))
    model = Linear(loss(LossName.LOGISTIC))
    silo = Reporter(made, Participant(10, target), records, model, seeded_bytes(1))
    values = silo.values(RoundQuery(1, np.zeros(dimension)), one_stream(seeded_bytes(2)))
    assert np.array_equal(decode_report(encode_report(values, made), made), values)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], dimension)
    assert low < ((values / (made.fineness * 2.0**20)) ** 2).sum() < high
