"""The regions that a model is kept in: balls, and the common part of two of them."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from silomix_core.algorithms.base import Point

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Ball:
    center: Point
    radius: float

    def __contains__(self, point: Point) -> bool:
        return bool(np.linalg.norm(point - self.center) <= self.radius * (1 + _TINY))

    def nearest(self, point: Point) -> Point:
        """The nearest point of the ball."""
        offset = point - self.center
        norm = float(np.linalg.norm(offset))
        return point if norm <= self.radius else self.center + offset * (self.radius / norm)


@dataclass(frozen=True, slots=True)
class Lens:
    """The common part of two balls, of which the first contains the center of the second."""

    first: Ball
    second: Ball

    def nearest(self, point: Point) -> Point:
        """The nearest point of the common part: not that of one ball, then of the other."""
        if point in self.first and point in self.second:
            return point
        for one, other in ((self.first, self.second), (self.second, self.first)):
            if (onto := one.nearest(point)) in other:
                return onto
        return self._on_the_rim(point)

    def _on_the_rim(self, point: Point) -> Point:
        """The nearest point of the sphere in which the two surfaces meet."""
        axis = self.second.center - self.first.center
        distance = float(np.linalg.norm(axis))
        axis = axis / distance
        along = (distance**2 + self.first.radius**2 - self.second.radius**2) / (2 * distance)
        middle = self.first.center + along * axis
        rim = sqrt(max(0.0, self.first.radius**2 - along**2))
        offset = point - middle
        offset = offset - (offset @ axis) * axis
        norm = float(np.linalg.norm(offset))
        return middle if norm <= _TINY * rim else middle + offset * (rim / norm)
