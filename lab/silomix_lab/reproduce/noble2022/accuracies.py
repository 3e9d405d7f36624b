"""The accuracies of the trials, and the best radius of each method."""

from dataclasses import dataclass

import numpy as np

from silomix_lab.parallel import Spread
from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.noble2022.sizes_and_methods import NobleMethod, NobleTrial, Size
from silomix_lab.reproduce.noble2022.trial import points


@dataclass(frozen=True, slots=True)
class Best:
    """A method's radius with the highest mean accuracy, and its accuracies by seed."""

    radius: float
    accuracies: list[float]


@dataclass(frozen=True, slots=True)
class NobleResults:
    """The accuracies in percent, by the key of their trial."""

    accuracies: dict[str, float]
    trials: int

    def floor(self, size: Size, level: float) -> list[float]:
        return [self.accuracies[NobleTrial(size, level, seed).key] for seed in self._seeds]

    def all(self, size: Size, level: float, method: NobleMethod, radius: float) -> list[float]:
        """The accuracies of a method and radius, in the order of seeds."""
        return [
            self.accuracies[NobleTrial(size, level, seed, method, radius).key]
            for seed in self._seeds
        ]

    def best(self, size: Size, level: float, method: NobleMethod) -> Best:
        found = [Best(radius, self.all(size, level, method, radius)) for radius in method.radii]
        return max(found, key=lambda each: float(np.mean(each.accuracies)))

    def curve(self, size: Size, level: float, method: NobleMethod) -> list[tuple[int, Spread]]:
        radius = self.best(size, level, method).radius
        mine = [NobleTrial(size, level, seed, method, radius) for seed in self._seeds]
        return [
            (number, Spread.of([self.accuracies[trial.key_at(number)] for trial in mine]))
            for number in points(size.rounds_of(method.local_steps))
        ]

    def gap(
        self, size: Size, level: float, one: NobleMethod, other: NobleMethod
    ) -> synthetic.Floats:
        """The other's accuracy minus that of the one, seed by seed: below 0 if the one is better.

        Each method has its own best radius.
        """
        first, second = (self.best(size, level, each).accuracies for each in (one, other))
        differences: synthetic.Floats = np.array(second) - np.array(first)
        return differences

    @property
    def _seeds(self) -> range:
        return range(1, self.trials + 1)
