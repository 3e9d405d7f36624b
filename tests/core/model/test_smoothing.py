"""Smoothed losses: the envelope is the envelope, the ball is a ball, and no record weighs more."""

from dataclasses import replace
from math import inf, isfinite, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import AlgorithmPlan, Setting
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.algorithms.smoothed import CONVOLUTION, MOREAU
from silomix_core.discrete_gaussian import one_stream
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.model.models import Linear, model_of
from silomix_core.model.smoothing import Convolution, Moreau, Smoothing, ball_coordinates
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.task.losses import Loss, LossName, loss
from silomix_core.task.task import UNIT
from support.privacy_checks import SUM_UNIT, Floats, hostile_pairs, neighbours_encoded, seeded_bytes
from support.studies import parse, study_tree

KINKED = {
    "hinge": loss(LossName.HINGE),
    "absolute": loss(LossName.ABSOLUTE),
    "quantile": loss(LossName.QUANTILE, level=0.9),
}
NAMES = st.sampled_from(sorted(KINKED))
SIDES = st.sampled_from([-1.0, 1.0])
VECTORS = arrays(np.float64, 3, elements=st.floats(-3, 3))
SMOOTHINGS: list[Smoothing] = [Moreau(1e-3), Moreau(5.0), Convolution(0.5, 4), Convolution(1e6, 4)]


def moreau_residual(made: Loss, score: float, label: float, norm: float, beta: float) -> float:
    smoothing = Moreau(beta)
    widths = smoothing.widths(np.array([norm]))
    return float(smoothing.residual(made, np.array([score]), np.array([label]), widths)[0])


@given(NAMES, VECTORS, VECTORS, VECTORS, SIDES, st.floats(0.01, 100), st.floats(1e-3, 1))
def test_the_moreau_gradient_is_that_of_the_envelope(
    name: str, w: Floats, z: Floats, other: Floats, label: float, beta: float, near: float
) -> None:
    """With g = residual·z, the point w − g/β minimizes f(v) + β/2·‖w − v‖²: nothing does better."""
    made, z = KINKED[name], z + 0.01 * np.sign(z[0] or 1.0)
    norm = float(np.linalg.norm(z))

    def objective(v: Floats) -> float:
        value = made.value(np.array([z @ v]), np.array([label]))[0]
        return float(value + beta / 2 * (w - v) @ (w - v))

    residual = moreau_residual(made, float(w @ z), label, norm, beta)
    found = w - residual * z / beta
    for rival in (other, found + near * other, w, found - near * z, found + near * z):
        assert objective(found) <= objective(rival) + 1e-9 * (1 + objective(rival))


@given(NAMES, st.floats(-1e200, 1e200) | st.floats(-3, 3), SIDES, st.floats(0.1, 1.5))
def test_a_moreau_residual_is_never_larger_than_the_losss_own(
    name: str, score: float, label: float, norm: float
) -> None:
    for beta in (1e-6, 1.0, 1e9):
        assert abs(moreau_residual(KINKED[name], score, label, norm, beta)) <= (
            KINKED[name].largest_residual
        )


@given(NAMES, st.floats(-3, 3), st.floats(-3, 3), SIDES, st.floats(0.1, 1.5), st.floats(0.01, 9))
def test_a_moreau_gradient_changes_no_faster_than_its_smoothness(
    name: str, one: float, two: float, label: float, norm: float, beta: float
) -> None:
    """Along z: a step of t moves the score by t·‖z‖² and the gradient by the residual times z."""
    first, second = (moreau_residual(KINKED[name], s, label, norm, beta) for s in (one, two))
    assert abs(first - second) * norm <= beta * abs(one - two) / norm * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("name", sorted(KINKED))
def test_far_from_the_kink_and_for_large_beta_nothing_changes(name: str) -> None:
    scores = np.array([-7.0, -1.5, 0.5, 1.5, 7.0])
    for label in (-1.0, 1.0):
        wanted = KINKED[name].residual(scores, np.full(5, label))
        found = [moreau_residual(KINKED[name], s, label, 1.0, 1e9) for s in scores]
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize("dimension", [1, 2, 3, 14, 1000, 2**21])
def test_coordinates_of_the_ball_have_its_distribution(dimension: int) -> None:
    """(x + 1)/2 is Beta((d+1)/2, (d+1)/2); the judge is scipy's inverse."""
    found = ball_coordinates(dimension)
    assert len(found) == 2**16
    assert np.array_equal(found, -found[::-1])
    shape = (dimension + 1) / 2
    places = np.array([1, 100, 5000, 20_000, 32_768, 40_000, 60_000, 65_500])
    wanted = 2 * stats.beta.ppf((places + 0.5) / 2**16, shape, shape) - 1
    assert found[places] == pytest.approx(wanted, abs=2e-5 / sqrt(dimension))
    assert found.var() == pytest.approx(1 / (dimension + 2), rel=1e-4)


def test_a_point_of_a_ball_has_that_first_coordinate() -> None:
    """Drawn another way: normal direction, radius U^(1/d).  χ², false alarm 10⁻⁶."""
    rng = np.random.default_rng(11)
    directions = rng.normal(size=(100_000, 5))
    radii = rng.random(100_000) ** 0.2 / np.linalg.norm(directions, axis=1)
    edges = np.quantile(ball_coordinates(5), np.linspace(0, 1, 41)[1:-1])
    counts = np.bincount(np.searchsorted(edges, directions[:, 0] * radii), minlength=40)
    assert stats.chisquare(counts).pvalue > 1e-6


def like_records(count: int, label: float) -> Records:
    row = np.array([20_000.0, -30_000.0, 5_000.0, 19_661.0])
    return Records(np.tile(row, (count, 1)), np.full(count, label))


@pytest.mark.parametrize("label", [-1.0, 1.0])
@pytest.mark.parametrize("name", sorted(KINKED))
def test_convolution_gives_on_average_the_gradient_of_the_mean_loss(
    name: str, label: float
) -> None:
    """E residual = above·P[s + r‖z‖X > y] − below·P[… < y], X of the ball; 6 deviations, 10⁻⁸."""
    count, radius, point = 200_000, 3.0, np.array([0.3, -0.2, 0.5, 0.1])
    records, made = like_records(count, label), KINKED[name]
    total = ClippedSum(records, made, 10.0, Convolution(radius, 4)).at(point, None, seeded_bytes(3))
    row = records.features[0] / UNIT
    norm, score = float(np.linalg.norm(row)), float(row @ point)
    assert made.slopes is not None
    below, above = (float(np.broadcast_to(s, 1)[0]) for s in made.slopes(np.array([label])))
    left = stats.beta.cdf(((label - score) / (radius * norm) + 1) / 2, 2.5, 2.5)
    assert 0.02 < left < 0.98
    mean = total / SUM_UNIT / count
    deviation = (below + above) / 2 / sqrt(count)
    assert mean == pytest.approx(
        (above * (1 - left) - below * left) * row, abs=6 * deviation + 1e-5
    )


def test_every_record_and_every_round_has_its_own_point() -> None:
    """Records alike, a score at the kink: each is on either side, unlike the others."""
    records = like_records(64, 1.0)
    row = records.features[0] / UNIT
    point = row / (row @ row)  # score 1: the kink
    made, stream = ClippedSum(records, KINKED["hinge"], 10.0, Convolution(1.0, 4)), seeded_bytes(5)
    rounds = []
    for _ in range(2):
        alone = []
        shifts = stream(8 * 64)
        for index in range(64):
            mask = np.arange(64) == index
            alone.append(bool(made.at(point, mask, lambda _, same=shifts: same).any()))
        rounds.append(alone)
    assert 10 < sum(rounds[0]) < 54
    assert rounds[0] != rounds[1]


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=repr)
@pytest.mark.parametrize("name", sorted(KINKED))
def test_a_replaced_record_moves_a_smoothed_sum_by_at_most_two_clip(
    name: str, smoothing: Smoothing
) -> None:
    for case in hostile_pairs(60):
        first, second = (
            ClippedSum(records, KINKED[name], case.clip, smoothing).at(
                case.point, None, seeded_bytes(1)
            )
            for records in neighbours_encoded(case)
        )
        moved = sum((int(a) - int(b)) ** 2 for a, b in zip(first, second, strict=True))
        assert moved <= (2 * case.clip * SUM_UNIT) ** 2


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=repr)
def test_how_many_random_bytes_a_round_takes_depends_on_no_record(smoothing: Smoothing) -> None:
    taken: list[list[int]] = []
    for case in hostile_pairs(4):
        records = neighbours_encoded(case)[0]
        many = Records(np.resize(records.features, (9, 4)), np.resize(records.labels, 9))
        taken.append([])

        def counted(count: int) -> bytes:
            taken[-1].append(count)
            return seeded_bytes(2)(count)

        ClippedSum(many, KINKED["hinge"], 0.1, smoothing).at(case.point, None, counted)
    assert all(each == taken[0] for each in taken)


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=repr)
def test_an_open_batch_has_the_same_smoothed_sum(smoothing: Smoothing) -> None:
    """Every record keeps its own point, whoever else is in the batch."""
    records, mask = like_records(64, 1.0), np.arange(64) % 3 == 0
    row = records.features[0] / UNIT
    secret, opened = (
        ClippedSum(records, KINKED["hinge"], 10.0, smoothing, open_batches=each).at(
            row / (row @ row), mask, seeded_bytes(5)
        )
        for each in (False, True)
    )
    assert np.array_equal(secret, opened)


def test_convolution_without_random_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="random bytes"):
        ClippedSum(like_records(2, 1.0), KINKED["hinge"], 1.0, Convolution(1.0, 4)).at(np.ones(4))


# The algorithms ----------------------------------------------------------------------------------

SETTING = Setting(
    rounds=60,
    dimension=14,
    silos=10,
    participants=9,
    records=2000,
    radius=5.0,
    lipschitz=0.25,
    smoothness=inf,
    target=PrivacyTarget(2.0, 1e-6),
)


def test_how_much_is_smoothed_follows_from_the_theorems() -> None:
    price = sqrt(14 * log(1e6)) / 2
    envelope, ball = MOREAU.smoothing(SETTING), CONVOLUTION.smoothing(SETTING)
    assert envelope == Moreau(pytest.approx(0.25 * 3 / 10 * min(sqrt(2000), 2000 / price)))
    assert ball == Convolution(pytest.approx(10 / 3 * (1 / sqrt(2000) + price / 2000)), 14)
    scarce = replace(SETTING, target=PrivacyTarget(0.01, 1e-6))
    assert MOREAU.smoothing(scarce) == Moreau(pytest.approx(0.075 * 2000 / (200 * price)))


@pytest.mark.parametrize("entry", [MOREAU, CONVOLUTION], ids=lambda each: each.name)
def test_a_smooth_loss_is_left_as_it_is(entry) -> None:
    smooth = replace(SETTING, smoothness=0.3)
    assert entry.smoothing(smooth) is None
    phases = entry.phases(smooth)
    plan = AlgorithmPlan(smooth, phases, (0.01,) * len(phases))
    other = ALGORITHMS["localized-accelerated"].start(plan)
    assert np.array_equal(next(entry.start(plan)).point, next(other).point)


def test_only_these_two_smooth() -> None:
    smoothing = {name for name, each in ALGORITHMS.items() if each.smoothing(SETTING) is not None}
    assert smoothing == {"moreau-smoothing", "convolution-smoothing"}


def test_with_full_batches_the_random_points_still_count_as_noise() -> None:
    plan = AlgorithmPlan(SETTING, (Phase(60),), (0.0,))
    scattered = replace(plan, setting=replace(SETTING, scatter=0.25**2))
    assert scattered.variance() - plan.variance() == pytest.approx(0.25**2 / (2000 * 9))


@pytest.mark.parametrize(
    ("name", "kind"), [("moreau-smoothing", Moreau), ("convolution-smoothing", Convolution)]
)
def test_a_study_says_by_its_algorithm_how_silos_smooth(name: str, kind: type) -> None:
    tree = study_tree()
    tree["algorithm"]["name"] = name
    assert parse(tree).model == Linear(loss(LossName.LOGISTIC), None)
    tree["task"]["loss"] = "hinge"
    model = parse(tree).model
    assert isinstance(model, Linear)
    assert isinstance(model.smoothing, kind)
    assert isfinite(ALGORITHMS[name].phases(parse(tree).setting)[0].rounds)


def test_a_silo_reports_gradients_of_the_envelope() -> None:
    """The report of a reporter at the kink, where the plain subgradient is 0."""
    records = like_records(40, 1.0)
    row = records.features[0] / UNIT
    silo = Participant(40, PrivacyTarget(2.0, 1e-5))
    mechanism = Mechanism(0.25, 4, Minibatch(), (Phase(1),), (1e-9,))
    task = replace(parse(study_tree()).task, loss=LossName.HINGE)
    point = 0.9 * row / (row @ row)
    means = [
        Reporter(mechanism, silo, records, model_of(task, smoothing), seeded_bytes(1)).values(
            RoundQuery(1, point), one_stream(lambda count: (bytes(7) + b"\x80") * (count // 8))
        )
        * 1e-9
        for smoothing in (None, Moreau(2.0))
    ]
    ramp = -0.1 * 2.0 / (row @ row)
    assert means[0] == pytest.approx(-row * 0.25 / np.linalg.norm(row), abs=1e-4)
    assert means[1] == pytest.approx(np.maximum(ramp, -0.25 / np.linalg.norm(row)) * row, abs=1e-4)
