"""silomix from Python: what a notebook fits, what it is told, and what it is refused."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from silomix import FederatedClassifier, FederatedRegressor
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_lab.choices.goal import usual_radius
from silomix_lab.datasets.by_name import load
from silomix_lab.estimators import NotFitted
from silomix_lab.simulate import SimulatedTrial, SimulateOptions, run_trial
from silomix_server.study.results import progress
from sklearn.base import clone
from sklearn.metrics import r2_score
from support.specifications import changed, specification
from support.studies import parse, study_bytes, study_tree

BOUNDS = [(0.0, 10.0), (-1.0, 1.0)]


def silos(count: int = 3, records: int = 200, seed: int = 1) -> list[tuple[Any, Any]]:
    """Records whose label leans on the first feature."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        values = rng.uniform([0, -1], [10, 1], (records, 2))
        made.append((values, (values[:, 0] + rng.normal(0, 1, records) > 5).astype(int)))
    return made


def classifier(**changes: Any) -> FederatedClassifier:
    given = {"bounds": BOUNDS, "epsilon": 8.0, "rounds": 20, "random_state": 1}
    return FederatedClassifier(**(given | changes))


def test_fitting_is_what_simulate_does() -> None:
    data = load("breast-cancer", None, 3, seed=5)
    model = FederatedClassifier(
        bounds=[(feature.low, feature.high) for feature in data.task.features],
        epsilon=4.0,
        delta=1e-5,
        algorithm="localized-accelerated",
        rounds=20,
        ridge=0.01,
        participants=2,
        random_state=[5, 7],
    ).fit([(silo.values, silo.labels) for silo in data.silos])
    options = SimulateOptions(
        specification=specification(
            "localized-accelerated", clip=0.25, radius=50.0, ridge=0.01, participants=2
        ),
        algorithms=("localized-accelerated",),
        epsilons=(4.0,),
        data="breast-cancer",
        silos=3,
        seeds=1,
        processes=1,
    )
    outcome = run_trial(options, SimulatedTrial("localized-accelerated", 4.0, 5))
    assert outcome.error == 1 - model.score(data.holdout.values, data.holdout.labels)
    assert outcome.rounds == model.n_iter_
    other = changed(options, participants=None)
    assert run_trial(other, SimulatedTrial("localized-accelerated", 4.0, 5)).error != outcome.error


def test_a_fitted_model_predicts_like_any_linear_classifier() -> None:
    words = [(values, np.array(["no", "yes"])[labels]) for values, labels in silos()]
    model = classifier(classes=("no", "yes")).fit(words[:-1], holdout=words[-1])
    values, labels = words[-1]
    raw = values @ model.coef_.T + model.intercept_
    assert raw[:, 0] == pytest.approx(model.decision_function(values), abs=1e-3)
    assert np.array_equal(model.predict(values) == "yes", model.decision_function(values) > 0)
    chances = model.predict_proba(values)
    assert chances.sum(axis=1) == pytest.approx(1)
    assert chances[:, 1] == pytest.approx(1 / (1 + np.exp(-model.decision_function(values))))
    assert model.score(values, labels) == np.mean(model.predict(values) == labels) > 0.85
    assert model.classes_.tolist() == ["no", "yes"]
    assert [line["round"] for line in model.history_] == list(range(1, 21))
    assert model.history_[-1]["error"] == pytest.approx(1 - model.score(values, labels))
    assert model.history_[-1]["reports"] == 2


def test_the_callback_sees_every_line_when_it_is_there() -> None:
    seen: list[dict[str, float]] = []
    model = classifier(rounds=5).fit(silos(), callback=seen.append)
    assert seen == model.history_
    assert len(seen) == 5


def test_nothing_but_the_arguments_shapes_the_features() -> None:
    """Values beyond the bounds count as the bounds, missing ones as the middle."""
    raw = silos()
    for values, _ in raw:
        values[::5, 0], values[::7, 1] = 1e6, np.nan
    told = [(np.nan_to_num(np.clip(values, [0, -1], [10, 1])), labels) for values, labels in raw]
    assert np.array_equal(classifier().fit(raw).weights_, classifier().fit(told).weights_)


def test_one_pair_of_bounds_stands_for_all_features() -> None:
    one, both = classifier(bounds=(-1, 10)), classifier(bounds=[(-1, 10), (-1, 10)])
    assert np.array_equal(one.fit(silos()).weights_, both.fit(silos()).weights_)


def test_noise_repeats_itself_only_with_a_seed() -> None:
    def weights(seed: int | None) -> list[float]:
        fitted = classifier(random_state=seed).fit(silos())
        assert ("ends all protection" in fitted.privacy_) == (seed is not None)
        found: list[float] = fitted.weights_.tolist()
        return found

    assert weights(1) == weights(1) != weights(2)
    assert weights(None) != weights(None)


def test_noise_without_a_seed_comes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the silos' own key stream: where the system repeats itself, so does the noise."""
    monkeypatch.setattr("os.urandom", bytes)
    first, again = (classifier(random_state=None).fit(silos()) for _ in range(2))
    assert np.array_equal(first.weights_, again.weights_)


def test_privacy_says_what_is_promised_to_whom_and_when() -> None:
    said = classifier(epsilon=0.5, delta=1e-7).fit(silos()).privacy_
    for part in (
        "ε = 0.5",
        "δ = 1e-07",
        "replace-one-record",
        "the server, all mixes",
        "stay with",
    ):
        assert part in said


def test_scikit_learn_can_clone_and_change_it() -> None:
    model = classifier(classes=("a", "b"), participants=2)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    assert set(copy.get_params()) == set(FederatedClassifier().get_params())
    assert copy.set_params(epsilon=1.0).epsilon == 1.0
    assert model.epsilon == 8.0
    with pytest.raises(ValueError, match="no parameter 'eps'"):
        copy.set_params(eps=1)
    assert "epsilon=1.0" in repr(copy)
    assert "delta" not in repr(copy)
    with pytest.raises(NotFitted, match="no model yet"):
        copy.predict([[1, 2]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bounds": None}, "never measured on the records"),
        ({"bounds": [(0, 1)]}, r"X of silo 0: \(records, 1\) expected, got \(200, 2\)"),
        ({"bounds": [0, 1, 2]}, "one pair"),
        ({"classes": (1, 2)}, "0 is none of classes"),
        ({"classes": (0, 1, 2)}, "two labels"),
        ({"participants": 4}, "participants: 1 to 3"),
        ({"loss": "zero-one"}, "'zero-one' is not one of logistic, hinge"),
        ({"loss": "hinge", "algorithm": "multi-stage"}, "needs a loss without kinks"),
        ({"algorithm": "adam"}, "unknown algorithm"),
        ({"epsilon": -1}, "epsilon must be above 0"),
        ({"aggregation": "median"}, "'median' is not one of mean, bounded-mean, trimmed-mean, geo"),
        ({"bad_silos": 1}, "is not one of mean"),
        ({"aggregation": "trimmed-mean"}, "needs bad_silos"),
        ({"aggregation": "trimmed-mean", "bad_silos": 2}, "needs 5 reports in every round"),
        ({"aggregation": "geometric-median", "algorithm": "dp-scaffold"}, "need the mean"),
    ],
)
def test_bad_arguments_are_explained(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        classifier(**changes).fit(silos())


def test_the_rule_by_which_reports_become_one_can_be_named() -> None:
    usual, bounded, *others = (
        classifier(random_state=1, **changes).fit(silos()).weights_
        for changes in (
            {},
            {"aggregation": "bounded-mean"},
            {"aggregation": "geometric-median"},
            {"aggregation": "mean"},
            {"aggregation": "trimmed-mean", "bad_silos": 1},
        )
    )
    assert np.array_equal(usual, bounded)
    assert len({tuple(each) for each in (bounded, *others)}) == 4


def test_the_hinge_loss_gives_no_probabilities() -> None:
    model = classifier(loss="hinge").fit(silos())
    assert model.score(*silos()[0]) > 0.85
    with pytest.raises(AttributeError, match="hinge loss has no probabilities"):
        model.predict_proba([[1, 2]])


def test_the_same_study_runs_over_the_network_and_its_model_can_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no seeded noise"):
        classifier().fit_over_network(silos())
    folder, seen = tmp_path / "study", list[dict[str, float]]()
    model = classifier(random_state=None, rounds=12, ridge=0.001).fit_over_network(
        silos(4)[:-1], holdout=silos(4)[-1], callback=seen.append, folder=folder, mixes=1
    )
    values, labels = silos(4)[-1]
    assert model.score(values, labels) > 0.85
    assert seen == model.history_
    assert [line["round"] for line in seen] == list(range(1, 13))
    assert all(line["reports"] == 3 for line in seen)
    assert seen[-1]["error"] == pytest.approx(1 - model.score(values, labels))
    closed = progress(folder / "server" / "state")
    assert [line["loss"] for line in seen[:-1]] == [line["loss"] for line in closed[1:]]
    loaded = FederatedClassifier.from_study(
        folder / "study.toml", folder / "server" / "state" / "model.npz"
    )
    assert np.array_equal(loaded.decision_function(values), model.decision_function(values))
    assert np.array_equal(loaded.coef_, model.coef_)
    ours, theirs = model.get_params(), loaded.get_params()
    assert ours.pop("bounds") == theirs.pop("bounds")
    assert ours == theirs
    assert "as each silo's ledger kept it" in loaded.privacy_
    with pytest.raises(ValueError, match="is not empty"):
        model.fit_over_network(silos(), folder=folder)
    study = folder / "study.toml"
    study.write_text(study.read_text().replace("from Python", "another one"))
    with pytest.raises(ValueError, match="belongs to study"):
        FederatedClassifier.from_study(study, folder / "server" / "state" / "model.npz")


def test_a_study_with_categories_is_loaded_and_predicts(tmp_path: Path) -> None:
    tree = study_tree()
    tree["task"]["features"] = [
        {"name": "sex", "kind": "category", "categories": ["female", "male"], "missing": ""},
        {"name": "age", "low": 0, "high": 100, "missing": 40},
    ]
    (tmp_path / "study.toml").write_bytes(study_bytes(tree))
    identity, weights = parse(tree).identity.hex(), np.array([2.0, -2.0, 1.0, 0.0])
    np.savez(tmp_path / "model.npz", study=identity, weights=weights)
    loaded = FederatedClassifier.from_study(tmp_path / "study.toml", tmp_path / "model.npz")
    shown = loaded.decision_function([[0, 50], [1, 50], [np.nan, 100]]) * np.sqrt(2)
    assert shown == pytest.approx([2.0, -2.0, 1.0], abs=1e-3)
    assert not hasattr(loaded, "coef_")


def test_a_study_with_interactions_is_loaded_and_predicts(tmp_path: Path) -> None:
    tree = study_tree()
    tree["task"]["features"] = [
        {"name": "smoker", "kind": "flag"},
        {"name": "age", "low": 0, "high": 100, "missing": 40},
    ]
    tree["task"]["interactions"] = [["smoker", "age"]]
    (tmp_path / "study.toml").write_bytes(study_bytes(tree))
    identity, weights = parse(tree).identity.hex(), np.array([1.0, 0.0, 4.0, 0.0])
    np.savez(tmp_path / "model.npz", study=identity, weights=weights)
    loaded = FederatedClassifier.from_study(tmp_path / "study.toml", tmp_path / "model.npz")
    shown = loaded.decision_function([[1, 100], [0, 100], [1, 0], [np.nan, 0]]) * np.sqrt(3)
    assert shown == pytest.approx([5.0, -5.0, -3.0, 0.0], abs=1e-3)
    assert not hasattr(loaded, "coef_")


# Numbers -----------------------------------------------------------------------------------------

LABELS = (0.0, 60.0)


def numbers(count: int = 3, records: int = 300, seed: int = 1) -> list[tuple[Any, Any]]:
    """y = 20 + 3·x₁ − 5·x₂ and some noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        values = rng.uniform([0, -1], [10, 1], (records, 2))
        made.append((values, 20 + values @ [3.0, -5.0] + rng.normal(0, 2, records)))
    return made


def regressor(**changes: Any) -> FederatedRegressor:
    given = {"bounds": BOUNDS, "label_bounds": LABELS, "epsilon": 8.0, "random_state": 1}
    return FederatedRegressor(**(given | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "huber", "threshold": 10.0},
        {"loss": "absolute"},
        {"loss": "quantile", "level": 0.5},
        {"algorithm": "auto"},
    ],
    ids=str,
)
def test_a_fitted_line_predicts_like_any_other(changes: dict[str, Any]) -> None:
    """Without privacy R² would be 0.96."""
    *silos, (values, labels) = numbers(4)
    model = regressor(**changes).fit(silos, holdout=(values, labels))
    line = values @ model.coef_ + model.intercept_
    assert np.clip(line, *LABELS) == pytest.approx(model.predict(values), abs=0.01)
    assert model.coef_ == pytest.approx([3, -5], abs=1.5)
    assert model.score(values, labels) == pytest.approx(r2_score(labels, model.predict(values)))
    assert model.score(values, labels) > 0.85
    wrong = np.mean((labels - model.predict(values)) ** 2) / np.mean(labels**2)
    assert model.history_[-1]["error"] == pytest.approx(wrong)


def test_a_regression_is_what_simulate_does(tmp_path: Path) -> None:
    lines = ["x,z,y"]
    for values, labels in numbers(1, 600):
        rows = zip(values, labels, strict=True)
        lines += [f"{x:.6f},{z:.6f},{y:.6f}" for (x, z), y in rows]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    goal = Goal(LossName.SQUARED, label_bounds=LABELS)
    data = load(str(tmp_path / "own.csv"), "y", 3, 5, goal)
    model = regressor(
        bounds=[(feature.low, feature.high) for feature in data.task.features],
        rounds=15,
        random_state=[5, 7],
    ).fit(
        [(silo.values, silo.labels) for silo in data.silos],
        holdout=(data.holdout.values, data.holdout.labels),
    )
    options = SimulateOptions(
        specification=specification(
            most_rounds=15, clip=0.25, radius=usual_radius(goal), target=PrivacyTarget(8.0, 1e-6)
        ),
        algorithms=("noisy-mb-sgd",),
        epsilons=(8.0,),
        data=str(tmp_path / "own.csv"),
        label="y",
        silos=3,
        goal=goal,
        seeds=1,
        processes=1,
    )
    outcome = run_trial(options, SimulatedTrial("noisy-mb-sgd", 8.0, 5))
    assert outcome.error == model.history_[-1]["error"]


def test_no_prediction_and_no_label_lies_beyond_the_bounds() -> None:
    silos = numbers()
    told = [(values, np.clip(labels, 25, 40)) for values, labels in silos]
    narrow = regressor(label_bounds=(25, 40)).fit(silos)
    assert np.array_equal(narrow.weights_, regressor(label_bounds=(25, 40)).fit(told).weights_)
    predicted = narrow.predict([[0, 1], [10, -1], [1e9, -1e9]])
    assert 25 <= predicted.min() < predicted.max() <= 40


def test_the_score_of_labels_that_do_not_vary_is_finite() -> None:
    model = regressor().fit(numbers())
    assert model.score([[1, 0], [2, 0]], [7.0, 7.0]) == 0
    assert model.score([[1, 0]], model.predict([[1, 0]])) == 1
    with pytest.raises(ValueError, match="2 labels expected"):
        model.score([[1, 0], [2, 0]], [7.0])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label_bounds": None}, "label_bounds: give the public"),
        ({"label_bounds": (1, 2, 3)}, "label_bounds: give the public"),
        ({"label_bounds": (5, 5)}, "low must be below high"),
        ({"bounds": None}, "never measured on the records"),
        ({"loss": "logistic"}, "'logistic' is not one of squared, huber, absolute, quantile"),
        ({"loss": "quantile"}, "a level belongs to the quantile loss"),
        ({"threshold": 3.0}, "a threshold belongs to the huber loss"),
        ({"loss": "absolute", "algorithm": "multi-stage"}, "needs a loss without kinks"),
    ],
)
def test_bad_arguments_of_a_regression_are_explained(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        regressor(**changes).fit(numbers())


def test_labels_that_are_no_numbers_are_refused_and_a_clone_is_not_fitted() -> None:
    silos = numbers()
    silos[1][1][7] = np.nan
    with pytest.raises(ValueError, match="y of silo 1: not a finite number"):
        regressor().fit(silos)
    model = regressor(level=0.9, loss="quantile")
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFitted, match="no model yet"):
        clone(model).predict([[1, 2]])


def test_a_regression_runs_over_the_network_and_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    model = regressor(random_state=None, rounds=12, loss="huber", threshold=20.0)
    model.fit_over_network(numbers(3), folder=folder, mixes=1)
    place = folder / "study.toml", folder / "server" / "state" / "model.npz"
    loaded, (values, labels) = FederatedRegressor.from_study(*place), numbers(1, seed=2)[0]
    assert np.array_equal(loaded.predict(values), model.predict(values))
    assert loaded.score(values, labels) > 0.5
    ours, theirs = model.get_params(), loaded.get_params()
    assert ours.pop("bounds") == theirs.pop("bounds")
    assert ours == theirs
    with pytest.raises(ValueError, match="FederatedClassifier does not know the huber loss"):
        FederatedClassifier.from_study(*place)


def test_importing_silomix_loads_nothing_heavy_and_sets_grpc_up_first() -> None:
    code = (
        "import sys, os, silomix; "
        "assert not {'numpy', 'grpc', 'scipy', 'flwr', 'rich'} & set(sys.modules); "
        "assert os.environ['GRPC_EXPERIMENTS']; "
        "from silomix import FederatedClassifier; "
        "assert not {'grpc', 'flwr', 'matplotlib', 'sklearn'} & set(sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["breast_cancer.py", "diabetes.py"])
def test_the_example_runs_and_draws(name: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / name
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, str(script), "out.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - started < 30
    assert "ε = 4" in ended.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
