"""Smoothing of losses with kinks: how a silo's residual changes.

Which smoothing a silo applies follows from the study's algorithm (`Algorithm.smoothing`) and
nothing else; it stands between the score of a record and its clipped residual.  For a linear
model both of the papers' ways act on the score alone, so a record's gradient stays residual·z, its
norm in closed form, its bound that of the loss itself.

**Moreau** (Nesterov 2005; Gao, Lowy, Zhou, Wright 2024, Lemma E.1).  The envelope
f_β(w) = min_v f(v) + β/2·‖w − v‖² is β-smooth and at most L²/(2β) below f.  Its gradient is
β(w − v) at the minimizer v, which lies along z: v = w − (ρ/β)·z, where ρ is a subgradient of the
loss at the score s − ρ·a, a = ‖z‖²/β.  For a loss with one kink, at y, with slopes −below and
+above, this has the solution ρ = (s − y)/a cut to [−below, above]: the kink becomes a ramp of that
width.  (The prox is over all of ℝᵈ, not W: then |ρ| never exceeds the loss's own bound.)

**Convolution** (Kulkarni, Lee, Liu 2021; Gao et al. 2024, Def. D.1, D.3).  The gradient at w + v, v
uniform in a ball of radius r, another v for each record and round: an unbiased estimate of the
gradient of E f(w + v), which is L√d/r-smooth and at most L·r above f.  The score moves by r·‖z‖
times the first coordinate of a uniform point of the d-dimensional unit ball: one random number for
each record, from the round's random bytes.  Privacy does not depend on it: what a record adds is
bounded whatever v is, and v is drawn without a look at the records.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.task.losses import Loss

Floats = NDArray[np.float64]

_COORDINATES = 2**16  # equally likely values that stand for the first coordinate
_STEPS = 2**14  # of the integral that these values are read off
_FARTHEST_DEVIATION = 9.0  # of a standard normal; a coordinate of the ball has lighter tails
_NARROWEST = 1e-60  # so that no score over a width overflows


class Smoothing(Protocol):
    """A way to smooth scores and residuals: a record has a width, and a shift in each round."""

    def widths(self, norms: Floats, /) -> Floats:
        """The width to which each record's kink is spread, from the norms ‖z‖ (n,) of features."""
        ...

    def shifts(self, records: int, random_bytes: RandomBytes | None, /) -> Floats | None:
        """The shift of each record's score in this round, in widths; None where nothing moves."""
        ...

    def residual(self, loss: Loss, scores: Floats, labels: Floats, widths: Floats, /) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Moreau:
    """The gradient of the Moreau envelope of the loss, `smoothness` being its β."""

    smoothness: float

    def widths(self, norms: Floats, /) -> Floats:
        return np.maximum(norms**2 / self.smoothness, _NARROWEST)

    def shifts(self, _records: int, _random_bytes: RandomBytes | None, /) -> Floats | None:
        return None

    def residual(self, loss: Loss, scores: Floats, labels: Floats, widths: Floats, /) -> Floats:
        if loss.slopes is None:
            raise ValueError("a loss without a kink needs no Moreau envelope")
        below, above = loss.slopes(labels)
        result: Floats = np.clip((scores - labels) / widths, -below, above)
        return result


@dataclass(frozen=True, slots=True)
class Convolution:
    """The gradient at a random point, at most `radius` away in ℝᵈ, d being the dimension."""

    radius: float
    dimension: int

    def widths(self, norms: Floats, /) -> Floats:
        return self.radius * norms

    def shifts(self, records: int, random_bytes: RandomBytes | None, /) -> Floats | None:
        if random_bytes is None:
            raise ValueError("smoothing by convolution needs the round's random bytes")
        drawn = np.frombuffer(random_bytes(8 * records), dtype="<u8") >> np.uint64(48)
        return ball_coordinates(self.dimension).take(drawn.view(np.int64))

    def residual(self, loss: Loss, scores: Floats, labels: Floats, _widths: Floats, /) -> Floats:
        return loss.residual(scores, labels)


@lru_cache(maxsize=4)
def ball_coordinates(dimension: int) -> Floats:
    """2¹⁶ equally likely values of the first coordinate of a uniform point of the unit ball.

    Its density is proportional to (1 − x²)^((d−1)/2).  The values are the quantiles in the middle
    of 2¹⁶ equal parts, read off an integral by the trapezoidal rule, and symmetric around 0.
    """
    reach = min(1.0, _FARTHEST_DEVIATION / sqrt(dimension))
    places = np.linspace(0.0, reach, _STEPS + 1)
    density = (1.0 - places**2) ** ((dimension - 1) / 2)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    half = _COORDINATES // 2
    upper = np.interp((np.arange(half) + 0.5) / half, below / below[-1], places)
    return np.concatenate([-upper[::-1], upper])
