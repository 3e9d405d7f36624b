"""silomix for notebooks: models that are fitted on many silos' records, each kept private.

    model = FederatedClassifier(bounds=[(18, 100), (80, 200)], epsilon=2, delta=1e-6)
    model.fit([(X_a, y_a), (X_b, y_b), (X_c, y_c)])
    model.predict(X_new); print(model.privacy_)

`FederatedClassifier` tells two classes apart, `FederatedRegressor` predicts a number.  `fit` runs
the study in one process: the silos' own reporters and the coordinator's own algorithm, as
`silomix simulate` does.  `fit_over_network` runs the same study with real processes on this
machine.  `from_study` loads the model of a study that hospitals ran.  Works with scikit-learn's
`clone` and does not need scikit-learn.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from inspect import signature
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from silomix_core.accounting.events import ADJACENCY, PrivacyTarget
from silomix_core.algorithms.base import USUAL_DESCENT
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import Aggregation, Rule
from silomix_core.simulation.one_process import Rehearsal, rehearsal
from silomix_core.study import defaults
from silomix_core.study.derive import unfit
from silomix_core.task.feature import FeatureKind
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

from silomix_lab.datasets.tables import Floats, SiloTable
from silomix_lab.demo.summary import PROTECTS_AGAINST
from silomix_lab.history import Callback, Line, round_line, scored
from silomix_lab.scoring import scores

Labelled = tuple[ArrayLike, ArrayLike]
Choice = TypeVar("Choice", bound=Enum)


class NotFitted(ValueError, AttributeError):
    """A model was asked for before there was one."""


class _Federated(ABC):
    """The base of both estimators: makes a study of the arguments, and answers from its model."""

    losses: ClassVar[tuple[LossName, ...]]
    bounds: ArrayLike | None
    epsilon: float
    delta: float
    algorithm: str
    rounds: int
    loss: str
    participants: int | None
    aggregation: str | None
    bad_silos: int | None
    clip: float
    radius: float
    ridge: float
    scaling: str
    bias: float
    random_state: int | Sequence[int] | None

    @abstractmethod
    def _task(self, features: tuple[Feature, ...]) -> Task:
        """The learning task that the constructor's arguments ask for."""

    @abstractmethod
    def _labels(self, outcomes: NDArray[Any], whose: str) -> Floats:
        """The labels in a study's form, made of what was given as y."""

    @abstractmethod
    def _learned(self, task: Task, weights: Floats) -> None:
        """Set the attributes that a fitted model has beside `weights_`."""

    @classmethod
    @abstractmethod
    def _about_labels(cls, task: Task) -> dict[str, Any]:
        """The constructor's arguments that a study's task decides and only this estimator has."""

    # Fitting ------------------------------------------------------------------------------------

    def fit(
        self,
        silos: Sequence[Labelled],
        *,
        holdout: Labelled | None = None,
        callback: Callback | None = None,
    ) -> Self:
        """Run the study in this process; `silos` is a list of (X, y), one pair for each silo.

        With a public hold-out (X, y), on which nobody's privacy depends, every line of `history_`
        has its loss and error.  `callback` is given each line as soon as it is there.
        """
        task, tables = self._tables(silos)
        held_out = None if holdout is None else self._table(task, holdout, "the hold-out")
        made = self._rehearsal(task, tables)
        lines: list[Line] = []

        def advance(model: Floats) -> None:
            line = round_line(len(lines) + 1, made.mechanism, made.setting.participants)
            lines.append(line | scored(model, held_out, task))
            if callback is not None:
                callback(lines[-1])

        records = [
            Records(task.encode(each.values), task.encode_labels(each.labels)) for each in tables
        ]
        seeded = self.random_state is not None
        weights = made.run(
            records,
            np.random.default_rng(self.random_state),
            random_bytes=None if seeded else _fresh_bytes(),
            advance=advance,
        )
        noise = (
            "random_state makes its noise repeatable, which by itself ends all protection"
            if seeded
            else "its noise was drawn afresh and is repeatable only with random_state"
        )
        condition = (
            "Simulated in one process: true only if every silo's X and y stay with the silo, and "
            f"not of whoever ran this; {noise}."
        )
        return self._fitted(task, weights, lines, condition)

    def fit_over_network(
        self,
        silos: Sequence[Labelled],
        *,
        holdout: Labelled | None = None,
        callback: Callback | None = None,
        folder: Path | str | None = None,
        mixes: int = 2,
    ) -> Self:
        """Run the study with a server, mixes and silos as processes of this machine.

        Everything is written to `folder` (new or empty; each party's keys, records and log stay
        there), else to a temporary one.  `silos`, `holdout` and `callback` are as in `fit`.
        """
        try:
            from silomix_lab.local_study import DEADLINE_S, run_here, usual_minimum
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"fit_over_network needs {missing.name}; install silomix[demo]"
            ) from missing
        from silomix_core.study.writer import StudyChoices

        if self.random_state is not None:
            raise ValueError("random_state: a silo's process has no seeded noise; use None, or fit")
        task, tables = self._tables(silos)
        held_out = None if holdout is None else self._table(task, holdout, "the hold-out")
        made, chosen = self._rehearsal(task, tables), self._chosen(task, tables)
        choices = StudyChoices(
            name="from Python",
            algorithm=chosen.algorithm,
            rounds=chosen.rounds,
            radius=chosen.radius,
            clip=chosen.clip,
            target=PrivacyTarget(self.epsilon, self.delta),
            minimum_batch=usual_minimum(made.setting.participants),
            deadline_s=DEADLINE_S,
            participants=self.participants,
            ridge=self.ridge,
            descent=chosen.descent,
            aggregation=self._aggregation(),
        )
        with TemporaryDirectory(prefix="silomix-") as temporary:
            place = Path(folder) if folder is not None else Path(temporary) / "study"
            lines, weights = run_here(
                place, task, tables, choices, mixes=mixes, holdout=held_out, callback=callback
            )
        condition = (
            "Run by real processes of this machine, the silos' ledgers charged; whoever owns the "
            "machine saw all records."
        )
        return self._fitted(task, weights, lines, condition)

    @classmethod
    def from_study(cls, study: Path | str, model: Path | str) -> Self:
        """Load the finished model of a study from its study.toml and the server's model.npz.

        X then has the study's columns in their order: a flag as 0 or 1, a category as its place in
        the study's list (from 0), NaN for what is missing.  With categories or interactions there
        is no coef_.
        """
        from silomix_protocol.host.operator_files import named, read_study

        with named(Path(study), ValueError):
            agreed = read_study(Path(study))
        with np.load(model) as saved:
            owner, weights = str(saved["study"]), np.array(saved["weights"])
        if owner != agreed.identity.hex():
            raise ValueError(
                f"{model} belongs to study {owner[:12]}, not to {study} ({agreed.short_id})"
            )
        task, aggregation = agreed.task, agreed.named_aggregation
        if task.loss not in cls.losses or task.hidden is not None:
            kind = f"{task.loss.value} loss" if task.hidden is None else "hidden layer"
            raise ValueError(f"{study}: {cls.__name__} does not know the {kind} of this study")
        loaded = cls().set_params(
            bounds=[(each.low, each.high) for each in task.features for _ in range(each.count)],
            epsilon=agreed.target.epsilon,
            delta=agreed.target.delta,
            algorithm=agreed.algorithm,
            rounds=agreed.most_rounds,
            loss=task.loss.value,
            participants=agreed.participants if agreed.participants < len(agreed.silos) else None,
            aggregation=aggregation.rule.value if aggregation else None,
            bad_silos=(aggregation.bad_silos or None) if aggregation else None,
            clip=agreed.clip,
            radius=agreed.radius,
            ridge=agreed.ridge,
            scaling=task.scaling.value,
            bias=task.bias,
            **cls._about_labels(task),
        )
        condition = f"Study {agreed.short_id} ({agreed.name}), as each silo's ledger kept it."
        if own := sum(silo.target is not None for silo in agreed.silos):
            condition += f" Of its silos {own} have another (ε, δ), which the study lists."
        lines = [
            round_line(number, agreed.mechanism(), agreed.participants)
            for number in range(1, agreed.rounds + 1)
        ]
        return loaded._fitted(task, weights, lines, condition)

    # Using the model ----------------------------------------------------------------------------

    def _scores(self, X: ArrayLike) -> Floats:  # noqa: N803
        if not hasattr(self, "weights_"):
            raise NotFitted("there is no model yet; call fit, fit_over_network or from_study")
        return scores(self.weights_, _values(self._fitted_task, X, "X"), self._fitted_task)

    # What scikit-learn asks of an estimator -----------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 scikit-learn's
        """The arguments of the constructor, by name."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; takes effect with the next fit."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = signature(type(self)).parameters
        given = [
            f"{name}={value!r:.60}"
            for name, value in self.get_params().items()
            if value is not usual[name].default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    # From arguments to a study ------------------------------------------------------------------

    def _tables(self, silos: Sequence[Labelled]) -> tuple[Task, list[SiloTable]]:
        """The task, and each silo's records in the form that the command line uses."""
        if not len(silos):
            raise ValueError("silos: a list of (X, y), at least one")
        bounds = _checked_bounds(self.bounds)
        columns = len(bounds) if bounds.ndim == 2 else np.shape(silos[0][0])[-1]
        features = tuple(
            Feature(f"x{number}", low, high, (low + high) / 2)
            for number, (low, high) in enumerate(
                np.broadcast_to(bounds, (columns, 2)).tolist(), start=1
            )
        )
        task = self._task(features)
        return task, [self._table(task, each, f"silo {index}") for index, each in enumerate(silos)]

    def _table(self, task: Task, labelled: Labelled, whose: str) -> SiloTable:
        values, outcomes = _values(task, labelled[0], f"X of {whose}"), np.asarray(labelled[1])
        if outcomes.shape != (len(values),):
            raise ValueError(f"y of {whose}: {len(values)} labels expected, got {outcomes.shape}")
        return SiloTable(values, self._labels(outcomes, whose))

    def _participants(self, tables: Sequence[SiloTable]) -> list[Participant]:
        target = PrivacyTarget(self.epsilon, self.delta)
        return [Participant(len(each), target) for each in tables]

    def _chosen(self, task: Task, tables: Sequence[SiloTable]) -> defaults.Choice:
        """The algorithm and its numbers as the arguments say; "auto" has numbers of its own."""
        asked = defaults.Choice(self.algorithm, self.rounds, self.clip, self.radius)
        loud = defaults.loudness(self._participants(tables), self.participants)
        return defaults.chosen(asked, task, loud)

    def _rehearsal(self, task: Task, tables: Sequence[SiloTable]) -> Rehearsal:
        chosen = self._chosen(task, tables)
        entry = algorithm(chosen.algorithm)
        if (reason := unfit(entry, task)) is not None:
            raise ValueError(reason)
        if self.participants is not None and not 1 <= self.participants <= len(tables):
            raise ValueError(
                f"participants: 1 to {len(tables)}, the silos; got {self.participants}"
            )
        return rehearsal(
            task,
            entry,
            self._participants(tables),
            rounds=chosen.rounds,
            radius=chosen.radius,
            clip=chosen.clip,
            ridge=self.ridge,
            asked=self.participants,
            descent=chosen.descent or USUAL_DESCENT,
            aggregation=self._aggregation(),
        )

    def _aggregation(self) -> Aggregation | None:
        if self.aggregation is None and self.bad_silos is None:
            return None
        return Aggregation(_named(Rule, self.aggregation or ""), self.bad_silos or 0)

    def _fitted(self, task: Task, weights: Floats, lines: list[Line], condition: str) -> Self:
        self._fitted_task = task
        self.weights_, self.history_, self.n_iter_ = weights, lines, len(lines)
        self.n_features_in_ = len(task.columns)
        self._learned(task, weights)
        self.privacy_ = (
            f"ε = {self.epsilon:g}, δ = {self.delta:g} ({ADJACENCY}) for everything that a silo "
            f"sends in all {len(lines)} rounds, against {PROTECTS_AGAINST}. {condition} "
            "Every further fit on the same records spends as much again."
        )
        return self


class FederatedClassifier(_Federated):
    """Linear classification of two classes, private for every record of every silo.

    bounds: (low, high) of each feature, or one pair for all.  Public knowledge, agreed before
        anybody looks at records; values beyond are clamped, missing ones (NaN) become the middle.
    epsilon, delta: the guarantee for everything that a silo sends in all rounds together, with one
        record replaced.
    algorithm, rounds: one of `silomix algorithms`, and how many rounds it may take at most; "auto"
        sets rounds, clip and radius itself.
    loss: "logistic", or "hinge" for the algorithms that need no smoothness.
    classes: the two labels, the second being the positive one; public, like the bounds.
    participants: silos that a round asks, in turns; all unless given.
    aggregation: how a round's reports become one: "mean", "bounded-mean" (unless given, where it
        can be), "geometric-median", or "trimmed-mean", which withstands so many `bad_silos`.
    clip: bound on the norm of a record's gradient; radius: that of the ball that the model is kept
        in; ridge: the factor in the public term ridge/2·‖w‖².
    scaling: "unit-ball" divides all records by the same number, "unit-sphere" each by its norm.
    bias: value of the constant feature that stands for the intercept.
    random_state: seed of who is asked and of all noise, to repeat an experiment.  Noise that can
        be repeated protects nobody; without a seed it comes from a cryptographic generator.

    After fitting: weights_ (the model, of scaled features and bias), coef_ (1, features) and
    intercept_ (1,), classes_, n_features_in_, n_iter_ (rounds), history_ (a line per round) and
    privacy_ (what is promised, to whom, on which condition).  Within the bounds
    decision_function(X) = X @ coef_.T + intercept_, up to the 16 bits that features are rounded
    to; with "unit-sphere" the same holds of scaled records.
    """

    losses = (LossName.LOGISTIC, LossName.HINGE)  # of labels −1 and +1

    def __init__(
        self,
        *,
        bounds: ArrayLike | None = None,
        epsilon: float = 2.0,
        delta: float = 1e-6,
        algorithm: str = "noisy-mb-sgd",
        rounds: int = 60,
        loss: str = "logistic",
        classes: Sequence[Any] = (0, 1),
        participants: int | None = None,
        aggregation: str | None = None,
        bad_silos: int | None = None,
        clip: float = 0.25,
        radius: float = 50.0,
        ridge: float = 0.0,
        scaling: str = "unit-ball",
        bias: float = 0.3,
        random_state: int | Sequence[int] | None = None,
    ) -> None:
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.rounds = rounds
        self.loss = loss
        self.classes = classes
        self.participants = participants
        self.aggregation = aggregation
        self.bad_silos = bad_silos
        self.clip = clip
        self.radius = radius
        self.ridge = ridge
        self.scaling = scaling
        self.bias = bias
        self.random_state = random_state

    def decision_function(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Scores (n,): above 0 for the second class."""
        return self._scores(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The class of each record (n,)."""
        chosen = (self.decision_function(X) > 0).astype(np.int64)
        return self.classes_[chosen]

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Probabilities (n, 2) of the two classes; for the logistic loss only."""
        if self.loss != LossName.LOGISTIC.value:
            raise AttributeError(f"the {self.loss} loss has no probabilities; use predict")
        positive = 0.5 + 0.5 * np.tanh(0.5 * self.decision_function(X))
        return np.column_stack([1 - positive, positive])

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """The share of records that are classified correctly."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def _task(self, features: tuple[Feature, ...]) -> Task:
        if len(self.classes) != 2:
            raise ValueError(f"classes: two labels, the positive one second; got {self.classes!r}")
        loss, scaling = _named(self.losses, self.loss), _named(Scaling, self.scaling)
        return Task(loss, "label", features, scaling, self.bias)

    def _labels(self, outcomes: NDArray[Any], whose: str) -> Floats:
        negative, positive = self.classes
        strange = outcomes[(outcomes != positive) & (outcomes != negative)]
        if len(strange):
            raise ValueError(
                f"y of {whose}: {strange.tolist()[0]!r} is none of classes={self.classes!r}; "
                "labels are public knowledge and are not collected from the silos"
            )
        labels: Floats = (outcomes == positive).astype(np.float64)
        return labels

    def _learned(self, task: Task, weights: Floats) -> None:
        self.classes_ = np.array(list(self.classes))
        if _is_linear(task):
            slopes, constant = _raw_line(task, weights)
            self.coef_, self.intercept_ = slopes[None, :], np.array([constant])

    @classmethod
    def _about_labels(cls, _: Task) -> dict[str, Any]:
        return {}


class FederatedRegressor(_Federated):
    """Linear prediction of a number, private for every record of every silo.

    label_bounds: (low, high) of the number to predict; public like the bounds of the features.
        Labels beyond count as the bounds, and no prediction lies beyond them.
    loss: "squared" for the mean, "absolute" for the median, "quantile" for the `level` (0.9: nine
        of ten labels lie below), "huber" for the mean without outliers: errors beyond `threshold`,
        in the label's unit, count in proportion to their size.
    clip: bound on the norm of a record's gradient.  An error as large as half of the bounds' width
        has a gradient of norm about ½, so that 0.25 makes errors beyond a quarter of the width
        count in proportion; where labels are very skewed and the mean is wanted, use a larger clip.

    All other arguments are those of `FederatedClassifier`.  After fitting: coef_ (features,) and
    intercept_, in the label's unit; predict(X) = X @ coef_ + intercept_, cut at the bounds.
    """

    losses = (LossName.SQUARED, LossName.HUBER, LossName.ABSOLUTE, LossName.QUANTILE)

    def __init__(
        self,
        *,
        bounds: ArrayLike | None = None,
        label_bounds: tuple[float, float] | None = None,
        epsilon: float = 2.0,
        delta: float = 1e-6,
        algorithm: str = "noisy-mb-sgd",
        rounds: int = 60,
        loss: str = "squared",
        level: float | None = None,
        threshold: float | None = None,
        participants: int | None = None,
        aggregation: str | None = None,
        bad_silos: int | None = None,
        clip: float = 0.25,
        radius: float = 10.0,
        ridge: float = 0.0,
        scaling: str = "unit-ball",
        bias: float = 0.3,
        random_state: int | Sequence[int] | None = None,
    ) -> None:
        self.bounds = bounds
        self.label_bounds = label_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.rounds = rounds
        self.loss = loss
        self.level = level
        self.threshold = threshold
        self.participants = participants
        self.aggregation = aggregation
        self.bad_silos = bad_silos
        self.clip = clip
        self.radius = radius
        self.ridge = ridge
        self.scaling = scaling
        self.bias = bias
        self.random_state = random_state

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The number of each record (n,)."""
        found = self._scores(X)
        return self._fitted_task.predict(found)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """R² on these records: 1 for exact predictions, 0 for what their mean would do.

        Where all labels are alike, 1 if each is predicted exactly and else 0.
        """
        labels, predicted = np.asarray(y, dtype=np.float64), self.predict(X)
        if labels.shape != predicted.shape:
            raise ValueError(f"y: {len(predicted)} labels expected, got {labels.shape}")
        wrong = float(np.sum((labels - predicted) ** 2))
        varies = float(np.sum((labels - labels.mean()) ** 2))
        if varies == 0:
            return float(wrong == 0)
        return 1 - wrong / varies

    def _task(self, features: tuple[Feature, ...]) -> Task:
        if self.label_bounds is None or np.shape(self.label_bounds) != (2,):
            raise ValueError(
                "label_bounds: give the public (low, high) of the number to predict; they are "
                "never measured on the records"
            )
        low, high = map(float, self.label_bounds)
        return Task(
            loss=_named(self.losses, self.loss),
            label="label",
            features=features,
            scaling=_named(Scaling, self.scaling),
            bias=self.bias,
            label_bounds=(low, high),
            level=self.level,
            threshold=self.threshold,
        )

    def _labels(self, outcomes: NDArray[Any], whose: str) -> Floats:
        labels: Floats = np.asarray(outcomes, dtype=np.float64)
        if not np.isfinite(labels).all():
            raise ValueError(f"y of {whose}: not a finite number; leave such records out")
        return labels

    def _learned(self, task: Task, weights: Floats) -> None:
        if task.label_bounds is None:
            raise ValueError("a number to predict has bounds")
        if not _is_linear(task):
            return
        slopes, constant = _raw_line(task, weights)
        low, high = task.label_bounds
        half = high / 2 - low / 2
        self.coef_, self.intercept_ = slopes * half, low / 2 + high / 2 + constant * half

    @classmethod
    def _about_labels(cls, task: Task) -> dict[str, Any]:
        return {
            "label_bounds": task.label_bounds,
            "level": task.level,
            "threshold": task.threshold,
        }


def _named(known: Iterable[Choice], name: str) -> Choice:
    by_name = {each.value: each for each in known}
    if name not in by_name:
        raise ValueError(f"{name!r} is not one of {', '.join(by_name)}")
    return by_name[name]


def _checked_bounds(bounds: ArrayLike | None) -> Floats:
    if bounds is None:
        raise ValueError(
            "bounds: give the public (low, high) of each feature, or one pair for all. They are "
            "never measured on the records: a minimum or maximum belongs to one person, and no "
            "noise would cover it"
        )
    found = np.asarray(bounds, dtype=np.float64)
    if found.ndim not in (1, 2) or found.shape[-1] != 2:
        raise ValueError(
            f"bounds: one pair (low, high), or one for each feature; got shape {found.shape}"
        )
    return found


def _values(task: Task, given: ArrayLike, what: str) -> Floats:
    values = np.asarray(given, dtype=np.float64)
    columns = len(task.columns)
    if values.ndim != 2 or values.shape[1] != columns:
        raise ValueError(f"{what}: (records, {columns}) expected, got {values.shape}")
    return values


def _is_linear(task: Task) -> bool:
    """Whether the model is linear in raw values.

    A category's raw value is its place in a list, of which no multiple means anything.
    """
    if task.interactions:
        return False
    return all(feature.kind is not FeatureKind.CATEGORY for feature in task.features)


def _raw_line(task: Task, weights: Floats) -> tuple[Floats, float]:
    """The weights (columns,) that apply to raw values, and the constant; see `Task.encode`."""
    intercept = float(weights[-1]) * task.bias
    if task.scaling is not Scaling.UNIT_BALL:
        return weights[:-1].copy(), intercept
    counts = [feature.count for feature in task.features]
    low = np.repeat([feature.low for feature in task.features], counts)
    high = np.repeat([feature.high for feature in task.features], counts)
    slopes = weights[:-1] * 2 / (high - low) / sqrt(len(low))
    return slopes, intercept - float(slopes @ (low + high)) / 2


def _fresh_bytes() -> Callable[[int], bytes]:
    from silomix_client.random_stream import fresh_keystream

    return fresh_keystream()
