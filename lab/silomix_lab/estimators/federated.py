"""What both estimators do: make a study of their arguments, run it, and hold its model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from silomix_core.accounting.events import ADJACENCY, PrivacyTarget
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import Aggregation, Rule
from silomix_core.simulation.one_process import Rehearsal, rehearsal
from silomix_core.study.defaults import chosen, loudness, usual_minimum
from silomix_core.study.derive import participants_of, unfit
from silomix_core.study.schedule import Draw
from silomix_core.study.specification import Batching, Specification
from silomix_core.study.weighting import Weighting
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Task

from silomix_lab.datasets.tables import Floats, SiloTable
from silomix_lab.demo.summary import PROTECTS_AGAINST
from silomix_lab.estimators.arguments import checked_bounds, feature_values, named
from silomix_lab.history import Callback, Line, round_line, scored
from silomix_lab.scoring import scores

Labelled = tuple[ArrayLike, ArrayLike]


class NotFitted(ValueError, AttributeError):
    """A model was asked for before there was one."""


@dataclass(kw_only=True, eq=False, repr=False)
class Federated(ABC):
    """The arguments that both estimators take, and the model that a study made of them has."""

    losses: ClassVar[tuple[LossName, ...]]
    bounds: ArrayLike | None = None
    epsilon: float = 2.0
    delta: float = 1e-6
    algorithm: str = "noisy-mb-sgd"
    rounds: int = 60
    loss: str = LossName.LOGISTIC.value
    weights: str = Weighting.RECORDS.value
    participants: int | None = None
    draw: str = Draw.TURNS.value
    aggregation: str | None = None
    bad_silos: int | None = None
    clip: float = 0.25
    radius: float = 50.0
    ridge: float = 0.0
    scaling: str = "unit-ball"
    bias: float = 0.3
    random_state: int | Sequence[int] | None = None

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
            from silomix_lab.local_study import run_here
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"fit_over_network needs {missing.name}; install silomix[demo]"
            ) from missing
        if self.random_state is not None:
            raise ValueError("random_state: a silo's process has no seeded noise; use None, or fit")
        task, tables = self._tables(silos)
        held_out = None if holdout is None else self._table(task, holdout, "the hold-out")
        made = self._rehearsal(task, tables)
        minimum = usual_minimum(made.setting.participants)
        specification = replace(
            self._specification(task, tables), name="from Python", batching=Batching(minimum)
        )
        with TemporaryDirectory(prefix="silomix-") as temporary:
            place = Path(folder) if folder is not None else Path(temporary) / "study"
            lines, weights = run_here(
                place, task, tables, specification, mixes=mixes, holdout=held_out, callback=callback
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
        some = agreed.participants < len(agreed.silos)
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
            weights=agreed.weighting.value,
            participants=agreed.participants if some else None,
            draw=agreed.draw.value if some else Draw.TURNS.value,
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
        return scores(self.weights_, feature_values(self._fitted_task, X, "X"), self._fitted_task)

    # What scikit-learn asks of an estimator -----------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 scikit-learn's
        """The arguments of the constructor, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; takes effect with the next fit."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = [
            f"{each.name}={value!r:.60}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not each.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    # From arguments to a study ------------------------------------------------------------------

    def _tables(self, silos: Sequence[Labelled]) -> tuple[Task, list[SiloTable]]:
        """The task, and each silo's records in the form that the command line uses."""
        if not len(silos):
            raise ValueError("silos: a list of (X, y), at least one")
        bounds = checked_bounds(self.bounds)
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
        values, outcomes = (
            feature_values(task, labelled[0], f"X of {whose}"),
            np.asarray(labelled[1]),
        )
        if outcomes.shape != (len(values),):
            raise ValueError(f"y of {whose}: {len(values)} labels expected, got {outcomes.shape}")
        return SiloTable(values, self._labels(outcomes, whose))

    def _specification(self, task: Task, tables: Sequence[SiloTable]) -> Specification:
        """The study that the arguments ask for; "auto" has numbers of its own."""
        asked = Specification(
            algorithm=self.algorithm,
            most_rounds=self.rounds,
            radius=self.radius,
            clip=self.clip,
            target=PrivacyTarget(self.epsilon, self.delta),
            participants=self.participants,
            ridge=self.ridge,
            draw=named(Draw, self.draw),
            named_weighting=named(Weighting, self.weights),
            named_aggregation=self._aggregation(),
        )
        loud = loudness(participants_of(asked, _sizes(tables)), asked)
        return chosen(asked, task, loud)

    def _rehearsal(self, task: Task, tables: Sequence[SiloTable]) -> Rehearsal:
        specification = self._specification(task, tables)
        if (reason := unfit(algorithm(specification.algorithm), task)) is not None:
            raise ValueError(reason)
        if self.participants is not None and not 1 <= self.participants <= len(tables):
            raise ValueError(
                f"participants: 1 to {len(tables)}, the silos; got {self.participants}"
            )
        return rehearsal(task, specification, participants_of(specification, _sizes(tables)))

    def _aggregation(self) -> Aggregation | None:
        if self.aggregation is None and self.bad_silos is None:
            return None
        return Aggregation(named(Rule, self.aggregation or ""), self.bad_silos or 0)

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


def _sizes(tables: Sequence[SiloTable]) -> list[int]:
    return [len(each) for each in tables]


def _fresh_bytes() -> Callable[[int], bytes]:
    from silomix_client.random_stream import fresh_keystream

    return fresh_keystream()
