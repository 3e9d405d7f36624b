"""Private evaluation: what it measures, on which records, at what price, and how exactly."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import Aggregate, Query
from silomix_core.algorithms.catalogue import ALGORITHMS, algorithm
from silomix_core.discrete_gaussian import SIGMA_UNITS, RandomBytes, one_stream
from silomix_core.evaluation.private import (
    Classes,
    Confusion,
    Errors,
    HeldOutSum,
    Measure,
    Numbers,
    Result,
    measure_of,
    study_steps,
)
from silomix_core.evaluation.public import predict
from silomix_core.mechanism.attendance import attend
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind
from silomix_core.mechanism.minibatches import partition
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import model_of
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.simulation.one_process import evaluated_study
from silomix_core.study.derive import phases_of, plan_of, setting_of
from silomix_core.study.study import InvalidStudy
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from support.privacy_checks import seeded_bytes
from support.specifications import specification
from support.studies import parse, study_tree

TARGET = PrivacyTarget(2.0, 1e-5)
TASK = Task(
    LossName.LOGISTIC, "y", (Feature("x", -1.0, 1.0, 0.0, count=4),), Scaling.UNIT_BALL, 0.3
)


def no_noise(count: int) -> bytes:
    return (bytes(7) + b"\x80") * (count // 8)


QUIET = one_stream(no_noise)


def made_up(count: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (count, 4))
    labels = np.where(values @ [1.0, -1.0, 0.5, 0.0] + rng.normal(0, 0.5, count) > 0, 1.0, -1.0)
    return Records(TASK.encode(values), labels)


def mechanism(
    silos: list[Participant], held_out: float = 0.25, name: str = "noisy-mb-sgd", **changes: object
) -> Mechanism:
    named = specification(name, most_rounds=10, held_out=held_out)
    return Mechanism.calibrate(
        silos,
        clip=0.25,
        dimension=5,
        phases=phases_of(setting_of(TASK, named, silos), named),
        **changes,  # type: ignore[arg-type]
    )


def reporter(made: Mechanism, silo: Participant, records: Records, secret: int = 5) -> Reporter:
    bytes_of: RandomBytes = seeded_bytes(secret)
    return Reporter(
        made,
        silo,
        records,
        model_of(TASK),
        bytes_of,
        None,
        attend(made, 0, seeded_bytes(1)),
        measure_of(TASK),
    )


# What is measured --------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(0, 10**6))
def test_the_counts_are_those_of_the_confusion_matrix(count: int, seed: int) -> None:
    records, point = made_up(count, seed), np.random.default_rng(seed).normal(size=5)
    expected = [0, 0, 0, 0]
    for row, label in zip(records.features, records.labels, strict=True):
        score = sum(float(x) * float(w) for x, w in zip(row, point, strict=True))
        expected[2 * (label > 0) + (score > 0)] += 1
    total = HeldOutSum(records, model_of(TASK), measure_of(TASK)).at(point)
    assert [entry / 2**36 for entry in total.tolist()] == [*expected, 0]


def test_the_largest_hold_out_does_not_overflow() -> None:
    """2³⁶ for each of the 10⁸ records that a silo may have at most."""
    assert 10**8 * 2**36 < 2**63


def test_the_error_is_known_to_its_standard_error() -> None:
    """40 studies of four silos with real noise: all within 5 standard errors of the error on
    the held-out records, and their spread is that standard error (false alarm below 10⁻⁵)."""
    silo = Participant(400, TARGET)
    silos = [silo] * 4
    made = mechanism(silos)
    known = setting_of(TASK, specification(most_rounds=10, held_out=0.25), silos)
    found = []
    for trial in range(40):
        data = [made_up(400, 10 * trial + place) for place in range(4)]
        rng = np.random.default_rng(trial)
        reporters = [reporter(made, silo, each, secret=place) for place, each in enumerate(data)]
        entry = algorithm("noisy-mb-sgd")
        plan, measure = plan_of(known, made), measure_of(TASK)
        result = evaluated_study(
            entry, plan, made, reporters, rng, rng.bytes, lambda _: None, measure
        )
        truth = []
        for place, each in enumerate(data):
            held = partition(400, made.phases, seeded_bytes(place))[-1]
            wrong = (each.features[held] @ result.model > 0) != (each.labels[held] > 0)
            truth.append(wrong.mean())
        assert isinstance(result.evaluation, Confusion)
        assert result.evaluation.reports == 4
        assert result.evaluation.cells.sum() == pytest.approx(1)
        off = result.evaluation.error - np.mean(truth)
        found.append(off / result.evaluation.standard_error)
    assert np.abs(found).max() < 5
    assert 0.5 < np.std(found) < 1.6  # χ²₃₉: outside with probability below 10⁻⁶


def test_the_sum_of_the_cells_takes_noise_away() -> None:
    """1000 draws of noise alone: the deviations are those that are stated (±15 %, 6 σ)."""
    rng, truth = np.random.default_rng(1), np.array([0.5, 0.1, 0.05, 0.35, 0.0])
    found = [
        Classes(2).evaluation(Aggregate(truth + rng.normal(0, 0.1, 5), 4), 0.2) for _ in range(1000)
    ]
    assert found[0].standard_error == pytest.approx(0.1)
    assert np.std([each.error for each in found]) == pytest.approx(0.1, rel=0.15)
    assert np.mean([each.error for each in found]) == pytest.approx(0.15, abs=0.02)
    cells = np.array([each.cells.ravel() for each in found])
    assert cells.std(axis=0) == pytest.approx([found[0].cell_standard_error] * 4, rel=0.15)


# Of several classes, of a hidden layer, of numbers ------------------------------------------------

FEATURES = TASK.features
SEVERAL = Task(
    LossName.MULTINOMIAL, "y", FEATURES, Scaling.UNIT_BALL, 0.3, classes=3
)  # 15 weights, 9 cells
HIDDEN = Task(LossName.LOGISTIC, "y", FEATURES, Scaling.UNIT_BALL, 0.3, hidden=3)
BOTH = Task(LossName.MULTINOMIAL, "y", FEATURES, Scaling.UNIT_BALL, 0.3, classes=3, hidden=3)
NUMBER = Task(LossName.SQUARED, "y", FEATURES, Scaling.UNIT_BALL, 0.3, label_bounds=(-2.0, 6.0))


def labelled(task: Task, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, Records]:
    """Raw values, raw labels (numbers also beyond their bounds), and both encoded."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (count, 4))
    if task.loss.is_regression:
        labels = rng.uniform(-4, 8, count)
    else:
        labels = rng.integers(0, task.classes or 2, count).astype(np.float64)
    return values, labels, Records(task.encode(values), task.encode_labels(labels))


@pytest.mark.parametrize("task", [SEVERAL, HIDDEN, BOTH], ids=["several", "hidden", "both"])
@pytest.mark.parametrize("count", [1, 7, 30_000])
def test_the_matrix_counts_what_the_model_predicts(task: Task, count: int) -> None:
    """As the public prediction of the same model says; noise off."""
    values, labels, records = labelled(task, count, 5)
    point = np.random.default_rng(6).normal(0, 3, task.dimension)
    measure, classes = measure_of(task), task.classes or 2
    total = HeldOutSum(records, model_of(task), measure).at(point)
    predicted = predict(task, point, values)
    expected = [
        np.sum((labels == label) & (predicted == answer))
        for label in range(classes)
        for answer in range(classes)
    ]
    assert (total[: classes**2] / 2**36).tolist() == expected
    assert not total[classes**2 :].any()
    found = measure.evaluation(Aggregate(total / 2**36 / count, 1), 0.0)
    assert found.error == pytest.approx(np.mean(predicted != labels))


def test_errors_of_numbers_are_those_of_the_models_predictions() -> None:
    """Labels as clamped to their bounds; 2⁻¹³ of the bounds' width is the step of an error."""
    values, labels, records = labelled(NUMBER, 30_000, 7)
    point = np.random.default_rng(8).normal(0, 1, 5)
    total = HeldOutSum(records, model_of(NUMBER), measure_of(NUMBER)).at(point)
    found = measure_of(NUMBER).evaluation(Aggregate(total / 2**36 / 30_000, 1), 0.0)
    off = predict(NUMBER, point, values) - np.clip(labels, -2, 6)
    assert isinstance(found, Errors)
    assert found.mean_squared_error == pytest.approx(np.mean(off**2), rel=1e-4)
    assert found.mean_absolute_error == pytest.approx(np.mean(np.abs(off)), rel=1e-4)
    assert found.error == found.mean_squared_error


@pytest.mark.parametrize("task", [SEVERAL, BOTH, NUMBER], ids=["several", "both", "number"])
@pytest.mark.parametrize("weight", [0.3, 1.7])
def test_silos_whose_weights_are_not_known_still_tell_the_error(task: Task, weight: float) -> None:
    """One of unequal silos is away: without noise exactly, with it as is stated (±15 %, 6 σ)."""
    rng, measure = np.random.default_rng(9), measure_of(task)
    _, _, records = labelled(task, 500, 10)
    total = HeldOutSum(records, model_of(task), measure).at(np.ones(task.dimension)) / 2**36 / 500
    whole = measure.evaluation(Aggregate(total, 4), 0.0)
    truth = weight * total
    exact = measure.evaluation(Aggregate(truth, 4), 0.0, whole=False)
    assert exact.error == pytest.approx(whole.error)
    assert exact.standard_error == 0.0
    found = [
        measure.evaluation(
            Aggregate(truth + rng.normal(0, 0.003, task.dimension), 4), 0.006, whole=False
        )
        for _ in range(1000)
    ]
    spread = np.std([each.error for each in found])
    assert spread == pytest.approx(np.mean([each.standard_error for each in found]), rel=0.15)
    assert np.mean([each.error for each in found]) == pytest.approx(exact.error, abs=spread / 5)


@pytest.mark.parametrize("measure", [Classes(3), Numbers(-2.0, 6.0)], ids=["classes", "numbers"])
def test_no_record_says_more_than_the_mechanism_allows(measure: Measure) -> None:
    """Not negative, of norm 1 at most: of all labels and scores, far ones too."""
    if isinstance(measure, Numbers):
        scores, labels = np.array([-1e300, -1.0, -0.3, 0.0, 1.0, 1e300]), np.linspace(-1, 1, 9)
    else:
        scores, labels = np.array([[1.0, 1.0, 1.0], [-1e300, 0.0, 1e300]]), np.arange(3) / 2**16
    for score in scores:
        for label in labels:
            said = measure.said(np.array([score]), np.array([label]))
            assert said.dtype == np.int64
            assert said.min() >= 0
            assert sum(int(each) ** 2 for each in said) <= 2**72
            assert sum(int(each) ** 2 for each in said) > 0.49 * 2**72


@pytest.mark.parametrize("task", [SEVERAL, BOTH, NUMBER], ids=["several", "both", "number"])
def test_standard_errors_are_those_of_the_noise(task: Task) -> None:
    """1000 draws of noise alone (±15 %, 6 σ), fixed seed."""
    rng, measure = np.random.default_rng(9), measure_of(task)
    _, _, records = labelled(task, 500, 10)
    total = HeldOutSum(records, model_of(task), measure).at(np.ones(task.dimension))
    truth = total / 2**36 / 500
    exact = measure.evaluation(Aggregate(truth, 4), 0.0)
    found = [
        measure.evaluation(Aggregate(truth + rng.normal(0, 0.1, task.dimension), 4), 0.2)
        for _ in range(1000)
    ]
    spread = np.std([each.error for each in found])
    assert spread == pytest.approx(found[0].standard_error, rel=0.15)
    assert np.mean([each.error for each in found]) == pytest.approx(exact.error, abs=spread / 5)
    if absolute := [each for each in found if isinstance(each, Errors)]:
        spread = np.std([each.mean_absolute_error for each in absolute])
        assert spread == pytest.approx(absolute[0].absolute_standard_error, rel=0.15)


@pytest.mark.parametrize("task", [BOTH, NUMBER], ids=["both", "number"])
def test_a_held_out_record_moves_a_report_no_farther_than_is_charged(task: Task) -> None:
    """Noise off, every record replaced by one with another label: within the sensitivity."""
    silo, (_, _, records) = Participant(80, TARGET), labelled(task, 80, 11)
    named = specification(most_rounds=3, radius=5.0, held_out=0.25)
    known = setting_of(task, named, [silo])
    made = Mechanism.calibrate(
        [silo],
        clip=0.25,
        dimension=task.dimension,
        phases=phases_of(known, named),
    )
    asked = RoundQuery(4, np.random.default_rng(12).normal(0, 2, task.dimension))

    def report(labels: np.ndarray) -> np.ndarray:
        changed, secret = Records(records.features, labels), seeded_bytes(3)
        silos = Reporter(made, silo, changed, model_of(task), secret, measure=measure_of(task))
        return silos.values(asked, QUIET)

    before, moves = report(records.labels), list[float]()
    for row in range(80):
        labels = records.labels.copy()
        labels[row] = -labels[row] if task is NUMBER else (labels[row] * 2**16 + 1) % 3 / 2**16
        moves.append(float(np.linalg.norm(report(labels) - before)))
    assert sum(each > 0 for each in moves) <= 20
    assert 0.1 * made.sensitivity_units(silo, 1) < max(moves) <= made.sensitivity_units(silo, 1)


# On which records --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noisy-mb-sgd", "one-pass-mb-sgd", "check-ins-averaged"])
def test_an_evaluation_touches_no_record_of_training_and_training_none_of_it(name: str) -> None:
    silo, records = Participant(200, TARGET), made_up(200, 3)
    made = mechanism([silo], name=name)
    *training, last = range(len(made.phases))
    held = partition(200, made.phases, seeded_bytes(5))[-1]
    assert len(held) == 50
    assert made.phases[last].kind is PhaseKind.EVALUATION
    point = np.array([1.0, -1.0, 0.5, 0.2, 0.1])

    def asked(phase: int) -> RoundQuery:
        return RoundQuery(made.first_round(phase), point)

    before = [reporter(made, silo, records).values(asked(each), QUIET) for each in training]
    evaluated = reporter(made, silo, records).values(asked(last), QUIET)
    for row in range(200):
        labels = records.labels.copy()
        labels[row] *= -1
        changed = reporter(made, silo, Records(records.features, labels))
        moved = changed.values(asked(last), QUIET) - evaluated
        assert bool(np.any(moved)) == (row in held)
        assert np.linalg.norm(moved) <= made.sensitivity_units(silo, last)
        if row in held:
            after = [changed.values(asked(each), QUIET) for each in training]
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_evaluation_is_charged_as_its_own_phase_and_never_drawn_from() -> None:
    """√2/n apart, the whole (ε, δ): the records of training are others."""
    silo = Participant(400, TARGET)
    for batch in (Minibatch(), Minibatch(Scheme.POISSON, 0.5)):
        made = mechanism([silo], minibatch=batch)
        event = made.event(silo, 1)
        assert (event.scheme, event.ratio) == (Scheme.FULL, 1.0)
        moved = sqrt(2) / 100 / made.grids[1]
        assert moved <= event.sensitivity <= moved + 1.01 * sqrt(5)
        assert epsilon_of([(event, 1)], 1e-5) == pytest.approx(2.0, rel=1e-6)
        assert made.transcripts(silo)[1] == ((event, 1),)
        assert made.largest_signal * made.grids[1] >= 1
        assert made.sigma(1) == made.grids[1] * SIGMA_UNITS


def test_what_is_held_out_is_missing_from_what_the_algorithm_knows() -> None:
    silos = [Participant(400, TARGET)] * 3
    for name, entry in ALGORITHMS.items():
        named = specification(name, most_rounds=40, held_out=0.25)
        known = setting_of(TASK, named, silos)
        assert known.records == 300
        made = Mechanism.calibrate(silos, clip=0.25, dimension=5, phases=phases_of(known, named))
        plan = plan_of(known, made)
        shares = [phase.share for phase in entry.phases(known)]
        assert [phase.share for phase in plan.phases] == pytest.approx(shares), name
        assert [replace(phase, share=1) for phase in plan.phases] == [
            replace(phase, share=1) for phase in entry.phases(known)
        ]
        assert made.rounds == plan.rounds + 1
        assert sum(phase.records(400) for phase in made.phases) <= 400


def test_the_last_query_is_about_the_model_that_is_returned() -> None:
    silos = [Participant(400, TARGET)] * 3
    made = mechanism(silos)
    known = setting_of(TASK, specification(most_rounds=10, held_out=0.25), silos)
    steps = study_steps(algorithm("noisy-mb-sgd"), plan_of(known, made), made, measure_of(TASK))
    queries: list[Query] = [next(steps)]
    queries += [steps.send(Aggregate(np.ones(5), 3)) for _ in range(10)]
    with pytest.raises(StopIteration) as ended:
        steps.send(None)  # the round that evaluates was void
    result: Result = ended.value.value
    assert np.array_equal(queries[-1].point, result.model)
    assert result.evaluation is None


# In a study file ---------------------------------------------------------------------------------


def test_a_study_file_says_what_is_held_out() -> None:
    plain, held = parse(study_tree()), parse(study_tree() | {"evaluation": {"share": 0.2}})
    assert (plain.rounds, held.rounds) == (5, 6)
    assert held.phases == (
        replace(plain.phases[0], share=0.8),
        Phase(1, 0.2, kind=PhaseKind.EVALUATION),
    )
    assert plain.setting.records == 40
    assert held.setting.records == 32
    assert held.mechanism().sigma(0) > plain.mechanism().sigma(0)


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        ({"share": 0.0}, "leave"),
        ({"share": 1.0}, r"between 0\.01 and 0\.99"),
        ({"share": -0.1}, r"between 0\.01 and 0\.99"),
        ({"part": 0.1}, "share"),
        ({"share": 0.1, "also": 1}, "also"),
    ],
)
def test_a_bad_share_is_refused(evaluation: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidStudy, match=says):
        parse(study_tree() | {"evaluation": evaluation})


def test_networks_classes_and_numbers_can_be_evaluated() -> None:
    for changes in (
        {"hidden": 2},
        {"loss": "multinomial", "classes": 2},
        {"loss": "huber", "label_low": 0.0, "label_high": 9.0, "threshold": 1.0},
    ):
        tree = study_tree() | {"evaluation": {"share": 0.2}}
        tree["task"] |= changes
        assert parse(tree).phases[-1].kind is PhaseKind.EVALUATION


def test_a_model_smaller_than_the_matrix_is_refused() -> None:
    tree = study_tree() | {"evaluation": {"share": 0.2}}
    tree["task"]["features"] = tree["task"]["features"][:1]
    with pytest.raises(InvalidStudy, match="4 cells, and a report of this model only 2"):
        parse(tree)
    tree["task"] |= {"loss": "squared", "label_low": 0.0, "label_high": 1.0}
    with pytest.raises(InvalidStudy, match="errors take 4 cells, and a report of this model only"):
        parse(tree)
    tree = study_tree() | {"evaluation": {"share": 0.2}}
    tree["task"] |= {"loss": "multinomial", "classes": 40}
    with pytest.raises(InvalidStudy, match="a confusion matrix has 1600 cells"):
        parse(tree)
