"""Records of users that differ: Noble, Bellet, Dieuleveut (2022), Appendix D.2.

User i has a mean vᵢ ~ N(Bᵢ, I) with Bᵢ ~ N(0, β·I) and a model Wᵢ ~ N(uᵢ, I), bᵢ ~ N(u′ᵢ, I) with
uᵢ, u′ᵢ ~ N(0, α·I).  A record is x ~ N(vᵢ, Σ), Σ diagonal with j^(−1.2); its class is that of the
largest score x·Wᵢ + bᵢ, and with probability 0.05 another one.

α has no effect: Wᵢ and bᵢ are N(0, (1 + α)·I), and the class of the largest score does not depend
on the scale.  β has: users lie farther apart, and each has fewer classes.

The paper standardizes features on all users' records.  Here the deviations that the distribution
itself has, which are public, take their place, so nothing is fitted; then, as in the paper, each
record is divided by its norm.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from silomix_core.model.clipped_sum import Records
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task

FEATURES, CLASSES = 40, 10
_WRONG = 0.05
_FARTHEST = 5.0  # deviations; a feature beyond is clamped (one in two million)
_TRAINING = 0.8

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Population:
    """A population: how much users' models (α) and records (β) differ, users, records of each."""

    alpha: float
    beta: float
    users: int
    records: int

    @property
    def training(self) -> int:
        """The number of a user's records that are learned from; the others are for the test."""
        return round(_TRAINING * self.records)


@dataclass(frozen=True, slots=True)
class SyntheticSplit:
    """Every user's records to learn from, and all users' records to test with."""

    silos: tuple[Records, ...]
    test: Records

    def accuracy(self, model: Floats) -> float:
        """The accuracy in percent; also the mean over users, who all have as many records."""
        scores = self.test.features @ model.reshape(CLASSES, -1).T
        return 100 * float(np.mean(scores.argmax(axis=1) == np.rint(self.test.labels * UNIT)))


def task(beta: float) -> Task:
    spreads = _FARTHEST * np.sqrt(_variances() + 1 + beta)
    features = tuple(
        Feature(f"x{number}", -float(each), float(each), 0.0)
        for number, each in enumerate(spreads, start=1)
    )
    return Task(
        LossName.MULTINOMIAL, "class", features, Scaling.UNIT_SPHERE, bias=1.0, classes=CLASSES
    )


def draw(population: Population, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw values (users, records, features) and classes (users, records)."""
    users, records = population.users, population.records
    spread, models = sqrt(1 + population.beta), sqrt(1 + population.alpha)
    means = spread * rng.standard_normal((users, 1, FEATURES))
    weights = models * rng.standard_normal((users, FEATURES, CLASSES))
    offsets = models * rng.standard_normal((users, 1, CLASSES))
    noise = rng.standard_normal((users, records, FEATURES)) * np.sqrt(_variances())
    values: Floats = means + noise
    classes = (values @ weights + offsets).argmax(axis=2)
    moved = rng.integers(1, CLASSES, size=classes.shape)
    wrong = rng.random(classes.shape) < _WRONG
    labels: Floats = np.where(wrong, (classes + moved) % CLASSES, classes).astype(np.float64)
    return values, labels


def split(population: Population, seed: int) -> SyntheticSplit:
    values, labels = draw(population, np.random.default_rng([seed, 11]))
    known, first = task(population.beta), population.training
    encoded = [
        Records(known.encode(mine), known.encode_labels(classes))
        for mine, classes in zip(values, labels, strict=True)
    ]
    return SyntheticSplit(
        silos=tuple(Records(each.features[:first], each.labels[:first]) for each in encoded),
        test=Records(
            np.concatenate([each.features[first:] for each in encoded]),
            np.concatenate([each.labels[first:] for each in encoded]),
        ),
    )


def _variances() -> Floats:
    return np.arange(1, FEATURES + 1, dtype=np.float64) ** -1.2
