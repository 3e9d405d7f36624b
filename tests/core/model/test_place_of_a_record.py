"""One record changes nothing but its own contribution, wherever it and the others stand.

The tests do not trust the luck of a matrix library: `by_place` adds up every entry of a product in
an order that depends on where it is, as libraries may.  Scores of floats do not survive that (the
last tests), exact ones do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import LocalSteps
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.evaluation import private
from silomix_core.evaluation.private import HeldOutSum, measure_of
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.minibatches import draw
from silomix_core.model import clipped_sum, models, multiclass, neural_net, rounding
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.model.models import model_of
from silomix_core.model.multiclass import class_residuals
from silomix_core.model.rounding import Weights, exact_product
from silomix_core.model.smoothing import Convolution, Moreau, Smoothing
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.task.feature import category
from silomix_core.task.interaction import Interaction
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from support.privacy_checks import Floats, hostile_task
from threadpoolctl import threadpool_limits

Integers = NDArray[np.int64]
Product = Callable[[Floats, Floats], Floats]
CLIP, COUNT = 0.2, 37
PLAIN = hostile_task()
NUMBERS = {"label_bounds": (0.0, 50.0)}
TASKS: dict[str, Task] = {
    "logistic": PLAIN,
    "hinge": replace(PLAIN, loss=LossName.HINGE),
    "squared": replace(PLAIN, loss=LossName.SQUARED, **NUMBERS),
    "huber": replace(PLAIN, loss=LossName.HUBER, threshold=5.0, **NUMBERS),
    "absolute": replace(PLAIN, loss=LossName.ABSOLUTE, **NUMBERS),
    "quantile": replace(PLAIN, loss=LossName.QUANTILE, level=0.1, **NUMBERS),
    "multinomial": replace(PLAIN, loss=LossName.MULTINOMIAL, classes=11),
    "network": replace(PLAIN, hidden=6),
    "network of classes": replace(PLAIN, loss=LossName.MULTINOMIAL, classes=3, hidden=9),
}
SMOOTHED: dict[str, Smoothing] = {
    "Moreau": Moreau(3.0),
    "convolution": Convolution(0.5, PLAIN.dimension),
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a silo: a sum over its records, smoothed or of a hold-out."""

    task: Task
    smoothing: Smoothing | None = None
    held_out: bool = False

    def at(self, records: Records, point: Floats, drawn: NDArray[np.uint64]) -> Integers:
        """`drawn` has a random number for each record."""
        model, octets = model_of(self.task, self.smoothing), drawn.astype("<u8").tobytes()
        if self.held_out:
            return HeldOutSum(records, model, measure_of(self.task)).at(point)
        source: RandomBytes = lambda count: octets[:count]  # noqa: E731
        return model.gradients(records, CLIP).at(point, None, source)


QUESTIONS: dict[str, Question] = {
    **{name: Question(task) for name, task in TASKS.items()},
    **{
        f"{name}, {how}": Question(TASKS[name], smoothing)
        for name in ("hinge", "absolute", "quantile")
        for how, smoothing in SMOOTHED.items()
    },
    **{
        f"{name}, held out": Question(TASKS[name], held_out=True)
        for name in ("logistic", "squared", "network")
    },
    "multinomial, held out": Question(
        replace(TASKS["multinomial"], classes=2), held_out=True
    ),  # 4 cells fit 8 coordinates
}
EVERY = pytest.mark.parametrize("name", list(QUESTIONS))


@dataclass(frozen=True, slots=True)
class Case:
    """Records, many of them alike but for their labels; a point that aims at what they share."""

    records: Records
    point: Floats
    drawn: NDArray[np.uint64]

    def part(self, rows: NDArray[np.int64]) -> "Case":
        chosen = Records(self.records.features[rows], self.records.labels[rows])
        return Case(chosen, self.point, self.drawn[rows])


def case_of(task: Task, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    values = rng.uniform([0, -1, -1], [100, 1, 1], size=(COUNT, 3))
    values[: COUNT // 2] = values[0]
    order = rng.permutation(COUNT)
    raw = rng.integers(0, task.classes or 2, COUNT).astype(np.float64)
    if task.loss.is_regression:
        raw = rng.choice([0.0, 25.0, 50.0, rng.uniform(0, 50)], COUNT)
    features = task.encode(values)
    records = Records(features[order], task.encode_labels(raw))
    drawn = rng.integers(0, 2**64, COUNT, dtype=np.uint64)
    return Case(records, aimed(task, features[0], rng), drawn)


def aimed(task: Task, record: Floats, rng: np.random.Generator) -> Floats:
    """Weights whose product with the record is within an ulp of a kink, or the small difference of
    large numbers; some coordinates may be tiny."""
    point = rng.normal(0, 10.0 ** rng.integers(-1, 2), task.dimension)
    rows = (task.hidden or task.classes or 1) * task.width
    for row in point[:rows].reshape(-1, task.width):
        kind = rng.integers(3)
        free = rng.permutation(task.width)
        if kind == 1:  # products of two coordinates cancel; the others get lost on the way, or not
            one, other, *free = free
            large = 2.0 ** rng.integers(30, 42)
            row[one], row[other] = large * record[other], -large * record[one]
        if kind == 2:
            row[free[0]] = rng.choice([0.0, 1e-12, 5e-324])
        target = rng.choice([0.0, 1.0, -1.0, 0.5, rng.integers(-(2**20), 2**20) / 2**19])
        part = record[free]
        row[free] += (target * UNIT - part @ row[free]) / (part @ part) * part
        row[free] *= 1 + rng.integers(-3, 4) * 2.0**-53
    return point


def by_place(first: Floats, second: Floats) -> Floats:
    """A product whose entries are added up forwards or backwards, depending on where they are."""
    terms = np.atleast_2d(first)[:, :, None] * second.reshape(len(second), -1)[None]
    forwards, backwards = terms.cumsum(axis=1)[:, -1], terms[:, ::-1].cumsum(axis=1)[:, -1]
    places = np.add.outer(np.arange(terms.shape[0]), np.arange(terms.shape[2]))
    found: Floats = np.where(places % 2, forwards, backwards)
    return found.reshape(first.shape[:-1] + second.shape[1:])


def use_product(patch: pytest.MonkeyPatch, product: Product) -> None:
    for module in (rounding, clipped_sum, multiclass, neural_net, private):
        patch.setattr(module, "exact_product", product)


def use_blocks(patch: pytest.MonkeyPatch, rows: int) -> None:
    for module in (clipped_sum, private):
        patch.setattr(module, "_BLOCK_VALUES", 1)
        patch.setattr(module, "_FEWEST_ROWS", rows)


def answer(question: Question, case: Case) -> list[int]:
    return question.at(case.records, case.point, case.drawn).tolist()


def check_order_is_nothing(question: Question, case: Case) -> None:
    rolled = np.roll(np.arange(COUNT), 1)
    shuffled = np.random.default_rng(1).permutation(COUNT)
    for order in (rolled, shuffled):
        assert answer(question, case.part(order)) == answer(question, case), "a place matters"


def check_place_is_nothing(question: Question, case: Case, rows: int) -> None:
    """All records in any order, in blocks of so many rows, are the sum of each alone."""
    alone = [answer(question, case.part(np.array([row]))) for row in range(COUNT)]
    with pytest.MonkeyPatch.context() as patch:
        use_blocks(patch, rows)
        assert answer(question, case) == [sum(column) for column in zip(*alone, strict=True)]
        check_order_is_nothing(question, case)


@EVERY
@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, COUNT + 1))
def test_any_order_and_any_blocks_give_the_same_integers(name: str, seed: int, rows: int) -> None:
    question = QUESTIONS[name]
    check_place_is_nothing(question, case_of(question.task, seed), rows)


@EVERY
@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, COUNT + 1))
def test_the_same_integers_even_if_products_are_added_up_by_place(
    name: str, seed: int, rows: int
) -> None:
    question = QUESTIONS[name]
    with pytest.MonkeyPatch.context() as patch:
        use_product(patch, by_place)
        check_place_is_nothing(question, case_of(question.task, seed), rows)


def fitting(first: Floats, second: Floats) -> Floats:
    """The product, if it is one of integers in one unit whose absolute values fit 53 bits."""
    whole, unit = [], Fraction(1)
    for factor in (first, second):
        finest = 1 if np.array_equal(factor, np.rint(factor)) else 2**28
        unit /= finest
        assert np.array_equal(factor * finest, np.rint(factor * finest)), "not of integers"
        whole.append(np.abs(factor * finest).astype(object))
    assert np.max(whole[0] @ whole[1], initial=0) <= 2**53, "more than 53 bits"
    found: Floats = first @ second
    return found


@EVERY
@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1e-300, 1.0, 1e9, 1e290]))
def test_every_product_is_one_of_integers_within_53_bits(
    name: str, seed: int, scale: float
) -> None:
    question = QUESTIONS[name]
    case = case_of(question.task, seed)
    with pytest.MonkeyPatch.context() as patch:
        use_product(patch, fitting)
        answer(question, replace(case, point=case.point * scale))


def test_records_as_long_and_networks_as_wide_as_can_be_stay_within_53_bits() -> None:
    rng = np.random.default_rng(1)
    task = Task(
        LossName.MULTINOMIAL,
        "y",
        (Feature("x", -1.0, 1.0, 0.0),),
        Scaling.UNIT_SPHERE,
        bias=1.0,
        classes=100,
        hidden=1000,
    )
    records = Records(task.encode(np.array([[1.0], [-0.3]])), task.encode_labels(np.arange(2.0)))
    point = rng.normal(0, 1e4, task.dimension)
    with pytest.MonkeyPatch.context() as patch:
        use_product(patch, fitting)
        model_of(task).gradients(records, 1e9).at(point)


def test_more_rows_than_one_sum_holds_are_added_up_exactly_in_any_order() -> None:
    """Above 2¹⁶ rows, residuals and features as large as can be, against Python's whole numbers."""
    rng, count = np.random.default_rng(1), 3 * 2**16 + 5
    features = rng.choice([-float(UNIT), float(UNIT)], (count, 2))
    point = np.array([-1e-3, 1e-3])  # every score is below the kink: the residual is −1

    def at(rows: Integers) -> list[int]:
        records = Records(features[rows], np.ones(count))
        return ClippedSum(records, loss(LossName.HINGE), 10.0).at(point).tolist()

    exact = [-(2**20) * sum(int(value) for value in column) for column in features.T]
    assert at(np.arange(count)) == at(rng.permutation(count)) == exact


@pytest.mark.parametrize("name", ["hinge", "absolute", "multinomial", "network of classes"])
def test_as_many_threads_as_there_are_give_the_same_integers(name: str) -> None:
    """Wide enough for the library to divide a product among threads."""
    features = (Feature("x", -1.0, 1.0, 0.0, 600),)
    task = replace(TASKS[name], features=features)
    rng, count = np.random.default_rng(2), 900
    labels = rng.integers(0, task.classes or 2, count).astype(np.float64)
    records = Records(task.encode(rng.uniform(-1, 1, (count, 600))), task.encode_labels(labels))
    point = rng.normal(0, 10, task.dimension)
    found = []
    for threads, blocks in product((1, 2, 4), (64, count)):
        with pytest.MonkeyPatch.context() as patch, threadpool_limits(threads, user_api="blas"):
            use_blocks(patch, blocks)
            found.append(model_of(task).gradients(records, CLIP).at(point).tolist())
    assert all(each == found[0] for each in found)
    assert any(found[0])


# Batches -----------------------------------------------------------------------------------------

BATCHES = {
    "Poisson": Minibatch(Scheme.POISSON, 0.4),
    "fixed": Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.4),
}


def members_sum(
    task: Task, case: Case, members: NDArray[np.bool_] | None, *, is_open: bool = False
) -> list[int]:
    gradients = model_of(task).gradients(case.records, CLIP, open_batches=is_open)
    return gradients.at(case.point, members).tolist()


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("used", [exact_product, by_place])
def test_a_batch_is_the_sum_of_its_members_wherever_they_stand(
    name: str, batch: Minibatch, used: Product
) -> None:
    """Also of an open batch, which leaves the others' rows out."""
    task = TASKS[name]
    for seed in range(6):
        case, rng = case_of(task, seed), np.random.default_rng([seed, 5])
        mask, order = draw(batch, COUNT, rng.bytes), rng.permutation(COUNT)
        assert mask is not None
        with pytest.MonkeyPatch.context() as patch:
            use_product(patch, used)
            use_blocks(patch, int(rng.integers(1, COUNT)))
            alone = members_sum(task, case.part(np.flatnonzero(mask)), None)
            for is_open in (False, True):
                assert members_sum(task, case, mask, is_open=is_open) == alone
                moved = members_sum(task, case.part(order), mask[order], is_open=is_open)
                assert moved == alone


# Whole reports -----------------------------------------------------------------------------------

WALKS = {
    "one gradient": Phase(3),
    "local steps": Phase(3, steps=4),
    "control variates": Phase(3, steps=4, control=True),
}


def labelled(label: bytes) -> RandomBytes:
    """A stream of its own for each label, as a silo derives them: equal integers, equal noise."""
    return np.random.default_rng(int.from_bytes(sha256(label).digest()[:8], "big")).bytes


def reports_of(phase: Phase, task: Task, case: Case) -> list[list[int]]:
    """Of three rounds that follow one another; what is kept for control variates goes along."""
    silo = Participant(COUNT, PrivacyTarget(3.0, 1e-5))
    made = Mechanism.calibrate([silo], clip=CLIP, dimension=task.dimension, phases=[phase])
    walk = LocalSteps(0.5, ridge=0.01)
    reporter = Reporter(made, silo, case.records, model_of(task), labelled(b"phases"), walk)
    kept, reports = np.zeros(task.dimension, dtype=np.int64), []
    for number in (1, 2, 3):
        control = np.full(task.dimension, 0.01 * number) if phase.control else None
        report = reporter.values(RoundQuery(number, case.point, control), labelled, kept)
        kept = kept + report
        reports.append(report.tolist())
    return reports


@pytest.mark.parametrize("phase", WALKS.values(), ids=WALKS)
@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("used", [exact_product, by_place])
def test_the_order_of_records_changes_no_report(name: str, phase: Phase, used: Product) -> None:
    """Each step's point follows from the integers before: if one differs, so do all later ones."""
    for seed in range(3):
        case = case_of(TASKS[name], seed)
        order = np.random.default_rng(seed).permutation(COUNT)
        with pytest.MonkeyPatch.context() as patch:
            use_product(patch, used)
            reports = reports_of(phase, TASKS[name], case)
            assert reports_of(phase, TASKS[name], case.part(order)) == reports


# Encoding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", list(Scaling))
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_a_record_is_encoded_to_the_same_integers_among_any_others(
    scaling: Scaling, seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    features = (
        Feature("x", -1.0, 1.0, 0.0, 23),
        Feature("age", 0.0, 100.0, 50.0),
        category("ward", ("a", "b", "c")),
    )
    crossed = (Interaction("x", "age"), Interaction("age", "ward"), Interaction("x", "ward"))
    task = Task(LossName.LOGISTIC, "y", features, scaling, 0.3, interactions=crossed)
    values = np.column_stack(
        [
            rng.uniform(-1.1, 1.1, (count, 23)),
            rng.uniform(-10, 110, count),
            rng.choice([0.0, 1.0, 2.0, np.nan], count),
        ]
    )
    values[rng.random(values.shape) < 0.05] = np.nan
    whole = task.encode(values)
    for row in range(count):
        assert np.array_equal(whole[row], task.encode(values[row : row + 1])[0])
    assert np.array_equal(whole[::-1], task.encode(values[::-1]))


# Broken on purpose -------------------------------------------------------------------------------


def not_rounded(point: Floats, *_: int) -> Weights:
    return Weights(np.clip(point, -1e60, 1e60), 1.0)


def check_many(question: Question) -> None:
    for seed in range(400):
        check_order_is_nothing(question, case_of(question.task, seed))


@EVERY
def test_scores_of_floats_are_caught(name: str) -> None:
    """If products are added up by place; a given library on a given machine may not show it."""
    question = QUESTIONS[name]
    with pytest.MonkeyPatch.context() as patch:
        use_product(patch, by_place)
        for module in (clipped_sum, multiclass, neural_net, models):
            patch.setattr(module, "rounded", not_rounded)
        with pytest.raises(AssertionError, match="a place matters"):
            check_many(question)


def one_sum(chances: Floats) -> Floats:
    """As numpy adds up rows: one after the other, but eight at a time if there is one row only."""
    found: Floats = chances.sum(axis=-1)
    return found


def test_sums_over_classes_in_the_librarys_order_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = np.asfortranarray(np.random.default_rng(1).normal(size=(50, 21)))
    labels = np.zeros(50)

    def alone() -> Iterator[Floats]:
        for row in range(50):
            yield class_residuals(np.asfortranarray(scores[row : row + 1]), labels[:1])

    assert np.array_equal(class_residuals(scores, labels), np.vstack([*alone()]))
    monkeypatch.setattr(multiclass, "row_sums", one_sum)
    assert not np.array_equal(class_residuals(scores, labels), np.vstack([*alone()]))
