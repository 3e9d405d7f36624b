"""What a study predicts from what: features with public bounds, and a label.

`Task.encode` is where a record enters the mathematics: one for each person.  It is a *total*
function of one record (values are clamped to the public bounds, missing ones replaced by the
declared value), fits nothing on data, and gives integers: feature vectors of Euclidean norm at
most `UNIT` per unit of norm, so that everything after it can be summed exactly.  A record becomes
the same integers whatever other records there are.
`Task.encode_labels` does the same to the label: a class becomes −1 or +1, a number is clamped to
its public bounds and scaled to [−1, 1]; one of several classes stays the integer it is.
"""

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.elementary import row_sums
from silomix_core.task.feature import MOST_COLUMNS as _MOST_COLUMNS
from silomix_core.task.feature import Combine, FeatureKind, check_places
from silomix_core.task.feature import Feature as Feature
from silomix_core.task.goal import Goal
from silomix_core.task.interaction import Interaction, Pair, pairs, product_names, products
from silomix_core.task.losses import LossName

FEATURE_BITS = 16
UNIT = 2**FEATURE_BITS

Floats = NDArray[np.float64]


class Scaling(Enum):
    """The way in which bounded features become a vector of norm at most one."""

    UNIT_BALL = "unit-ball"  # [low, high] → [−1, 1]/√(number of features)
    UNIT_SPHERE = "unit-sphere"  # the same, then each record divided by its own norm


@dataclass(frozen=True, slots=True)
class Task(Goal):
    """A goal over features and a label; the model has one weight per feature and a bias.

    Rows that agree in the column `person` are one person and become one record, by each feature's
    rule and `label_combine`; the column `time` orders them.  Without it a row is a person.
    `label_missing` is the label of a person of whom no row has one.

    `interactions` are products of two features, each with weights of its own.
    """

    label: str
    features: tuple[Feature, ...]
    scaling: Scaling
    bias: float
    _: KW_ONLY
    person: str | None = None
    time: str | None = None
    label_combine: Combine | None = None
    label_missing: float | None = None
    label_unit: str = ""
    label_codes: tuple[str, ...] = ()
    label_concepts: tuple[int, ...] = ()
    interactions: tuple[Interaction, ...] = ()

    def __post_init__(self) -> None:
        self.check(self.label)
        self._check_people()
        if not self.features:
            raise ValueError("a task needs at least one feature")
        if self.width > _MOST_COLUMNS + 1:
            raise ValueError(f"the features have more than {_MOST_COLUMNS} columns in all")
        if self.dimension > _MOST_COLUMNS + 1:
            raise ValueError(f"the model has more than {_MOST_COLUMNS} weights")
        if self._has_repeated_columns():
            raise ValueError("feature names must differ, those of counted columns (x_1) too")
        if any(feature.has_column(self.label) for feature in self.features):
            raise ValueError(f"the label {self.label!r} is also listed as a feature")
        if not 0 < self.bias <= 1:
            raise ValueError("bias must be above 0 and at most 1")

    def _check_people(self) -> None:
        """Refuse rules that combine rows without a person column, or order them without a time."""
        rules = [(f"feature {each.name!r}", each.combine, each.rule) for each in self.features]
        rules.append(("the label", self.label_combine, self.label_rule_of_rows))
        for what, declared, rule in rules:
            if self.person is None and declared is not None:
                raise ValueError(
                    f"{what}: combine is about several rows of one person; name the column that "
                    "tells persons apart (person in [task])"
                )
            if self.person is not None and self.time is None and rule.needs_time:
                raise ValueError(
                    f"{what}: of a person's rows the {rule.value} one is asked for; name the "
                    "column that orders them (time in [task]), or choose another combine"
                )
        if self.person is None and self.time is not None:
            raise ValueError("time orders the rows of one person; name its column (person) too")
        names = [name for name in (self.person, self.time) if name is not None]
        if len({*names, self.label}) <= len(names):
            raise ValueError("person, time and label must be different columns")
        for name in names:
            if any(feature.has_column(name) for feature in self.features):
                raise ValueError(f"{name!r} is the person or time, and also listed as a feature")
        if self.label_combine is not None and self.label_combine not in self.label_combines:
            known = ", ".join(each.value for each in self.label_combines)
            raise ValueError(
                f"a label that is {self.label_rule} cannot be combined by "
                f"{self.label_combine.value!r}; use one of {known}"
            )
        if self.label_unit and not self.loss.is_regression:
            raise ValueError("label_unit belongs to a label that is a number")
        if self.label_missing is not None and not self.are_labels(np.array(self.label_missing)):
            raise ValueError(f"label_missing: a label must be {self.label_rule}")
        check_places("the label", self.label_codes, self.label_concepts)

    def _has_repeated_columns(self) -> bool:
        """Return whether two features have a column of the same name.

        Columns x_1 … x_n of two counted features differ as their names do; but one of them may be
        another feature's plain name.
        """
        features = {feature.name: feature for feature in self.features}
        if len(features) < len(self.features):
            return True
        plain = [feature.name for feature in self.features if feature.count == 1]
        stems = ((name, name.rpartition("_")[0]) for name in plain)
        return any(stem in features and features[stem].has_column(name) for name, stem in stems)

    @property
    def width(self) -> int:
        """The number of values in an encoded record: its coordinates and the bias."""
        own = sum(feature.width for feature in self.features)
        return own + sum(one.width * other.width for one, other in self.pairs) + 1

    @property
    def pairs(self) -> list[Pair]:
        """The features of each interaction."""
        return pairs(self.interactions, self.features) if self.interactions else []

    @property
    def _values(self) -> int:
        """The number of values that share the norm of a record: raw ones and products of two."""
        own = sum(feature.count for feature in self.features)
        return own + sum(one.count * other.count for one, other in self.pairs)

    @property
    def dimension(self) -> int:
        """The number of weights of the model."""
        outputs = self.classes or 1
        if self.hidden is None:
            return outputs * self.width
        return self.hidden * self.width + outputs * (self.hidden + 1)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the raw values, as tables have them."""
        return tuple(column for feature in self.features for column in feature.columns)

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The names of the coordinates of an encoded record, without its bias."""
        own = [name for feature in self.features for name in feature.coordinates]
        return (*own, *(name for pair in self.pairs for name in product_names(pair)))

    @property
    def label_combines(self) -> tuple[Combine, ...]:
        """The rules that can make one of a person's several labels; the first is the default."""
        by_time = (Combine.LAST, Combine.FIRST)
        if self.loss.is_regression:
            others = (Combine.MEAN, Combine.MIN, Combine.MAX, Combine.SUM, Combine.COUNT)
            return (*by_time, *others)
        if self.classes is not None:
            return (*by_time, Combine.MIN, Combine.MAX)
        return (*by_time, Combine.ANY)

    @property
    def label_rule_of_rows(self) -> Combine:
        return self.label_combine or self.label_combines[0]

    @property
    def longest(self) -> float:
        """Bound on the norm of an encoded record, its bias included."""
        return sqrt(1 + self.bias**2)

    @property
    def lipschitz(self) -> float:
        """Bound on the norm of a record's gradient, before any clipping.

        Infinite for a neural net: there only the clip bounds it.
        """
        if self.hidden is not None:
            return inf
        if self.loss is LossName.MULTINOMIAL:
            return sqrt(2) * self.longest
        return self.loss_function.largest_residual * self.longest

    @property
    def smoothness(self) -> float:
        """Bound on how fast a record's gradient changes; infinite for kinks and neural nets."""
        if self.hidden is not None:
            return inf
        if self.loss is LossName.MULTINOMIAL:
            return 0.5 * self.longest**2
        return self.loss_function.smoothness * self.longest**2

    @property
    def label_rule(self) -> str:
        """The rule for what a label must be, in words for people."""
        if self.classes is not None:
            return f"a whole number from 0 to {self.classes - 1}"
        return "a number" if self.loss.is_regression else "0 or 1"

    def are_labels(self, values: Floats) -> NDArray[np.bool_]:
        """A mask of the values that can be labels; values beyond the bounds can."""
        if self.loss.is_regression:
            return np.isfinite(values)
        return np.isin(values, np.arange(self.classes or 2))

    def encode_labels(self, values: Floats) -> Floats:
        """Labels (n,) as losses and records take them: in [−1, 1], multiples of 1/UNIT."""
        if self.classes is not None:
            index: Floats = values / UNIT
            return index
        if self.label_bounds is None:
            return 2 * values - 1
        low, high = self.label_bounds
        scaled = np.clip((2 * np.clip(values, low, high) - (low + high)) / (high - low), -1.0, 1.0)
        encoded: Floats = np.rint(scaled * UNIT) / UNIT
        return encoded

    def predict(self, scores: Floats) -> Floats:
        """The predicted labels in the study's own terms: classes, or numbers within the bounds."""
        if self.classes is not None:
            highest: Floats = scores.argmax(axis=1).astype(np.float64)
            return highest
        if self.label_bounds is None:
            return (scores > 0).astype(np.float64)
        low, high = self.label_bounds
        return low / 2 + high / 2 + np.clip(scores, -1.0, 1.0) * (high / 2 - low / 2)

    def encode(self, values: Floats) -> Floats:
        """Integer feature vectors (n, width) of raw values (n, columns); NaN means missing.

        A category is one value and several coordinates, of which at most one is not 0: it weighs
        in the norm as a number does, and so do the products of two values, whose coordinates come
        after the features'.

        Integers are kept as float64, in which their sums and products stay exact below 2⁵³.
        """
        scaled = self._scaled(values)
        if self.scaling is Scaling.UNIT_BALL:
            scaled /= sqrt(self._values)
        else:
            # by a power of two first, which is exact: squares of tiny numbers are 0 or far off
            _, exponents = np.frexp(np.abs(scaled).max(axis=1))
            scaled = np.ldexp(scaled, -exponents[:, None])
            norms = np.sqrt(row_sums(scaled * scaled))
            scaled /= np.where(norms > 0, norms, 1.0)[:, None]
        encoded = np.empty((len(values), self.width))
        np.rint(scaled * UNIT, out=encoded[:, :-1])
        encoded[:, -1] = round(self.bias * UNIT)
        return encoded

    def _scaled(self, values: Floats) -> Floats:
        """The coordinates (n, width − 1); those of each value together have a norm of at most 1."""
        counts = [feature.count for feature in self.features]
        low = np.repeat([feature.low for feature in self.features], counts)
        high = np.repeat([feature.high for feature in self.features], counts)
        missing = np.repeat([feature.missing for feature in self.features], counts)
        filled = np.where(np.isnan(values), missing, np.clip(values, low, high))
        # clamped again: for narrow bounds far from 0 the difference is all rounding error
        scaled: Floats = np.clip((2 * filled - (low + high)) / (high - low), -1.0, 1.0)
        if not self.interactions and all(
            feature.kind is not FeatureKind.CATEGORY for feature in self.features
        ):
            return scaled
        parts: dict[str, Floats] = {}
        start = 0
        for feature in self.features:
            part = scaled[:, start : start + feature.count]
            if feature.kind is FeatureKind.CATEGORY:
                places = np.arange(len(feature.categories))
                part = (filled[:, [start]] == places).astype(np.float64)
            parts[feature.name] = part
            start += feature.count
        crossed = [products(parts[each.first], parts[each.second]) for each in self.interactions]
        return np.hstack([*parts.values(), *crossed])
