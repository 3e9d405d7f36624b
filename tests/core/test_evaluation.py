"""Private evaluation: what it measures, on which records, at what price, and how exactly."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS, algorithm
from silomix_core.algorithms.seam import Aggregate, Query
from silomix_core.attendance import attend
from silomix_core.federation import evaluated_study
from silomix_core.losses import LossName
from silomix_core.mechanism import Kind, Mechanism, Minibatch, Participant, Phase
from silomix_core.minibatches import partition
from silomix_core.models import model_of
from silomix_core.noise import SIGMA_UNITS, RandomBytes
from silomix_core.private_evaluation import ConfusionSum, Evaluation, Result, study_steps
from silomix_core.reporting import Question, Reporter
from silomix_core.setting import phases_of, plan_of, setting_of
from silomix_core.study import InvalidStudy
from silomix_core.task import Feature, Scaling, Task
from silomix_core.update import Records
from support.privacy_checks import seeded_bytes
from support.studies import parse, study_tree

TARGET = PrivacyTarget(2.0, 1e-5)
TASK = Task(
    LossName.LOGISTIC, "y", (Feature("x", -1.0, 1.0, 0.0, count=4),), Scaling.UNIT_BALL, 0.3
)


def no_noise(count: int) -> bytes:
    return (bytes(7) + b"\x80") * (count // 8)


def made_up(count: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (count, 4))
    labels = np.where(values @ [1.0, -1.0, 0.5, 0.0] + rng.normal(0, 0.5, count) > 0, 1.0, -1.0)
    return Records(TASK.encode(values), labels)


def mechanism(
    silos: list[Participant], held_out: float = 0.25, name: str = "noisy-mb-sgd", **changes: object
) -> Mechanism:
    known = setting_of(TASK, silos, rounds=10, radius=50.0, clip=0.25, held_out=held_out)
    return Mechanism.calibrate(
        silos,
        clip=0.25,
        dimension=5,
        phases=phases_of(algorithm(name), known, held_out),
        **changes,  # type: ignore[arg-type]
    )


def reporter(made: Mechanism, silo: Participant, records: Records, secret: int = 5) -> Reporter:
    bytes_of: RandomBytes = seeded_bytes(secret)
    return Reporter(
        made, silo, records, model_of(TASK), bytes_of, None, attend(made, 0, seeded_bytes(1))
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
    total = ConfusionSum(records).at(point)
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
    known = setting_of(TASK, silos, rounds=10, radius=50.0, clip=0.25, held_out=0.25)
    found = []
    for trial in range(40):
        data = [made_up(400, 10 * trial + place) for place in range(4)]
        rng = np.random.default_rng(trial)
        reporters = [reporter(made, silo, each, secret=place) for place, each in enumerate(data)]
        entry = algorithm("noisy-mb-sgd")
        result = evaluated_study(entry, plan_of(known, made), made, reporters, rng, rng.bytes)
        truth = []
        for place, each in enumerate(data):
            held = partition(400, made.phases, seeded_bytes(place))[-1]
            wrong = (each.features[held] @ result.model > 0) != (each.labels[held] > 0)
            truth.append(wrong.mean())
        assert result.evaluation is not None
        assert result.evaluation.reports == 4
        assert sum(result.evaluation.confusion) == pytest.approx(1)
        off = result.evaluation.error - np.mean(truth)
        found.append(off / result.evaluation.standard_error)
    assert np.abs(found).max() < 5
    assert 0.5 < np.std(found) < 1.6  # χ²₃₉: outside with probability below 10⁻⁶


def test_the_sum_of_the_cells_takes_noise_away() -> None:
    """1000 draws of noise alone: the deviations are those that are stated (±15 %, 6 σ)."""
    rng, truth = np.random.default_rng(1), np.array([0.5, 0.1, 0.05, 0.35, 0.0])
    found = [Evaluation.of(Aggregate(truth + rng.normal(0, 0.1, 5), 4), 0.2) for _ in range(1000)]
    assert found[0].standard_error == pytest.approx(0.1)
    assert np.std([each.error for each in found]) == pytest.approx(0.1, rel=0.15)
    assert np.mean([each.error for each in found]) == pytest.approx(0.15, abs=0.02)
    cells = np.array([each.confusion for each in found])
    assert cells.std(axis=0) == pytest.approx([found[0].cell_standard_error] * 4, rel=0.15)


# On which records --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noisy-mb-sgd", "one-pass-mb-sgd", "check-ins-averaged"])
def test_an_evaluation_touches_no_record_of_training_and_training_none_of_it(name: str) -> None:
    silo, records = Participant(200, TARGET), made_up(200, 3)
    made = mechanism([silo], name=name)
    *training, last = range(len(made.phases))
    held = partition(200, made.phases, seeded_bytes(5))[-1]
    assert len(held) == 50
    assert made.phases[last].kind is Kind.EVALUATION
    point = np.array([1.0, -1.0, 0.5, 0.2, 0.1])

    def asked(phase: int) -> Question:
        return Question(made.first_round(phase), point)

    before = [reporter(made, silo, records).values(asked(each), no_noise) for each in training]
    evaluated = reporter(made, silo, records).values(asked(last), no_noise)
    for row in range(200):
        labels = records.labels.copy()
        labels[row] *= -1
        changed = reporter(made, silo, Records(records.features, labels))
        moved = changed.values(asked(last), no_noise) - evaluated
        assert bool(np.any(moved)) == (row in held)
        assert np.linalg.norm(moved) <= made.sensitivity_units(silo, last)
        if row in held:
            after = [changed.values(asked(each), no_noise) for each in training]
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
        known = setting_of(TASK, silos, rounds=40, radius=50.0, clip=0.25, held_out=0.25)
        assert known.records == 300
        made = Mechanism.calibrate(
            silos, clip=0.25, dimension=5, phases=phases_of(entry, known, 0.25)
        )
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
    known = setting_of(TASK, silos, rounds=10, radius=50.0, clip=0.25, held_out=0.25)
    steps = study_steps(algorithm("noisy-mb-sgd"), plan_of(known, made), made)
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
        Phase(1, 0.2, kind=Kind.EVALUATION),
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


def test_a_model_smaller_than_the_matrix_is_refused() -> None:
    tree = study_tree() | {"evaluation": {"share": 0.2}}
    tree["task"]["features"] = tree["task"]["features"][:1]
    with pytest.raises(InvalidStudy, match="4 cells, and a report of this model only 2"):
        parse(tree)
