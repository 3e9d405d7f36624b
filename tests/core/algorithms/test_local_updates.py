"""Local updates: known minimizers with the noise off, events with it on, what control variates do.

The silos are real reporters on made-up records that differ between silos; with the noise off all
that is left of the mechanism is the grid, of some 10⁻⁹ here.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy.optimize import minimize
from silomix_core.accounting.composition import CalibrationImpossible, epsilon_of
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import Aggregate, AlgorithmPlan, LocalSteps, Query, Setting
from silomix_core.algorithms.catalogue import ALGORITHMS, algorithm
from silomix_core.algorithms.local_updates import warm_rounds
from silomix_core.claims.central import central_figures
from silomix_core.discrete_gaussian import LARGEST_NOISE, SIGMA_UNITS, one_stream
from silomix_core.mechanism import mechanism as mechanism_module
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.report_format import decode_report, encode_report
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import Linear
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.simulation.one_process import rehearsal, run_study
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from support.privacy_checks import Floats
from support.silos import no_noise
from support.specifications import specification
from support.studies import parse, study_tree

SILOS, RECORDS, DIMENSION = 5, 60, 4
LINEAR = Linear(loss(LossName.LOGISTIC))
TARGET = PrivacyTarget(2.0, 1e-6)
LOCAL = sorted(name for name, entry in ALGORITHMS.items() if entry.local is not None)
CONTROLLED = ["dp-scaffold", "dp-scaffold-warm"]


class Quiet(np.random.Generator):
    """Draws silos as any generator does; the noise that is made of its bytes is 0."""

    def bytes(self, length: int) -> bytes:
        return no_noise()(length)


def records_of(silo: int) -> Records:
    """Logistic labels whose model and features lean another way at every silo."""
    rng = np.random.default_rng([silo, 1])
    features = rng.uniform(-0.5, 0.5, (RECORDS, DIMENSION)) + 0.15 * rng.normal(size=DIMENSION)
    chances = 1 / (1 + np.exp(-features @ (4 * rng.normal(size=DIMENSION))))
    labels = np.where(rng.uniform(size=RECORDS) < chances, 1.0, -1.0)
    return Records(np.rint(np.clip(features, -1, 1) * UNIT), labels)


def setting(rounds: int, steps: int, *, ridge: float = 0.0, asked: int = SILOS) -> Setting:
    return Setting(
        rounds=rounds,
        dimension=DIMENSION,
        silos=SILOS,
        participants=asked,
        records=RECORDS,
        radius=50.0,
        lipschitz=5.0,
        smoothness=1.0,
        target=TARGET,
        ridge=ridge,
        local_steps=steps,
    )


def run(
    name: str, known: Setting, size: float, rng: np.random.Generator | None = None
) -> tuple[Floats, list[Floats]]:
    """The model after all rounds and those before, with local steps of this size."""
    entry, phases = algorithm(name), algorithm(name).phases(known)
    participants = [Participant(RECORDS, TARGET)] * SILOS
    mechanism = Mechanism.calibrate(participants, clip=5.0, dimension=DIMENSION, phases=phases)
    # σ for which the derived step has this size
    noise = known.diameter * sqrt(known.participants / phases[0].events / DIMENSION) / size
    plan = AlgorithmPlan(known, phases, (noise,), largest_gradient=mechanism.largest_gradient())
    assert entry.local is not None
    local = entry.local(plan)
    assert local.size == pytest.approx(size)
    reporters = [
        Reporter(mechanism, each, records_of(silo), LINEAR, no_noise(), local)
        for silo, each in enumerate(participants)
    ]
    models: list[Floats] = []
    rng = rng or Quiet(np.random.PCG64(1))
    return run_study(entry, plan, mechanism, reporters, rng, rng.bytes, models.append), models


def mean_gradient(point: Floats, silos: range = range(SILOS)) -> Floats:
    """Of the silos' mean logistic loss, in floats."""
    gradients = []
    for silo in silos:
        data = records_of(silo)
        features = data.features / UNIT
        residuals = -data.labels / (1 + np.exp(data.labels * (features @ point)))
        gradients.append(features.T @ residuals / RECORDS)
    found: Floats = np.mean(gradients, axis=0)
    return found


def minimizer(ridge: float = 0.0) -> Floats:
    """Of the mean over silos of their mean losses, and the ridge: by another method."""

    def value(point: Floats) -> float:
        losses = [
            np.logaddexp(0, -data.labels * (data.features @ point) / UNIT).mean()
            for data in map(records_of, range(SILOS))
        ]
        return float(np.mean(losses) + ridge / 2 * point @ point)

    found = minimize(
        value,
        np.zeros(DIMENSION),
        jac=lambda point: mean_gradient(point) + ridge * point,
        method="BFGS",
        options={"gtol": 1e-10},
    )
    return np.asarray(found.x)


# Where they end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_one_local_step_is_plain_gradient_descent(ridge: float) -> None:
    _, models = run("dp-fedavg", setting(12, 1, ridge=ridge), 3.0)
    point, expected = np.zeros(DIMENSION), []
    for _ in range(12):
        point = point - 3.0 * (mean_gradient(point) + ridge * point)
        expected.append(point)
    assert np.allclose(models[:6], expected[:6], atol=1e-6)  # afterwards they are averages
    assert np.allclose(models[-1], np.mean(expected[6:], axis=0), atol=1e-6)


def test_several_local_steps_go_where_each_silo_goes_on_its_own() -> None:
    _, models = run("dp-fedavg", setting(2, 4), 3.0)
    ends = []
    for silo in range(SILOS):
        point = np.zeros(DIMENSION)
        for _ in range(4):
            point = point - 3.0 * mean_gradient(point, range(silo, silo + 1))
        ends.append(point)
    assert np.allclose(models[0], np.mean(ends, axis=0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "ridge"), [(SILOS, 0.0), (SILOS, 0.05), (3, 0.05)])
@pytest.mark.parametrize("name", CONTROLLED)
def test_control_variates_find_the_minimizer_that_federated_averaging_misses(
    name: str, asked: int, ridge: float
) -> None:
    """Silos that differ, 10 local steps; in the end it makes no difference who is asked."""
    known = setting(80 if asked == SILOS else 200, 10, ridge=ridge, asked=asked)
    best = minimizer(ridge)
    assert np.linalg.norm(mean_gradient(best) + ridge * best) < 1e-8
    size = 2.0 if ridge else 4.0  # at most 1/(K·ridge)
    missed = np.linalg.norm(run("dp-fedavg", known, size)[0] - best)
    found = np.linalg.norm(run(name, known, size)[0] - best)
    assert missed > 0.05
    assert found < 1e-3


def test_the_warm_start_stays_and_learns_the_mean_gradient() -> None:
    known = setting(10, 5)
    assert warm_rounds(known) == 1
    assert warm_rounds(setting(40, 5, asked=2)) == 3
    entry = algorithm("dp-scaffold-warm")
    _, models = run("dp-scaffold-warm", known, 1.0)
    assert np.array_equal(models[0], np.zeros(DIMENSION))
    assert np.linalg.norm(models[1]) > 0.1
    plan = AlgorithmPlan(known, entry.phases(known), (0.1,))
    steps = entry.start(plan)
    next(steps)
    query = steps.send(Aggregate(5 * mean_gradient(np.zeros(DIMENSION)), SILOS))
    assert query.control is not None
    assert np.allclose(query.control, mean_gradient(np.zeros(DIMENSION)))
    assert np.array_equal(query.point, np.zeros(DIMENSION))


def test_no_report_can_move_the_mean_of_the_control_variates_beyond_what_silos_accept() -> None:
    known = setting(6, 5)
    entry = algorithm("dp-scaffold")
    plan = AlgorithmPlan(known, entry.phases(known), (0.1,), largest_gradient=2.0)
    steps: object = entry.start(plan)
    query: Query = next(steps)  # type: ignore[call-overload]
    for _ in range(5):
        query = steps.send(Aggregate(np.full(DIMENSION, 1e6), SILOS))  # type: ignore[attr-defined]
        assert query.control is not None
        assert np.abs(query.control).max() <= 2.0


@pytest.mark.parametrize("noise", [1e-9, 0.1, 10.0])
@pytest.mark.parametrize("name", LOCAL)
def test_noise_makes_the_mean_of_all_walks_wander_by_the_diameter_at_most(
    name: str, noise: float
) -> None:
    entry, known = algorithm(name), setting(20, 5)
    plan = AlgorithmPlan(known, entry.phases(known), (noise,))
    assert entry.local is not None
    size, (phase,) = entry.local(plan).size, plan.phases
    assert 0 < size * noise * sqrt(DIMENSION * phase.events / SILOS) <= known.diameter * 1.000001
    assert size <= 300 / phase.steps
    numbers = entry.local(replace(plan, setting=replace(known, numbers=True))).size
    if name != "local-sgd":
        assert numbers * noise * sqrt(DIMENSION * phase.events / SILOS) <= known.radius / 1.999
    steep = replace(plan, setting=setting(20, 5, ridge=10.0))
    assert entry.local(steep).size <= 0.1 / phase.steps


@pytest.mark.parametrize("name", LOCAL)
def test_numbers_are_approached_by_steps_that_no_curvature_makes_bounce(name: str) -> None:
    """A quadratic of curvature β, any β: K steps from anywhere come nearer; classes may step on."""
    entry, classes = algorithm(name), setting(20, 5)
    for smoothness in (0.1, 1.0, 50.0):
        known = replace(classes, smoothness=smoothness, numbers=True)
        plan = AlgorithmPlan(known, entry.phases(known), (1e-9,))
        assert entry.local is not None
        assert abs(1 - entry.local(plan).size * smoothness) <= 1
    if name != "local-sgd":
        assert entry.local(replace(plan, setting=classes)).size == 300 / plan.phases[0].steps


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-scaffold"])
def test_local_steps_learn_numbers(name: str) -> None:
    """All features above the middle of their bounds, so that one direction is steep."""
    task = Task(
        LossName.SQUARED,
        "y",
        (Feature("x", 0.0, 1.0, 0.5, count=6),),
        Scaling.UNIT_BALL,
        bias=0.3,
        label_bounds=(0.0, 6.0),
    )
    rng = np.random.default_rng(4)
    values = rng.uniform(0.5, 1.0, (1800, 6))
    labels = values @ np.array([2.0, 2.0, 2.0, 0.0, 0.0, 0.0]) + 0.1 * rng.normal(size=1800)
    encoded, targets = task.encode(values), task.encode_labels(labels)
    silos = [Records(encoded[rows], targets[rows]) for rows in np.split(np.arange(1500), 3)]
    made = rehearsal(
        task,
        specification(name, most_rounds=30, radius=4.0, clip=0.13),
        [Participant(500, PrivacyTarget(8.0, 1e-5))] * 3,
    )
    wrong = task.predict(encoded[1500:] @ made.run(silos, rng) / UNIT) - labels[1500:]
    assert np.mean(wrong**2) < 0.2 * labels.var()  # 1.4 with steps of 300/K


# What a report is --------------------------------------------------------------------------------


def reporter(
    steps: int,
    *,
    control: bool = False,
    size: float = 1.0,
    still: int = 0,
    batch: Minibatch | None = None,
) -> tuple[Reporter, Mechanism]:
    silo = Participant(RECORDS, TARGET)
    phases = [Phase(10, steps=steps, control=control)]
    mechanism = Mechanism.calibrate(
        [silo], clip=5.0, dimension=DIMENSION, phases=phases, minibatch=batch
    )
    local = LocalSteps(size, still)
    made = Reporter(mechanism, silo, records_of(0), LINEAR, no_noise(), local)
    return made, mechanism


def test_a_controlled_report_is_the_difference_from_the_last_used_sum_to_the_integer() -> None:
    """In the rounds in which silos stand still the sum does not depend on control variates."""
    made, _ = reporter(3, control=True, still=10)
    kept = np.array([7, -123_456_789, 0, 2**40])
    question = RoundQuery(1, np.full(DIMENSION, 0.5), np.ones(DIMENSION))
    rng = np.random.default_rng(1)
    seed = rng.bit_generator.state
    alone = made.values(question, one_stream(rng.bytes), np.zeros(DIMENSION, dtype=np.int64))
    rng.bit_generator.state = seed
    assert np.array_equal(made.values(question, one_stream(rng.bytes), kept), alone - kept)


def test_control_variates_correct_every_step() -> None:
    """y ← y − η(gradient − cᵢ + c), by hand."""
    made, mechanism = reporter(3, control=True, size=2.0)
    kept = np.array([3, -6, 9, 0]) * 10**6
    control, point = np.array([0.1, 0.2, -0.1, 0.0]), np.full(DIMENSION, 0.5)
    own = kept * mechanism.grids[0] / 3
    total, at = np.zeros(DIMENSION), point
    for _ in range(3):
        gradient = mean_gradient(at, range(1))
        total, at = total + gradient, at - 2.0 * (gradient - own + control)
    found = made.values(RoundQuery(1, point, control), one_stream(no_noise()), kept)
    assert np.allclose((found + kept) * mechanism.grids[0], total, atol=1e-6)


@pytest.mark.parametrize("batch", [None, Minibatch(Scheme.POISSON, 0.5)])
def test_every_local_step_has_noise_and_a_batch_of_its_own(batch: Minibatch | None) -> None:
    """400 reports of 4 coordinates, a fixed seed: 18 % are 5 standard errors of the variance."""
    steps = 9
    made, mechanism = reporter(steps, size=0.0, batch=batch)
    quiet, _ = reporter(steps, size=0.0)
    rng = np.random.default_rng(3)
    question = RoundQuery(1, np.zeros(DIMENSION))
    reports = np.array(
        [made.values(question, one_stream(rng.bytes)) for _ in range(400)], dtype=float
    )
    reports -= (
        quiet.values(question, one_stream(no_noise())) if batch is None else reports.mean(axis=0)
    )
    # what the batch adds: its share of the mean's variance, much below the noise here
    assert reports.var() == pytest.approx(steps * SIGMA_UNITS**2, rel=0.18)
    assert mechanism.sigma() == pytest.approx(SIGMA_UNITS * mechanism.grids[0])


def test_a_silo_that_walks_must_know_how_and_one_with_control_needs_both_of_them() -> None:
    made, mechanism = reporter(3, control=True)
    with pytest.raises(ValueError, match="must know how"):
        Reporter(mechanism, Participant(RECORDS, TARGET), records_of(0), LINEAR, no_noise())
    zero = np.zeros(DIMENSION)
    with pytest.raises(ValueError, match="mean of all silos"):
        made.values(RoundQuery(1, zero), one_stream(no_noise()), zero.astype(np.int64))
    with pytest.raises(ValueError, match="mean of all silos"):
        made.values(RoundQuery(1, zero, zero), one_stream(no_noise()))


@pytest.mark.parametrize("control", [False, True])
def test_the_largest_report_fits_and_one_more_does_not(control: bool) -> None:
    _, mechanism = reporter(7, control=control)
    bound = (14 if control else 7) * (mechanism.largest_signal + LARGEST_NOISE)
    values = np.array([bound, -bound, 0, 1])
    assert np.array_equal(decode_report(encode_report(values, mechanism), mechanism), values)
    assert mechanism.largest_value == bound


def test_values_beyond_48_bits_are_refused() -> None:
    silo = Participant(10**8, PrivacyTarget(10, 1e-3))
    phases = [Phase(1, steps=1000, control=True)]
    with pytest.raises(CalibrationImpossible, match="so many local steps"):
        Mechanism.calibrate([silo], clip=1.0, dimension=50, phases=phases)


# What it costs -----------------------------------------------------------------------------------


def check_every_step_counts() -> None:
    """R rounds of K steps cost what KR rounds cost, and all of the promise."""
    silo = Participant(1000, TARGET)
    for batch in (Minibatch(), Minibatch(Scheme.POISSON, 0.1)):

        def made(phase: Phase, batch: Minibatch = batch) -> Mechanism:
            return Mechanism.calibrate(
                [silo], clip=1.0, dimension=10, phases=[phase], minibatch=batch
            )

        walking, asked = made(Phase(6, steps=5)), made(Phase(30))
        assert walking.grids == asked.grids
        ((event, count),) = walking.transcripts(silo)[0]
        assert count == 30
        spent = epsilon_of([(event, 30)], TARGET.delta)
        assert spent == walking.epsilon(silo)
        assert 0.99 * TARGET.epsilon < spent <= TARGET.epsilon


def test_every_local_step_is_a_privacy_event() -> None:
    check_every_step_counts()


def test_rounds_counted_instead_of_steps_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism_module._calibrate.cache_clear()
    monkeypatch.setattr(Phase, "events", property(lambda phase: phase.rounds))
    with pytest.raises(AssertionError):
        check_every_step_counts()
    monkeypatch.undo()
    mechanism_module._calibrate.cache_clear()


@pytest.mark.parametrize("phase", [Phase(10, steps=2), Phase(20, control=True)])
@pytest.mark.parametrize("batch", [None, Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.01)])
def test_nothing_central_is_claimed_for_local_steps_or_control_variates(
    phase: Phase, batch: Minibatch | None
) -> None:
    silo = Participant(100, PrivacyTarget(0.2, 1e-6))
    for plain, claims in ((phase, False), (Phase(20), True)):
        mechanism = Mechanism.calibrate(
            [silo], clip=1.0, dimension=20, phases=[plain], minibatch=batch
        )
        local, shuffled, outsiders = central_figures(mechanism, [silo] * 1000, minimum_batch=1000)
        assert local.epsilon is not None
        claimed = (shuffled if batch else outsiders).epsilon is not None
        assert claimed == claims
        if not claims:
            assert (shuffled.epsilon, outsiders.epsilon) == (None, None)
            assert ("linked" in (shuffled.reason or "")) == phase.control


# Studies -----------------------------------------------------------------------------------------


def study_with(name: str, **changes: object) -> Setting:
    tree = study_tree()
    tree["algorithm"] |= {"name": name} | changes
    return parse(tree).setting


def test_a_study_says_how_many_local_steps_where_there_are_any() -> None:
    assert study_with("dp-fedavg").local_steps == 5
    assert study_with("dp-scaffold", local_steps=20).local_steps == 20
    assert [name for name in LOCAL if algorithm(name).takes_local_steps] == [
        name for name in LOCAL if name != "dp-fedsgd"
    ]


@pytest.mark.parametrize(
    ("name", "steps", "says"),
    [
        ("noisy-mb-sgd", 5, "local_steps"),
        ("dp-fedsgd", 5, "local_steps"),
        ("dp-fedavg", 0, "between 1 and 1000"),
        ("dp-fedavg", 1001, "between 1 and 1000"),
        ("dp-fedavg", "5", "whole number"),
    ],
)
def test_other_local_steps_are_refused(name: str, steps: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        study_with(name, local_steps=steps)


@pytest.mark.parametrize(("ratio", "steps"), [(1.0, 1), (0.5, 2), (0.1, 10), (0.3, 4)])
def test_federated_sgd_makes_one_pass_in_a_round(ratio: float, steps: int) -> None:
    (phase,) = algorithm("dp-fedsgd").phases(replace(setting(10, 5), ratio=ratio))
    assert (phase.steps, phase.events, phase.control) == (steps, 10 * steps, False)


def test_so_many_passes_that_nobody_could_calibrate_them_are_refused() -> None:
    tree = study_tree()
    tree["algorithm"] |= {"name": "dp-fedavg", "rounds": 1000, "local_steps": 11}
    tree["privacy"] |= {"sampling": "poisson", "ratio": 0.5}
    with pytest.raises(ValueError, match=r"algorithm\.rounds: at most 10000 with poisson"):
        parse(tree)
    tree["algorithm"] |= {"name": "dp-fedsgd", "rounds": 1}
    del tree["algorithm"]["local_steps"]
    tree["privacy"] |= {"ratio": 1e-4}
    with pytest.raises(ValueError, match="1 to 1000 local steps"):
        parse(tree)
