"""A study file is read strictly: what it says is all there is, and every fault is named."""

import re
from base64 import b64encode
from hashlib import sha256
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from silomix_core.task.losses import LossName
from silomix_core.task.task import Scaling
from support.studies import Tree, at, parse, study_bytes, study_tree, with_value, written

Path = tuple[str | int, ...]

TABLES: list[Path] = [
    (),
    ("task",),
    ("task", "features", 0),
    ("task", "features", 1),
    ("algorithm",),
    ("privacy",),
    ("batch",),
    ("silos", 0),
    ("silos", 2),
    ("mixes", 0),
    ("server",),
]
OPTIONAL: set[Path] = {("task", "features", 0, "missing"), ("task", "features", 1, "count")}
KEYS: list[Path] = [
    (*table, key) for table in TABLES for key in at(study_tree(), table) if key != "features"
]


def of_type(*kinds: type) -> list[Path]:
    return [path for path in KEYS if type(at(study_tree(), path)) in kinds]


# these take any number; the other numbers of the tree are whole
NUMBERS: list[Path] = [
    ("task", "bias"),
    ("task", "features", 0, "low"),
    ("task", "features", 0, "high"),
    ("task", "features", 0, "missing"),
    ("algorithm", "radius"),
    ("privacy", "clip"),
    ("privacy", "epsilon"),
    ("privacy", "delta"),
    ("batch", "deadline_s"),
]
WHOLES: list[Path] = [
    ("version",),
    ("task", "features", 1, "count"),
    ("algorithm", "rounds"),
    ("batch", "minimum"),
    ("silos", 1, "records"),
]
TEXTS = of_type(str)


def naming(path: Path) -> str:
    return re.escape(written(path))


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


@pytest.mark.parametrize("table", TABLES, ids=written)
def test_an_unknown_key_is_refused_and_named(table: Path) -> None:
    path = (*table, "surprise")
    with pytest.raises(InvalidStudy, match=f"unknown key: {naming(path)}$"):
        parse(with_value(path, 1))


@pytest.mark.parametrize("path", [path for path in KEYS if path not in OPTIONAL], ids=written)
def test_a_missing_key_is_refused_and_named(path: Path) -> None:
    tree = study_tree()
    del at(tree, path[:-1])[path[-1]]
    with pytest.raises(InvalidStudy, match=f"missing key: {naming(path)} "):
        parse(tree)


@pytest.mark.parametrize("name", ["gate", "tokens"])
def test_a_study_can_do_without_gate_or_tokens_by_saying_so(name: str) -> None:
    for value in (True, False):
        batching = parse(with_value(("batch", name), value)).batching
        assert getattr(batching, name) is value
        assert batching.gate + batching.tokens == 1 + value


@pytest.mark.parametrize("name", ["gate", "tokens"])
@pytest.mark.parametrize("value", [0, 1, "false", "", []])
def test_gate_and_tokens_are_true_or_false_and_nothing_else(name: str, value: object) -> None:
    with pytest.raises(InvalidStudy, match=rf"batch\.{name}: expected true or false"):
        parse(with_value(("batch", name), value))


def test_parties_may_not_share_a_signing_key() -> None:
    for path in (("mixes", 0, "sign_key"), ("server", "sign_key"), ("silos", 1, "sign_key")):
        shared = study_tree()["silos"][0]["sign_key"]
        with pytest.raises(InvalidStudy, match="share a key"):
            parse(with_value(path, shared))


def test_what_all_mixes_state_about_a_round_is_limited() -> None:
    tree = study_tree()
    mixes = [tree["mixes"][0] | {"name": f"m{index}"} for index in range(65)]
    for index, mix in enumerate(mixes):
        mix["sign_key"] = b64encode((1000 + index).to_bytes(32, "big")).decode()
    assert len(parse(tree | {"mixes": mixes[:-1]}).mixes) == 64
    with pytest.raises(InvalidStudy, match="at most 64 mixes"):
        parse(tree | {"mixes": mixes})


def test_a_roster_times_the_mixes_is_limited() -> None:
    tree = study_tree()
    mixes, silo = tree["mixes"][:1], tree["silos"][0]
    silos = [
        silo
        | {
            "name": f"s{index}",
            "sign_key": b64encode((10**6 + index).to_bytes(32, "big")).decode(),
            "node_key": b64encode((10**7 + index).to_bytes(32, "big")).decode(),
        }
        for index in range(10_001)
    ]
    assert len(parse(tree | {"mixes": mixes, "silos": silos[:-1]}).silos) == 10_000
    with pytest.raises(InvalidStudy, match="silos times mixes at most 10000"):
        parse(tree | {"mixes": mixes, "silos": silos})


def test_a_missing_value_rule_defaults_to_the_middle_and_a_count_to_one() -> None:
    tree = study_tree()
    for path in OPTIONAL:
        del at(tree, path[:-1])[path[-1]]
    features = parse(tree).task.features
    assert [feature.missing for feature in features] == [50, 0]
    assert [feature.count for feature in features] == [1, 1]


@pytest.mark.parametrize("path", KEYS, ids=written)
@pytest.mark.parametrize("value", [True, [[]]], ids=["bool", "nested"])
def test_a_value_of_a_wrong_type_is_refused_and_named(path: Path, value: object) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", TEXTS, ids=written)
def test_a_number_is_not_a_text(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a string"):
        parse(with_value(path, 1))


@pytest.mark.parametrize("path", NUMBERS + WHOLES, ids=written)
def test_a_text_is_not_a_number(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, "1"))


@pytest.mark.parametrize("path", WHOLES, ids=written)
def test_a_fraction_is_not_a_whole_number(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a whole number"):
        parse(with_value(path, 2.0))


@pytest.mark.parametrize("path", NUMBERS, ids=written)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(path: Path, value: float) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a finite number"):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", NUMBERS, ids=written)
def test_a_number_too_large_for_a_float_is_refused(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, 10**400))


@pytest.mark.parametrize("path", WHOLES, ids=written)
def test_a_whole_number_beyond_all_bounds_is_refused(path: Path) -> None:
    with pytest.raises(InvalidStudy):
        parse(with_value(path, 10**400))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("version",), 2, "version 2 is not supported"),
        (("version",), 0, "version 0 is not supported"),
        (("task", "loss"), "zero-one", "task.loss: 'zero-one' is not one of absolute, hinge"),
        (("task", "loss"), "squared", "missing key: task.label_low"),
        (("task", "label_low"), 0, "unknown key: task.label_low"),
        (("task", "level"), 0.5, "unknown key: task.level"),
        (("task", "scaling"), "none", "task.scaling: 'none' is not one of"),
        (("task", "bias"), 0, "task: bias"),
        (("task", "label"), "age", "task: the label 'age' is also listed"),
        (("task", "features"), [], "task: a task needs at least one feature"),
        (("task", "features", 1, "name"), "age", "task: feature names must differ"),
        (("task", "features", 0, "high"), 0, "task.features[0]: feature 'age': low"),
        (("task", "features", 0, "missing"), 101, "task.features[0]: feature 'age': missing"),
        (("task", "features", 1, "count"), 0, "task.features[1]: feature 'lab': count"),
        (("algorithm", "name"), "adam", "algorithm.name: 'adam' is not one of accelerated-mb-sgd"),
        (("algorithm", "rounds"), 0, "algorithm.rounds"),
        (("algorithm", "rounds"), 1_000_001, "algorithm.rounds"),
        (("algorithm", "radius"), 0, "algorithm.radius"),
        (("algorithm", "radius"), -1, "algorithm.radius"),
        (("algorithm", "radius"), 1.7e308, "algorithm.radius"),
        (("algorithm", "radius"), 9e-10, "algorithm.radius"),
        (("privacy", "clip"), 0, "privacy.clip"),
        (("privacy", "clip"), 5e-324, "privacy.clip"),
        (("privacy", "clip"), 9e-10, "privacy.clip"),
        (("privacy", "clip"), 1e300, "privacy.clip"),
        (("privacy", "epsilon"), 0, "privacy: epsilon"),
        (("privacy", "epsilon"), 101, "privacy: epsilon"),
        (("privacy", "epsilon"), 9e-4, "privacy: epsilon must be at least 0.001"),
        (("privacy", "delta"), 0, "privacy: delta"),
        (("privacy", "delta"), 0.1, "privacy: delta"),
        (("batch", "minimum"), 0, "batch.minimum"),
        (("batch", "minimum"), 4, "batch.minimum"),
        (("batch", "deadline_s"), 0, "batch.deadline_s"),
        (("batch", "deadline_s"), 86_401, "batch.deadline_s"),
        (("silos",), [], "at least one silo"),
        (("mixes",), [], "at least one mix"),
        (("silos", 0, "records"), 0, "silo 'silo-0': records"),
        (("silos", 0, "records"), 2**27, "silo 'silo-0': records"),
        (("silos", 1, "name"), "silo-0", "different names"),
        (("mixes", 0, "name"), "silo-0", "different names"),
        (("server", "name"), "mix-1", "different names"),
        (("silos", 0, "name"), "", "party name ''"),
        (("silos", 0, "name"), "-", "party name '-'"),
        (("silos", 0, "name"), "a/../b", "party name 'a/../b'"),
        (("silos", 0, "name"), "münchen", "party name 'münchen'"),
        (("silos", 0, "name"), "a\nb", "control characters"),
        (("mixes", 0, "name"), "x" * 64, "party name"),
        (("server", "name"), "two words", "party name 'two words'"),
        (("silos", 0, "sign_key"), "not base64!", "silos[0]: "),
        (("mixes", 0, "sign_key"), "AAA", "mixes[0]: "),
        (("mixes", 0, "seal_key"), "AAAA", "unknown key: mixes[0].seal_key"),
        (("server", "seal_key"), "AAAA", "unknown key: server.seal_key"),
        (("server", "sign_key"), "é", "server: "),
        (("silos",), [1], "silos[0]: expected a table"),
        (("server",), [], "server: expected a table"),
        (("mixes",), {}, "mixes: expected an array of tables"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(path: Path, value: object, reason: str) -> None:
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(with_value(path, value))


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


@pytest.mark.parametrize("content", [b"\xff\xfe", b"version = ", b"= 1", b"version = 1\nversion=1"])
def test_what_is_not_toml_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidStudy, match="not a TOML file"):
        parse_study(content)


@pytest.mark.parametrize(
    "value",
    ["[\n" * 20_000 + "]" * 4000, "{a=" * 2000 + "1" + "}" * 2000],
    ids=["lists", "tables"],
)
def test_deep_nesting_is_refused_as_a_study(value: str) -> None:
    with pytest.raises(InvalidStudy, match="nested too deeply"):
        parse_study(f"x = {value}\n".encode() + study_bytes(study_tree()))


def test_a_value_too_deep_to_be_shown_is_refused_as_a_study() -> None:
    content = study_bytes(study_tree()).replace(b"version = 1", b"version." + b"a." * 2000 + b"a=1")
    shown = r"version: expected a whole number, got .{1,100}$"  # where Python shows such a value
    with pytest.raises(InvalidStudy, match=f"nested too deeply|{shown}"):
        parse_study(content)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InvalidStudy, match="missing key: version"):
        parse_study(b"")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_as_a_study(content: bytes) -> None:
    with pytest.raises(InvalidStudy):
        parse_study(content)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from([*KEYS, *(table for table in TABLES if table)]), VALUES)
def test_any_value_anywhere_gives_a_study_or_a_clear_refusal(path: Path, value: object) -> None:
    """Nothing but InvalidStudy comes out of a file, and its message is never empty."""
    tree: Tree = with_value(path, value)
    try:
        parse(tree)
    except InvalidStudy as error:
        refusal = str(error)
    else:
        refusal = "none"
    assert refusal


# A study file may be written by an attacker ------------------------------------------------------

NAMES: list[Path] = [
    ("name",),
    ("task", "label"),
    ("task", "features", 0, "name"),
    ("silos", 0, "name"),
    ("mixes", 0, "name"),
    ("server", "name"),
]
ADDRESSES: list[Path] = [
    ("mixes", 0, "address"),
    ("server", "fleet_address"),
    ("server", "channel_address"),
]


@pytest.mark.parametrize("path", NAMES + ADDRESSES, ids=written)
@pytest.mark.parametrize("value", ["x" * 101, " x", "x ", "a  b", "a\u2800b", "a\u3164b"])
def test_a_text_that_could_forge_a_line_on_the_screen_is_refused_and_named(
    path: Path, value: str
) -> None:
    with pytest.raises(InvalidStudy, match=f"^{naming(path)}: "):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", NAMES[:3], ids=written)
def test_a_name_may_have_a_hundred_characters_of_any_alphabet(path: Path) -> None:
    for name in ("x" * 100, "Größe (µg/l), 1. Tag", "血压 mmHg"):
        parse(with_value(path, name))


@pytest.mark.parametrize("path", ADDRESSES, ids=written)
@pytest.mark.parametrize("value", ["127.0.0.1:1/../../x", "hospital.org", "a@b:1", "[::1]"])
def test_an_address_that_is_not_host_and_port_is_refused_and_named(path: Path, value: str) -> None:
    with pytest.raises(InvalidStudy, match=f"^{naming(path)}: .* is not host:port"):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", ADDRESSES, ids=written)
def test_a_study_names_hosts_as_the_internet_does(path: Path) -> None:
    for address in ("mix-1.hospital.org:443", "10.0.0.7:7001", "[2001:db8::1]:65535"):
        assert address in repr(parse(with_value(path, address)))


def test_the_columns_of_all_features_together_are_limited_before_any_is_named() -> None:
    most = {"name": "f0", "low": 0, "high": 1, "count": 2**21}
    assert parse(with_value(("task", "features"), [most])).task.dimension == 2**21 + 1
    many = [most | {"name": f"f{index}"} for index in range(12)]
    with pytest.raises(InvalidStudy, match="task: the features have more than 2097152 columns"):
        parse(with_value(("task", "features"), many))


def with_targets(different: int, sampling: Tree) -> Tree:
    """Ten silos; one keeps the study's promise, the others share `different` − 1 of their own."""
    tree = study_tree(10)
    tree["privacy"] |= sampling
    for index, silo in enumerate(tree["silos"][1:]):
        silo |= {"epsilon": 1 + index % (different - 1) / 100, "delta": 1e-5}
    return tree


@pytest.mark.parametrize("scheme", ["poisson", "without-replacement"])
def test_drawn_batches_allow_eight_different_promises_and_no_more(scheme: str) -> None:
    sampling = {"sampling": scheme, "ratio": 0.5}
    assert len({silo.target for silo in parse(with_targets(8, sampling)).silos}) == 8
    with pytest.raises(InvalidStudy, match=rf"{scheme} batches .* at most 8 .* these have 9"):
        parse(with_targets(9, sampling))


def test_full_batches_allow_every_silo_its_own_promise() -> None:
    assert parse(with_targets(10, {})).mechanism().rounds == 5


@pytest.mark.parametrize("clip", [1e-9, 1e9])
@pytest.mark.parametrize(
    "sampling", [{}, {"sampling": "poisson", "ratio": 1e-9}], ids=["full", "poisson"]
)
def test_numbers_at_the_ends_of_their_ranges_give_a_mechanism(clip: float, sampling: Tree) -> None:
    tree = with_value(("privacy", "clip"), clip)
    tree["privacy"] |= sampling
    assert parse(tree).mechanism().sigma() > 0


@pytest.mark.parametrize(
    ("clip", "batch"),
    [
        (5e-324, Minibatch()),
        (1.7e308, Minibatch()),
        (1.0, Minibatch(Scheme.POISSON, 1e-310)),
        (1e-9, Minibatch(Scheme.POISSON, 1e-309)),
    ],
)
def test_steps_that_no_float_can_hold_are_refused_with_the_reason(
    clip: float, batch: Minibatch
) -> None:
    silo = Participant(100, PrivacyTarget(1, 1e-5))
    with pytest.raises(CalibrationImpossible, match="no float can hold"):
        Mechanism.calibrate([silo], clip=clip, dimension=4, phases=[Phase(5)], minibatch=batch)


@pytest.mark.parametrize("line", [b"a." * 5000 + b"a = 1\n", b"# " + b"x" * 9000])
def test_a_line_that_would_take_long_to_read_is_refused_at_once(line: bytes) -> None:
    with pytest.raises(InvalidStudy, match="a line longer than"):
        parse_study(study_bytes(study_tree()) + line)


def test_drawn_batches_have_a_limit_on_rounds() -> None:
    tree = with_value(("algorithm", "rounds"), 10_001)
    tree["privacy"] |= {"sampling": "poisson", "ratio": 0.5}
    with pytest.raises(InvalidStudy, match="at most 10000 with poisson batches"):
        parse(tree)


def test_a_hold_out_that_leaves_a_silo_nothing_to_learn_from_is_refused() -> None:
    tree = with_value(("algorithm", "name"), "localized-subgradient")
    tree["evaluation"] = {"share": 0.99}
    for silo in tree["silos"]:
        silo["records"] = 40
    with pytest.raises(ValueError, match="none left to learn from"):
        parse(tree).mechanism()
