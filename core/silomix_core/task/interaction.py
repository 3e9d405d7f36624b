"""Interactions: products of two features that a study declares before anybody looks at records.

A study protocol names them where the effect of one feature may depend on another.  Each coordinate
that one feature becomes is multiplied by each of the other's.  The coordinates of a feature have a
norm of at most 1, so all products of two features together have, too, whatever a record holds: in
the record they weigh as one value more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silomix_core.task.feature import Feature

Floats = NDArray[np.float64]
Pair = tuple[Feature, Feature]
_MOST = 10_000  # so that nobody who looks at a study waits for the list of them


@dataclass(frozen=True, slots=True)
class Interaction:
    """The names of two features; a product has no order, but the study's is kept for its names."""

    first: str
    second: str

    def __post_init__(self) -> None:
        if self.first == self.second:
            raise ValueError(f"{self._named} is one of a feature with itself; name two features")

    @property
    def _named(self) -> str:
        return f"the interaction {self.first!r:.100} × {self.second!r:.100}"

    def of(self, features: Mapping[str, Feature]) -> Pair:
        """The two features themselves, or ValueError if one is unknown."""
        for name in (self.first, self.second):
            if name not in features:
                raise ValueError(f"{self._named}: no feature is called {name!r:.100}")
        return features[self.first], features[self.second]


def pairs(interactions: Sequence[Interaction], features: Sequence[Feature]) -> list[Pair]:
    """The features of each interaction; ValueError if one is unknown or a pair is there twice."""
    if len(interactions) > _MOST:
        raise ValueError(f"a task has at most {_MOST} interactions")
    named = {feature.name: feature for feature in features}
    found = [interaction.of(named) for interaction in interactions]
    if len({frozenset((each.first, each.second)) for each in interactions}) < len(found):
        raise ValueError("an interaction is listed twice, in the same order or the other")
    return found


def product_names(pair: Pair) -> list[str]:
    first, second = pair
    return [f"{one} × {other}" for one in first.coordinates for other in second.coordinates]


def products(first: Floats, second: Floats) -> Floats:
    """The products (n, a·b) of coordinates (n, a) and (n, b), each with each."""
    width = first.shape[1] * second.shape[1]
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), width)
