"""Noisy minibatch SGD as a generator: what it asks, what it returns, where it ends."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import (
    Aggregate,
    Algorithm,
    AlgorithmPlan,
    Averaging,
    Descent,
    Query,
    Setting,
)
from silomix_core.algorithms.catalogue import ALGORITHMS, algorithm
from silomix_core.algorithms.noisy_mb_sgd import (
    ALGORITHM,
    ONE_PASS,
    noisy_mb_sgd,
    step_size,
)
from silomix_core.algorithms.projections import Ball
from silomix_core.mechanism.mechanism import Phase
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.study.study import InvalidStudy, Study
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT
from support.privacy_checks import SUM_UNIT, Floats, hostile_task
from support.studies import parse, study_tree

Answer = Callable[[int, Query], Aggregate | None]
LOGISTIC = loss(LossName.LOGISTIC)
SETTING = Setting(
    rounds=10,
    dimension=3,
    silos=4,
    participants=4,
    records=1000,
    radius=5.0,
    lipschitz=1.0,
    smoothness=1.0,
    target=PrivacyTarget(1.0, 1e-5),
)


def plan(
    rounds: int = 10,
    dimension: int = 3,
    radius: float = 5.0,
    noise: float = 0.1,
    entry: Algorithm = ALGORITHM,
    **changes: object,
) -> AlgorithmPlan:
    """Four silos of 1000 records; `noise` is that of a report, in every phase."""
    known = replace(SETTING, rounds=rounds, dimension=dimension, radius=radius, **changes)  # type: ignore[arg-type]
    phases = entry.phases(known)
    return AlgorithmPlan(known, phases, (noise,) * len(phases))


def play(agreed: AlgorithmPlan, answer: Answer, start=noisy_mb_sgd) -> tuple[list[Query], Floats]:
    """All queries and the returned model."""
    steps = start(agreed)
    queries = [next(steps)]
    while True:
        try:
            queries.append(steps.send(answer(len(queries) - 1, queries[-1])))
        except StopIteration as stop:
            return queries, stop.value


def towards(target: Floats, curvature: float) -> Answer:
    """Gradients of curvature/2·‖x − target‖²."""
    return lambda index, query: Aggregate(curvature * (query.point - target), 4)


def random_answers(seed: int, void: float = 0.0) -> Answer:
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(1000, 3))
    voids = rng.uniform(size=1000) < void
    return lambda index, query: None if voids[index] else Aggregate(gradients[index], 4)


@given(st.integers(1, 40), st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0]))
def test_an_algorithm_asks_as_many_queries_as_there_are_rounds(
    rounds: int, seed: int, void: float
) -> None:
    queries, model = play(plan(rounds), random_answers(seed, void))
    assert len(queries) == rounds
    assert model.shape == (3,)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_of_the_catalogue_fits_the_seam(name: str) -> None:
    entry = algorithm(name)
    queries, model = play(plan(7, entry=entry), random_answers(1), entry.start)
    assert entry.name == name
    assert entry.summary
    assert entry.theorem
    assert entry.advice
    assert 1 <= len(queries) <= 7
    assert len(queries) == sum(phase.rounds for phase in plan(7, entry=entry).phases)
    assert all(np.linalg.norm(query.point) <= 5 * (1 + 1e-9) for query in queries)
    assert np.all(np.isfinite(model))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 49, 1000])
def test_the_phases_of_every_algorithm_hold_its_rounds_and_no_record_twice(
    name: str, rounds: int
) -> None:
    records = rounds * 1000
    phases = algorithm(name).phases(replace(SETTING, rounds=rounds, records=records))
    assert sum(phase.rounds for phase in phases) <= rounds
    assert sum(phase.records(records) for phase in phases) <= records
    assert all(phase.records(records) >= 1 for phase in phases)


def test_minibatch_sgd_uses_all_records_in_all_rounds() -> None:
    assert ALGORITHM.phases(replace(SETTING, rounds=40)) == (Phase(40, 1.0),)


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_one_pass_uses_every_record_in_one_round(rounds: int) -> None:
    phases = ONE_PASS.phases(replace(SETTING, rounds=rounds))
    # 1/R is no binary fraction, yet a silo that can be split evenly uses all its records
    assert sum(phase.records(rounds * 1000) for phase in phases) == rounds * 1000
    assert [phase.rounds for phase in phases] == [1] * rounds
    assert [phase.records(30 * rounds + rounds - 1) for phase in phases] == [30] * rounds


def test_one_pass_asks_what_minibatch_sgd_asks() -> None:
    """They differ in the records that answer, not in the queries."""
    first, second = (
        play(plan(9, entry=each), towards(np.ones(3), 0.03), each.start)
        for each in (ALGORITHM, ONE_PASS)
    )
    assert np.array_equal(first[1], second[1])


def test_an_unknown_algorithm_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"'adam'.*noisy-mb-sgd, .*one-pass-mb-sgd"):
        algorithm("adam")


def test_the_minimizer_of_a_quadratic_is_found() -> None:
    target = np.array([1.0, -2.0, 0.5])
    quiet = plan(rounds=800, radius=50.0, noise=1e-9)
    queries, model = play(quiet, towards(target, curvature=1 / step_size(quiet)))
    assert model == pytest.approx(target, abs=1e-9)
    assert np.array_equal(queries[0].point, np.zeros(3))


@pytest.mark.parametrize("bias", [0.1, 0.3])
def test_the_minimizer_of_a_logistic_problem_is_found(bias: float) -> None:
    """With labels that overlap the minimizer is unique; Newton's method is the judge."""
    rng = np.random.default_rng(4)
    values = rng.uniform([0, -1, -1], [100, 1, 1], size=(400, 3))
    labels = np.where(rng.uniform(size=400) < 0.3 + 0.4 * (values[:, 0] > 50), 1.0, -1.0)
    records = Records(hostile_task(bias=bias).encode(values), labels)
    minimizer = newton(records)
    clipped = ClippedSum(records, LOGISTIC, clip=4.0)

    def answer(index: int, query: Query) -> Aggregate:
        return Aggregate(clipped.at(query.point) / SUM_UNIT / 400, 4)

    quiet = plan(rounds=2000, dimension=4, radius=50.0, noise=1e-9)
    _, model = play(quiet, answer)
    assert model == pytest.approx(minimizer, abs=1e-2)


def newton(records: Records) -> Floats:
    rows, labels = records.features / UNIT, records.labels
    point = np.zeros(rows.shape[1])
    for _ in range(50):
        likelihood = 1 / (1 + np.exp(-rows @ point))
        gradient = rows.T @ (likelihood - (labels + 1) / 2)
        hessian = (rows * (likelihood * (1 - likelihood))[:, None]).T @ rows
        point = point - np.linalg.solve(hessian, gradient)
    return point


def test_void_rounds_leave_the_point_where_it_is() -> None:
    voids = {0, 3, 4, 9}
    answers = random_answers(2)
    queries, _ = play(plan(12), lambda i, query: None if i in voids else answers(i, query))
    for index in range(11):
        same = np.array_equal(queries[index].point, queries[index + 1].point)
        assert same == (index in voids)


def test_if_all_rounds_are_void_the_model_is_where_it_started() -> None:
    _, model = play(plan(9), lambda index, query: None)
    assert np.array_equal(model, np.zeros(3))


@given(st.integers(0, 20), st.floats(0.01, 10))
def test_points_and_models_stay_in_the_ball(seed: int, radius: float) -> None:
    queries, model = play(plan(30, radius=radius), random_answers(seed, void=0.2))
    for point in (model, *(query.point for query in queries), *(query.model for query in queries)):
        assert np.linalg.norm(point) <= radius * (1 + 1e-12)


@given(arrays(np.float64, 3, elements=st.floats(-1e6, 1e6)), st.floats(0.01, 100))
def test_projection_is_idempotent_and_gives_the_nearest_point(point: Floats, radius: float) -> None:
    ball = Ball(np.zeros(3), radius)
    projected = ball.nearest(point)
    norm = np.linalg.norm(point)
    assert np.linalg.norm(projected) <= radius * (1 + 1e-12)
    assert np.linalg.norm(point - projected) == pytest.approx(max(0.0, norm - radius), abs=1e-6)
    assert ball.nearest(projected) == pytest.approx(projected)


@pytest.mark.parametrize("rounds", [1, 2, 5, 10, 11])
@pytest.mark.parametrize(
    ("descent", "momentum", "weight"),
    [
        (Descent(), 0.8, lambda r, rounds: r if 4 * r > rounds else 0),
        (Descent(0.0, Averaging.WEIGHTED), 0.0, lambda r, rounds: r),
        (Descent(0.5, Averaging.TAIL), 0.5, lambda r, rounds: 1 if 2 * r > rounds else 0),
    ],
)
def test_momentum_and_averaging_are_what_the_study_says(
    descent: Descent, momentum: float, weight: Callable[[int, int], int], rounds: int
) -> None:
    """By default the last three quarters count, the r-th r times.

    The same slope everywhere shows no curvature.
    """
    agreed, answers = plan(rounds, radius=100.0, descent=descent), downhill(void={3})
    queries, model = play(agreed, answers)
    # by hand: momentum, step, projection
    iterates, point, velocity = [], np.zeros(3), np.zeros(3)
    for index in range(rounds):
        aggregate = answers(index, queries[index])
        if aggregate is not None:
            velocity = momentum * velocity + (1 - momentum) * aggregate.gradient
            point = point - step_size(agreed) * velocity
            point = point * min(1.0, 100.0 / float(np.linalg.norm(point)))
        iterates.append(point)
    weights = [weight(number, rounds) for number in range(1, rounds + 1)]
    assert model == pytest.approx(np.average(iterates, axis=0, weights=weights))
    for query, iterate in zip(islice(queries, 1, None), iterates, strict=False):
        assert query.point == pytest.approx(iterate)


def downhill(void: set[int]) -> Answer:
    """The same slope everywhere."""
    slope = Aggregate(np.array([0.3, -0.2, 0.1]), 4)
    return lambda index, query: None if index in void else slope


# Steps far beyond what a curvature bears: the reports show it, and the step is cut.
HOSTILE = {
    "one strong direction": np.diag([0.25] + [1e-4] * 49),
    "a bias of 1 beside weak features": np.diag([1e-5] * 49 + [0.25]),
    "two coordinates": np.diag([0.5, 0.01]),
    "all directions at their bound": np.diag([0.27] * 50),
}


@pytest.mark.parametrize("hessian", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("noise", [1e-9, 1e-3])
@pytest.mark.parametrize("momentum", [0.8, 0.5, 0.0])
def test_no_curvature_within_the_public_bound_makes_it_bounce(
    hessian: Floats, noise: float, momentum: float
) -> None:
    """In the steepest direction the model ends near the minimizer, whatever ε was."""
    d = len(hessian)
    target = np.full(d, 20 / sqrt(d))
    descent = Descent(momentum)
    agreed = plan(60, d, radius=50.0, noise=noise, smoothness=0.5, descent=descent)
    rng = np.random.default_rng(8)

    def answer(index: int, query: Query) -> Aggregate:
        slope = hessian @ (query.point - target)
        slope *= min(1.0, 0.25 / float(np.linalg.norm(slope)) if slope.any() else 1.0)
        return Aggregate(slope + agreed.noise() * rng.normal(size=d), 4)

    _, model = play(agreed, answer)
    steep = np.argmax(np.diag(hessian))
    assert abs(model[steep] - target[steep]) < 0.1 * abs(target[steep]) + 30 * agreed.noise()


@pytest.mark.parametrize("numbers", [False, True])
def test_no_move_is_longer_than_its_share_of_the_path(numbers: bool) -> None:
    """Slopes that ask for more: each of 40 moves goes 4/40 of the radius; for numbers farther."""
    slope = Aggregate(np.array([10.0, 0.0, 0.0]), 4)
    agreed = plan(40, radius=50.0, noise=1e-9, numbers=numbers)
    queries, _ = play(agreed, lambda index, _: slope)
    moves = [np.linalg.norm(b.point - a.point) for a, b in pairwise(queries)]
    if numbers:
        assert moves[0] == pytest.approx(min(50.0, 0.2 * step_size(agreed) * 10.0))
    else:
        assert moves[:9] == pytest.approx([5.0] * 9)


@pytest.mark.parametrize(("numbers", "growth"), [(False, 6.0), (True, 1.0)])
def test_a_step_that_was_cut_grows_again_and_never_beyond_the_first(
    numbers: bool, growth: float
) -> None:
    """Two slopes show a curvature of 2; from then on the slope is 2 everywhere.  Errors of numbers
    are as curved everywhere: there the step stays."""
    agreed = plan(20, 1, radius=1000.0, noise=1e-9, descent=Descent(0.0), numbers=numbers)
    slopes = [1.0, 1.0 - 2 * step_size(agreed)] + 18 * [-2.0]
    queries, _ = play(agreed, lambda index, _: Aggregate(np.array([slopes[index]]), 4))
    points = [float(query.point[0]) for query in queries]
    cut, first = 0.75 / 2, step_size(agreed)
    wanted = [2 * min(first, cut * growth ** (index / 20)) for index in range(18)]
    assert np.diff(points)[1:] == pytest.approx(wanted, rel=1e-6)


def test_noise_alone_shows_no_curvature() -> None:
    """Reports of pure noise: in 200 rounds a false cut has a chance of 24 % (3 deviations each).

    The seed is fixed; the queries move by what the first step says.
    """
    agreed = plan(200, noise=0.1, radius=100.0)
    rng = np.random.default_rng(12)
    answers = [Aggregate(agreed.noise() * rng.normal(size=3), 4) for _ in range(200)]
    queries, _ = play(agreed, lambda index, query: answers[index])
    velocity, point = np.zeros(3), np.zeros(3)
    for query, answer in zip(queries, answers, strict=True):
        assert query.point == pytest.approx(point)
        velocity = 0.8 * velocity + 0.2 * answer.gradient
        point = point - step_size(agreed) * velocity


def test_replayed_answers_give_identical_queries_and_model() -> None:
    first, second = (play(plan(25), random_answers(5, void=0.1)) for _ in range(2))
    assert np.array_equal(first[1], second[1])
    for one, other in zip(first[0], second[0], strict=True):
        assert np.array_equal(one.point, other.point)
        assert np.array_equal(one.model, other.model)


def test_later_rounds_do_not_change_queries_that_were_handed_out() -> None:
    steps = noisy_mb_sgd(plan(4))
    first = next(steps)
    before = first.point.copy(), first.model.copy()
    for index in range(3):
        steps.send(Aggregate(np.full(3, 1.0 + index), 4))
    assert np.array_equal(first.point, before[0])
    assert np.array_equal(first.model, before[1])


@given(
    st.integers(1, 10**4),
    st.integers(1, 10**4),
    st.integers(1, 1000),
    st.floats(0.1, 100),
    st.floats(1e-6, 10),
    st.sampled_from([0.27, inf]),
)
def test_the_first_step_makes_noise_wander_half_the_radius(
    rounds: int, dimension: int, silos: int, radius: float, noise: float, smoothness: float
) -> None:
    known = replace(
        SETTING,
        rounds=rounds,
        dimension=dimension,
        silos=silos,
        participants=silos,
        radius=radius,
        smoothness=smoothness,
    )
    agreed = AlgorithmPlan(known, (Phase(rounds),), (noise,))
    wanted = 0.5 * radius * sqrt(silos) / (noise * sqrt(dimension * rounds))
    evenly_spread = 8 * dimension / min(smoothness, SETTING.lipschitz)
    assert step_size(agreed) == pytest.approx(min(wanted, evenly_spread))


# What a study may say of them ---------------------------------------------------------------------


def described(name: str, **keys: object) -> Study:
    tree = study_tree()
    tree["algorithm"] |= {"name": name} | keys
    return parse(tree)


@pytest.mark.parametrize("name", ["noisy-mb-sgd", "one-pass-mb-sgd"])
def test_a_study_says_momentum_and_averaging(name: str) -> None:
    usual, own = described(name), described(name, momentum=0, averaging="tail")
    assert usual.setting.descent == Descent(0.8, Averaging.WEIGHTED_TAIL)
    assert own.descent == own.setting.descent == Descent(0.0, Averaging.TAIL)
    assert own.identity != usual.identity
    assert own.mechanism() == usual.mechanism()  # no privacy depends on it


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("plain-mb-sgd", "momentum", 0.5, "algorithm.momentum: plain-mb-sgd has none to choose"),
        ("dp-fedavg", "averaging", "tail", "algorithm.averaging: dp-fedavg has none to choose"),
        ("noisy-mb-sgd", "momentum", 1.0, "algorithm: momentum must lie between 0 and 0.99"),
        ("noisy-mb-sgd", "momentum", -0.1, "algorithm: momentum must lie between 0 and 0.99"),
        ("noisy-mb-sgd", "averaging", "best", "'best' is not one of tail, weighted, weighted-tail"),
    ],
)
def test_a_descent_that_there_is_not_is_refused(
    name: str, key: str, value: object, says: str
) -> None:
    with pytest.raises(InvalidStudy, match=re.escape(says)):
        described(name, **{key: value})
