"""How long honest reports can be: against exact laws, and on silos that try to be long honestly."""

from math import exp, sqrt

import numpy as np
import pytest
from scipy import stats
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.discrete_gaussian import SIGMA_UNITS, Streams
from silomix_core.evaluation.private import measure_of
from silomix_core.mechanism.attendance import attend
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import model_of
from silomix_core.reports.length_bound import FALSE_REJECTIONS, VectorNoise, longest_reports
from silomix_core.reports.reception import Reception, ReportTooLong
from silomix_core.reports.reporter import Integers, Reporter, RoundQuery
from silomix_core.simulation.one_process import evaluated_study, rehearsal
from silomix_core.study.derive import plan_of
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from support.privacy_checks import Floats
from support.specifications import specification

TARGET = PrivacyTarget(2.0, 1e-6)
SILOS = [Participant(2000, TARGET)] * 10


def mechanism(*phases: Phase, dimension: int = 13, minibatch: Minibatch | None = None) -> Mechanism:
    return Mechanism.calibrate(
        SILOS, clip=0.25, dimension=dimension, phases=phases, minibatch=minibatch
    )


# The law of a norm --------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 13, 1000, 10**6])
@pytest.mark.parametrize("signal", [0.0, 0.5, 40.0, 1e4])
@pytest.mark.parametrize("doubt", [15.0, 28.0])
def test_a_norm_exceeds_its_bound_as_seldom_as_stated_and_the_bound_is_no_waste(
    dimension: int, signal: float, doubt: float
) -> None:
    """By the exact law of a Gaussian's norm; the bound is within a fifth of what it could be."""
    longest = VectorNoise(dimension, 2.0).longest(2 * signal, doubt) / 2
    exact = stats.chi2(dimension) if not signal else stats.ncx2(dimension, signal**2)
    assert exact.sf(longest**2) <= exp(-doubt)
    assert longest <= 1.2 * sqrt(exact.isf(exp(-doubt)))


@pytest.mark.parametrize("signal", [0.5, 40.0])
def test_what_depends_on_the_noise_may_point_its_way(signal: float) -> None:
    """The worst case: a signal that always lengthens the noise."""
    noise, doubt = VectorNoise(13, 1.0, independent=False), 28.0
    longest = noise.longest(signal, doubt)
    assert stats.chi(13).sf(longest - signal) <= exp(-doubt)
    assert longest > VectorNoise(13, 1.0).longest(signal, doubt)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0, 20.0])
def test_a_discrete_gaussian_is_subgaussian_with_its_own_variance(sigma: float) -> None:
    support = np.arange(-40 * int(sigma + 1), 40 * int(sigma + 1) + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    mass /= mass.sum()
    for tilt in np.linspace(0.01, 6 / sigma, 40):
        assert (mass * np.exp(tilt * support)).sum() <= exp((tilt * sigma) ** 2 / 2) * (1 + 1e-12)


# A study's ----------------------------------------------------------------------------------------


def test_the_bound_is_the_stated_formula_for_a_full_batch() -> None:
    """C·w/g, rounding and σ(√d + slack), with a union over all silos and rounds; not 4.8 clips."""
    made = mechanism(Phase(60))
    (longest,) = longest_reports(made, SILOS)
    signal = 0.25 / made.grids[0] + sqrt(13) * 0.502
    chance = stats.ncx2.sf((longest / SIGMA_UNITS) ** 2, 13, (signal / SIGMA_UNITS) ** 2)
    assert chance * 10 * 60 <= FALSE_REJECTIONS
    assert 1.0 < longest * made.grids[0] / 0.25 < 1.25


def test_local_steps_and_control_variates_have_so_many_signals_and_noises() -> None:
    single, walking, controlled = (
        longest_reports(mechanism(phase), SILOS)[0] * mechanism(phase).grids[0]
        for phase in (Phase(60), Phase(60, steps=5), Phase(60, steps=5, control=True))
    )
    assert 5 < walking / single < 6
    assert 1.8 < controlled / walking < 2


def test_the_heaviest_silo_decides() -> None:
    """By a third as much in weight the bound grows by no less and not much more."""
    heavy = [*SILOS[1:], Participant(2000, TARGET, weight=3.0)]
    made = Mechanism.calibrate(heavy, clip=0.25, dimension=13, phases=[Phase(60)])
    (longest,) = longest_reports(made, heavy)
    assert 3.0 < longest * made.grids[0] / 0.25 < 3.75


def test_a_poisson_batch_is_nearly_as_large_as_expected() -> None:
    """1/ratio, which no batch ever has, would allow ten times the clip."""
    batch = Minibatch(Scheme.POISSON, 0.1)
    made = mechanism(Phase(60), minibatch=batch)
    (longest,) = longest_reports(made, SILOS)
    fullest = stats.binom.isf(FALSE_REJECTIONS / (2 * 600), 2000, 0.1) / 200
    assert 1.0 < longest * made.grids[0] / (0.25 * fullest) < 1.25
    assert fullest < 1.6


def test_an_evaluation_is_bounded_by_what_records_say() -> None:
    made = mechanism(Phase(60, 0.8), Phase(1, 0.2, kind=PhaseKind.EVALUATION))
    training, evaluation = longest_reports(made, SILOS)
    assert 1.0 < training * made.grids[0] / 0.25 < 1.3
    assert 1.0 < evaluation * made.grids[1] < 1.3


# Honest silos -------------------------------------------------------------------------------------


TASK = Task(
    LossName.LOGISTIC,
    "y",
    tuple(Feature(f"x{index}", -1.0, 1.0, 0.0) for index in range(5)),
    Scaling.UNIT_BALL,
    0.3,
)


def one_sided(count: int, sign: float) -> Records:
    """Records that all say the same: their mean gradient is as long as the clip."""
    return Records(TASK.encode(np.ones((count, 5))), np.full(count, sign))


class Watched:
    """A silo whose reports must pass, and how much of the bound the longest has."""

    def __init__(
        self, reporter: Reporter, reception: Reception, longest: tuple[float, ...]
    ) -> None:
        self._reporter, self._reception, self._bounds = reporter, reception, longest
        self.most = 0.0

    def takes_part(self, round_number: int) -> bool:
        return self._reporter.takes_part(round_number)

    def values(self, question: RoundQuery, streams: Streams, kept: Integers | None) -> Integers:
        report = self._reporter.values(question, streams, kept)
        self._reception.gathering(question.round, 1).add(report)  # raises if it is too long
        phase = self._reporter._mechanism.phase_of(question.round)
        length = float(np.linalg.norm(report.astype(np.float64)))
        self.most = max(self.most, length / self._bounds[phase])
        return report


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_honest_report_of_any_algorithm_is_too_long(name: str) -> None:
    """False alarm: 10⁻⁹ each.  The silos' records are as one-sided as records can be."""
    participants = [Participant(60, TARGET, weight) for weight in (0.5, 1.0, 1.5, 1.0)]
    named = specification(name, most_rounds=12, held_out=0.2, clip=0.1)
    made = rehearsal(TASK, named, participants)
    reception = Reception(made.mechanism, participants, made.aggregation)
    bounds = longest_reports(made.mechanism, participants)
    rng, plan = np.random.default_rng(5), plan_of(made.setting, made.mechanism)
    local = made.algorithm.local(plan) if made.algorithm.local else None
    silos = [
        Watched(
            Reporter(
                made.mechanism,
                silo,
                one_sided(60, (-1.0) ** place),
                model_of(TASK, made.algorithm.smoothing(made.setting)),
                rng.bytes,
                local,
                attend(made.mechanism, place, rng.bytes),
                measure_of(TASK),
            ),
            reception,
            bounds,
        )
        for place, silo in enumerate(participants)
    ]
    evaluated_study(
        made.algorithm,
        plan,
        made.mechanism,
        silos,
        rng,
        rng.bytes,
        measure=measure_of(TASK),
        reception=reception,
    )
    assert 0.2 < max(silo.most for silo in silos) < 1


def test_what_is_longer_than_any_silos_report_is_refused() -> None:
    """Each coordinate being small: sent in every direction at once, or in one."""
    made = mechanism(Phase(60))
    reception, (longest,) = Reception(made, SILOS), longest_reports(made, SILOS)
    directions: list[Floats] = [np.ones(13) / sqrt(13), np.eye(13)[3]]
    for direction in directions:
        gathering = reception.gathering(1, 10)
        gathering.add(np.trunc(0.999 * longest * direction).astype(np.int64))
        beyond = np.rint(1.001 * longest * direction).astype(np.int64)
        assert np.abs(beyond).max() < made.largest_value
        with pytest.raises(ReportTooLong):
            gathering.add(beyond)
        assert gathering.close().sum.reports == 1
