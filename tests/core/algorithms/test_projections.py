"""Projections: the nearest point, of a ball and of what two balls have in common."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.algorithms.projections import Ball, Lens
from support.privacy_checks import Floats

POINTS = arrays(np.float64, 3, elements=st.floats(-20, 20))
SAMPLES = np.random.default_rng(7).normal(size=(400, 3))


def inside(lens: Lens) -> Floats:
    """Points of a lens, many of them near its rim."""
    spread = lens.second.center + SAMPLES * lens.second.radius
    return np.array(
        [point for point in spread if point in lens.first and point in lens.second]
        + [lens.second.center]
    )


@given(POINTS, POINTS, st.floats(0.1, 10), st.floats(0.1, 10))
def test_the_projection_on_a_lens_is_in_it_and_no_point_of_it_is_nearer(
    point: Floats, towards: Floats, first: float, second: float
) -> None:
    center = Ball(np.zeros(3), first).nearest(towards)
    lens = Lens(Ball(np.zeros(3), first), Ball(center, second))
    nearest = lens.nearest(point)
    for ball in (lens.first, lens.second):
        assert np.linalg.norm(nearest - ball.center) <= ball.radius * (1 + 1e-6)
    distance = np.linalg.norm(point - nearest)
    others = np.linalg.norm(inside(lens) - point, axis=1)
    assert distance <= others.min() + 1e-6 * (1 + distance)


@given(POINTS, st.floats(0.1, 10))
def test_a_point_of_the_lens_stays_where_it_is(point: Floats, radius: float) -> None:
    lens = Lens(Ball(np.zeros(3), radius), Ball(np.zeros(3), radius / 2))
    nearest = lens.nearest(point)
    assert np.allclose(lens.nearest(nearest), nearest)


def test_one_projection_after_the_other_would_not_be_the_nearest_point() -> None:
    """Two discs that meet in (±0.6, 0.8): from above, the nearest point is where they meet."""
    lens = Lens(Ball(np.array([0.0, 0.0]), 1.0), Ball(np.array([0.0, 1.6]), 1.0))
    point = np.array([3.0, 0.8])
    assert np.allclose(lens.nearest(point), [0.6, 0.8])
    twice = lens.second.nearest(lens.first.nearest(point))
    assert np.linalg.norm(twice - point) > np.linalg.norm(lens.nearest(point) - point) + 1e-3
