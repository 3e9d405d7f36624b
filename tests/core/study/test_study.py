"""A study means what its file says, and one that cannot be run is refused with the reason."""

import re
from hashlib import sha256
from math import inf

import pytest
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Minibatch, Phase
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from silomix_core.task.losses import LossName
from silomix_core.task.task import Scaling
from support.studies import Tree, parse, study_bytes, study_tree


def test_a_valid_study_means_what_it_says() -> None:
    study = parse(study_tree())
    assert study.name == "small"
    assert study.task.loss is LossName.LOGISTIC
    assert study.task.scaling is Scaling.UNIT_BALL
    assert (study.task.label, study.task.bias) == ("outcome", 0.3)
    assert study.task.columns == ("age", "lab_1", "lab_2")
    assert [feature.missing for feature in study.task.features] == [40, 0]
    assert (study.algorithm, study.rounds, study.radius) == ("noisy-mb-sgd", 5, 50.0)
    assert (study.clip, study.target) == (0.25, PrivacyTarget(2.0, 1e-5))
    assert (study.batching.minimum, study.batching.deadline_s) == (2, 5.0)
    assert (study.batching.gate, study.batching.tokens) == (True, True)
    assert [(silo.name, silo.records) for silo in study.silos] == [
        ("silo-0", 40),
        ("silo-1", 50),
        ("silo-2", 60),
    ]
    assert study.silos[1].sign_key == b"\x01" * 32
    assert (study.mixes[0].address, study.server.channel_address) == (
        "127.0.0.1:7001",
        "127.0.0.1:9093",
    )


def test_a_silo_is_found_by_name() -> None:
    study = parse(study_tree())
    assert study.silo("silo-1") is study.silos[1]
    assert study.silo("silo-9") is None


def test_the_identity_is_the_hash_of_the_file() -> None:
    content = study_bytes(study_tree())
    study = parse_study(content)
    assert study.identity == sha256(content).digest()
    assert study.short_id == sha256(content).hexdigest()[:12]


def test_one_changed_byte_is_another_study() -> None:
    content = study_bytes(study_tree())
    renamed = parse_study(content.replace(b"small", b"smalL"))
    spaced = parse_study(content + b"\n")
    assert len({parse_study(content).identity, renamed.identity, spaced.identity}) == 3


def test_the_noise_is_what_the_smallest_silo_needs() -> None:
    study = parse(study_tree())
    mechanism = study.mechanism()
    smallest, middle, largest = (study.participant(silo) for silo in study.silos)
    assert [each.records for each in (smallest, middle, largest)] == [40, 50, 60]
    assert 2 - 1e-6 < mechanism.epsilon(smallest, 1e-5) <= 2
    assert mechanism.epsilon(largest, 1e-5) < mechanism.epsilon(middle, 1e-5) < 2
    assert (mechanism.clip, mechanism.rounds, mechanism.dimension) == (0.25, 5, 4)
    plan = study.algorithm_plan(mechanism)
    known = plan.setting
    assert (plan.rounds, known.rounds, known.dimension, known.silos) == (5, 5, 4, 3)
    assert (known.records, known.radius, known.lipschitz) == (40, 50.0, 0.25)
    assert known.smoothness == pytest.approx((1 + study.task.bias**2) / 4)
    assert known.target == PrivacyTarget(2.0, 1e-5)
    assert plan.noises == (mechanism.sigma(),)
    assert plan.noise() == pytest.approx(mechanism.sigma() / 3**0.5)


def test_without_a_word_on_it_silos_are_alike_and_batches_full() -> None:
    study = parse(study_tree())
    assert study.minibatch == Minibatch(Scheme.FULL, 1.0)
    assert [(silo.weight, silo.target) for silo in study.silos] == [(1.0, None)] * 3
    for silo in study.silos:
        participant = study.participant(silo)
        assert (participant.records, participant.weight) == (silo.records, 1.0)
        assert participant.target == PrivacyTarget(2.0, 1e-5)


@pytest.mark.parametrize(
    ("named", "batch"),
    [
        ({"sampling": "full"}, Minibatch()),
        ({"sampling": "poisson", "ratio": 0.5}, Minibatch(Scheme.POISSON, 0.5)),
        ({"sampling": "poisson", "ratio": 1}, Minibatch(Scheme.POISSON, 1.0)),
        (
            {"sampling": "without-replacement", "ratio": 0.25},
            Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.25),
        ),
    ],
)
def test_a_study_names_its_batches(named: Tree, batch: Minibatch) -> None:
    tree = study_tree()
    tree["privacy"] |= named
    assert parse(tree).minibatch == batch


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"sampling": "bernoulli", "ratio": 0.5}, "privacy.sampling: 'bernoulli' is not one of"),
        ({"sampling": 1}, "privacy.sampling: expected a string"),
        ({"sampling": "poisson"}, "missing key: privacy.ratio"),
        ({"sampling": "without-replacement"}, "missing key: privacy.ratio"),
        ({"sampling": "poisson", "ratio": "0.5"}, "privacy.ratio: expected a number"),
        ({"sampling": "poisson", "ratio": True}, "privacy.ratio: expected a number"),
        ({"sampling": "poisson", "ratio": float("nan")}, "privacy.ratio: expected a finite"),
        ({"sampling": "poisson", "ratio": float("inf")}, "privacy.ratio: expected a finite"),
        ({"sampling": "poisson", "ratio": 0}, "privacy: the batch ratio"),
        ({"sampling": "poisson", "ratio": -0.5}, "privacy: the batch ratio"),
        ({"sampling": "poisson", "ratio": 1.001}, "privacy: the batch ratio"),
        ({"sampling": "poisson", "ratio": 1e-310}, "privacy.ratio must be at least 1e-9"),
        ({"sampling": "without-replacement", "ratio": 9e-10}, "privacy.ratio must be at least"),
        ({"sampling": "without-replacement", "ratio": 2}, "privacy: the batch ratio"),
        ({"sampling": "full", "ratio": 1}, "unknown key: privacy.ratio"),
        ({"ratio": 0.5}, "unknown key: privacy.ratio"),
    ],
)
def test_batches_that_make_no_sense_are_refused_and_named(named: Tree, reason: str) -> None:
    tree = study_tree()
    tree["privacy"] |= named
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(tree)


def test_a_silo_may_have_its_own_weight_and_promise() -> None:
    tree = study_tree()
    tree["silos"][0] |= {"weight": 3}
    tree["silos"][2] |= {"epsilon": 0.5, "delta": 1e-7}
    study = parse(tree)
    assert [silo.weight for silo in study.silos] == [3.0, 1.0, 1.0]
    assert [silo.target for silo in study.silos] == [None, None, PrivacyTarget(0.5, 1e-7)]
    participants = [study.participant(silo) for silo in study.silos]
    assert [each.target.epsilon for each in participants] == [2.0, 2.0, 0.5]
    # weights average to 1, so that the mean of the reports is the weighted mean
    assert [each.weight for each in participants] == pytest.approx([1.8, 0.6, 0.6])
    mechanism = study.mechanism()
    assert all(mechanism.epsilon(each) <= each.target.epsilon for each in participants)
    assert mechanism.epsilon(participants[2]) == pytest.approx(0.5, rel=1e-6)


def test_only_the_proportions_of_weights_matter() -> None:
    noises = []
    for unit in (0.01, 1.0, 100.0):
        tree = study_tree()
        for silo, weight in zip(tree["silos"], (1, 2, 3), strict=True):
            silo["weight"] = unit * weight
        noises.append(parse(tree).mechanism().sigma())
    assert noises == pytest.approx([noises[1]] * 3)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"weight": 0}, "silo 'silo-1': weight"),
        ({"weight": -1}, "silo 'silo-1': weight"),
        ({"weight": 1001}, "silo 'silo-1': weight"),
        ({"weight": 1e-4}, "silo 'silo-1': weight"),
        ({"weight": "1"}, "silos[1].weight: expected a number"),
        ({"weight": False}, "silos[1].weight: expected a number"),
        ({"weight": float("nan")}, "silos[1].weight: expected a finite number"),
        ({"epsilon": 1.0}, "missing key: silos[1].delta"),
        ({"delta": 1e-6}, "missing key: silos[1].epsilon"),
        ({"epsilon": 0, "delta": 1e-6}, "silos[1]: epsilon"),
        ({"epsilon": 101, "delta": 1e-6}, "silos[1]: epsilon"),
        ({"epsilon": 1, "delta": 0.1}, "silos[1]: delta"),
        ({"epsilon": 1, "delta": 0}, "silos[1]: delta"),
        ({"epsilon": "1", "delta": 1e-6}, "silos[1].epsilon: expected a number"),
        ({"epsilon": 1, "delta": float("inf")}, "silos[1].delta: expected a finite number"),
    ],
)
def test_a_weight_or_promise_that_makes_no_sense_is_refused_and_named(
    own: Tree, reason: str
) -> None:
    tree = study_tree()
    tree["silos"][1] |= own
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(tree)


def test_a_one_pass_study_gives_every_round_its_own_records() -> None:
    tree = study_tree()
    tree["algorithm"]["name"] = "one-pass-mb-sgd"
    study = parse(tree)
    mechanism = study.mechanism()
    assert mechanism.phases == (Phase(1, 0.2),) * 5
    assert [mechanism.phase_of(number) for number in range(1, 6)] == [0, 1, 2, 3, 4]
    smallest = study.participant(study.silos[0])
    assert [phase.records(40) for phase in mechanism.phases] == [8] * 5
    assert 2 - 1e-6 < mechanism.epsilon(smallest) <= 2
    # one round of a fifth of the records: √5 less than five rounds of all, times 5 for the mean
    full = parse(study_tree()).mechanism().sigma()
    noises = study.algorithm_plan(mechanism).noises
    assert noises == pytest.approx([full * 5 / 5**0.5] * 5, rel=1e-4)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_for_smooth_losses_refuses_one_with_a_kink(name: str) -> None:
    tree = study_tree()
    tree["algorithm"]["name"] = name
    tree["task"]["loss"] = "hinge"
    if ALGORITHMS[name].needs_smooth:
        with pytest.raises(InvalidStudy, match=f"{name} needs a loss without kinks, hinge has one"):
            parse(tree)
    else:
        study = parse(tree)
        assert study.setting.smoothness == inf
        assert study.rounds <= 5


def test_rounds_are_those_of_the_algorithm_and_at_most_those_of_the_file() -> None:
    tree = study_tree()
    tree["algorithm"] |= {"name": "localized-accelerated", "rounds": 50}
    study = parse(tree)
    assert study.most_rounds == 50
    assert 5 <= study.rounds == study.mechanism().rounds <= 50
    smallest = study.participant(study.silos[0])
    assert study.mechanism().epsilon(smallest) <= 2  # each phase has records of its own


@pytest.mark.parametrize("participants", [0, 1, 4])
def test_a_round_cannot_ask_more_silos_than_there_are_nor_fewer_than_a_batch(
    participants: int,
) -> None:
    tree = study_tree()
    assert parse(tree).setting.participants == 3
    tree["batch"]["minimum"] = 2
    tree["algorithm"]["participants"] = 2
    assert parse(tree).setting.participants == 2
    tree["algorithm"]["participants"] = participants
    with pytest.raises(InvalidStudy, match=r"algorithm\.participants"):
        parse(tree)


@pytest.mark.parametrize("ridge", [-1.0, 1e-12, 1e12])
def test_a_ridge_out_of_range_is_refused(ridge: float) -> None:
    tree = study_tree()
    tree["algorithm"]["ridge"] = ridge
    with pytest.raises(InvalidStudy, match=r"algorithm\.ridge"):
        parse(tree)


def test_a_study_of_drawn_batches_keeps_every_silo_s_promise() -> None:
    tree = study_tree()
    tree["privacy"] |= {"sampling": "poisson", "ratio": 0.5}
    study = parse(tree)
    mechanism = study.mechanism()
    smallest, middle, largest = (study.participant(silo) for silo in study.silos)
    assert mechanism.minibatch == study.minibatch
    assert 1.99 < mechanism.epsilon(smallest) <= 2
    assert mechanism.epsilon(largest) < mechanism.epsilon(middle) < 2


def test_more_phases_than_records_are_refused_with_the_reason() -> None:
    tree = study_tree()
    tree["algorithm"] |= {"name": "one-pass-mb-sgd", "rounds": 41}
    with pytest.raises(CalibrationImpossible, match="a silo of 40 records has none left"):
        parse(tree).mechanism()


def test_a_promise_that_no_noise_can_keep_is_refused_with_the_silo_that_has_it() -> None:
    tree = study_tree()
    tree["silos"][1] |= {"epsilon": 90.0, "delta": 1e-6}
    name = tree["silos"][1]["name"]
    with pytest.raises(CalibrationImpossible, match=rf"^silo '{name}' .*: epsilon=90 .* at most"):
        parse(tree).mechanism()
    tree = study_tree()
    tree["privacy"] |= {"epsilon": 90.0}
    with pytest.raises(
        CalibrationImpossible, match=r"^\[privacy\] with \[algorithm\]: epsilon=90 "
    ):
        parse(tree).mechanism()


def test_a_batch_that_would_be_empty_is_refused_with_the_reason() -> None:
    tree = study_tree()
    tree["privacy"] |= {"sampling": "without-replacement", "ratio": 0.02}
    with pytest.raises(CalibrationImpossible, match="a silo of 40 records has none left"):
        parse(tree).mechanism()


REGRESSION: Tree = {"loss": "squared", "label_low": 0, "label_high": 5e4}


@pytest.mark.parametrize(
    ("keys", "bounds", "level", "threshold"),
    [
        ({}, (0.0, 5e4), None, None),
        ({"loss": "absolute", "label_low": -3}, (-3.0, 5e4), None, None),
        ({"loss": "quantile", "level": 0.9}, (0.0, 5e4), 0.9, None),
        ({"loss": "huber", "threshold": 1000}, (0.0, 5e4), None, 1000.0),
    ],
)
def test_a_study_may_predict_a_number(
    keys: Tree, bounds: tuple[float, float], level: float | None, threshold: float | None
) -> None:
    tree = study_tree()
    tree["task"] |= REGRESSION | keys
    task = parse(tree).task
    assert task.loss.value == tree["task"]["loss"]
    assert (task.label_bounds, task.level, task.threshold) == (bounds, level, threshold)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"label_high": 0}, "task: label 'outcome': low must be below high"),
        ({"label_high": "5e4"}, "task.label_high: expected a number"),
        ({"label_low": float("-inf")}, "task.label_low: expected a finite number"),
        ({"level": 0.9}, "unknown key: task.level"),
        ({"threshold": 0.9}, "unknown key: task.threshold"),
        ({"loss": "quantile"}, "missing key: task.level"),
        ({"loss": "quantile", "level": 0}, "task: level must be above 0 and below 1"),
        ({"loss": "huber"}, "missing key: task.threshold"),
        ({"loss": "huber", "threshold": 5e5}, "task: threshold must lie between 0.05 and 50000"),
        ({"loss": "hinge"}, "unknown key: task.label_high, task.label_low"),
    ],
)
def test_a_number_to_predict_that_makes_no_sense_is_refused(keys: Tree, reason: str) -> None:
    tree = study_tree()
    tree["task"] |= REGRESSION | keys
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(tree)


@pytest.mark.parametrize(
    ("keys", "dimension"),
    [
        ({"loss": "multinomial", "classes": 5}, 5 * 4),
        ({"hidden": 8}, 8 * 4 + 9),
        ({"loss": "multinomial", "classes": 5, "hidden": 8}, 8 * 4 + 5 * 9),
    ],
)
def test_a_study_may_have_several_classes_and_a_hidden_layer(keys: Tree, dimension: int) -> None:
    tree = study_tree()
    tree["task"] |= keys
    study = parse(tree)
    assert (study.task.classes, study.task.hidden) == (keys.get("classes"), keys.get("hidden"))
    assert study.mechanism().dimension == study.setting.dimension == dimension


@pytest.mark.parametrize(
    ("keys", "algorithm", "reason"),
    [
        ({"loss": "multinomial"}, "noisy-mb-sgd", "missing key: task.classes"),
        ({"loss": "multinomial", "classes": 1}, "noisy-mb-sgd", "task: classes must lie between"),
        ({"classes": 3}, "noisy-mb-sgd", "unknown key: task.classes"),
        ({"hidden": 2.5}, "noisy-mb-sgd", "task.hidden: expected a whole number"),
        ({"loss": "hinge", "hidden": 5}, "noisy-mb-sgd", "task: hidden units need the logistic"),
        ({"hidden": 5}, "multi-stage", "algorithm.name: multi-stage needs a convex loss"),
        ({"hidden": 5}, "moreau-smoothing", "algorithm.name: moreau-smoothing needs a convex loss"),
    ],
)
def test_a_model_that_cannot_be_learned_is_refused(keys: Tree, algorithm: str, reason: str) -> None:
    tree = study_tree()
    tree["task"] |= keys
    tree["algorithm"]["name"] = algorithm
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(tree)
