"""What a study predicts from what: features with public bounds, and a label.

`Task.encode` is where a record enters the mathematics.  It is a *total* function of one record
(values are clamped to the public bounds, missing ones replaced by the declared value), fits
nothing on data, and gives integers: feature vectors of Euclidean norm at most `UNIT` per unit of
norm, so that everything after it can be summed exactly.
"""

import re
from dataclasses import dataclass
from enum import Enum
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.losses import LossName, loss

FEATURE_BITS = 16
UNIT = 2**FEATURE_BITS
_MOST_COLUMNS = 2**21
_COLUMN_NUMBER = re.compile("[1-9][0-9]{0,6}")
_FARTHEST_BOUND = 1e300  # beyond, differences of bounds overflow


class Scaling(Enum):
    """How bounded features become a vector of norm at most one."""

    UNIT_BALL = "unit-ball"  # [low, high] → [−1, 1]/√(number of features)
    UNIT_SPHERE = "unit-sphere"  # the same, then each record divided by its own norm


@dataclass(frozen=True, slots=True)
class Feature:
    """A column with bounds that are public knowledge, never measured on the data.

    With `count` above 1 it stands for that many like columns, name_1 … name_count.
    """

    name: str
    low: float
    high: float
    missing: float
    count: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a feature needs a name")
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise ValueError(f"feature {self.name!r}: low must be below high, both finite")
        if max(-self.low, self.high) > _FARTHEST_BOUND:
            raise ValueError(f"feature {self.name!r}: bounds must lie within ±{_FARTHEST_BOUND:g}")
        if not self.low <= self.missing <= self.high:
            raise ValueError(f"feature {self.name!r}: missing must lie between low and high")
        if not 1 <= self.count <= _MOST_COLUMNS:
            raise ValueError(f"feature {self.name!r}: count must lie between 1 and {_MOST_COLUMNS}")

    @property
    def columns(self) -> tuple[str, ...]:
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}_{index}" for index in range(1, self.count + 1))

    def has_column(self, column: str) -> bool:
        """Whether `columns` lists it, told without writing millions of names."""
        if self.count == 1:
            return column == self.name
        stem, _, number = column.rpartition("_")
        if stem != self.name or not _COLUMN_NUMBER.fullmatch(number):
            return False
        return int(number) <= self.count


@dataclass(frozen=True, slots=True)
class Task:
    """A loss over features and a 0/1 label; the model has one weight per feature and a bias."""

    loss: LossName
    label: str
    features: tuple[Feature, ...]
    scaling: Scaling
    bias: float

    def __post_init__(self) -> None:
        if not self.features:
            raise ValueError("a task needs at least one feature")
        if self.dimension > _MOST_COLUMNS + 1:
            raise ValueError(f"the features have more than {_MOST_COLUMNS} columns in all")
        if self._has_repeated_columns():
            raise ValueError("feature names must differ, those of counted columns (x_1) too")
        if any(feature.has_column(self.label) for feature in self.features):
            raise ValueError(f"the label {self.label!r} is also listed as a feature")
        if not 0 < self.bias <= 1:
            raise ValueError("bias must be above 0 and at most 1")

    def _has_repeated_columns(self) -> bool:
        """x_1 … x_n of two features differ as their names do; one of them may meet a plain name."""
        features = {feature.name: feature for feature in self.features}
        if len(features) < len(self.features):
            return True
        plain = [feature.name for feature in self.features if feature.count == 1]
        stems = ((name, name.rpartition("_")[0]) for name in plain)
        return any(stem in features and features[stem].has_column(name) for name, stem in stems)

    @property
    def dimension(self) -> int:
        return sum(feature.count for feature in self.features) + 1

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for feature in self.features for column in feature.columns)

    @property
    def longest(self) -> float:
        """Bound on the norm of an encoded record, its bias included."""
        return sqrt(1 + self.bias**2)

    @property
    def lipschitz(self) -> float:
        """Bound on the norm of a record's gradient, before any clipping."""
        return loss(self.loss).largest_residual * self.longest

    @property
    def smoothness(self) -> float:
        """Bound on how fast a record's gradient changes; infinite for a loss with kinks."""
        return loss(self.loss).smoothness * self.longest**2

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Integer feature vectors (n, dimension) of raw values (n, columns); NaN means missing.

        Integers are kept as float64, in which their sums and products stay exact below 2⁵³.
        """
        counts = [feature.count for feature in self.features]
        low = np.repeat([feature.low for feature in self.features], counts)
        high = np.repeat([feature.high for feature in self.features], counts)
        missing = np.repeat([feature.missing for feature in self.features], counts)
        filled = np.where(np.isnan(values), missing, np.clip(values, low, high))
        # clamped again: for narrow bounds far from 0 the difference is all rounding error
        scaled = np.clip((2 * filled - (low + high)) / (high - low), -1.0, 1.0)
        if self.scaling is Scaling.UNIT_BALL:
            scaled /= sqrt(self.dimension - 1)
        else:
            norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
            scaled /= np.where(norms > 0, norms, 1.0)[:, None]
        encoded = np.empty((len(values), self.dimension))
        np.rint(scaled * UNIT, out=encoded[:, :-1])
        encoded[:, -1] = round(self.bias * UNIT)
        return encoded
