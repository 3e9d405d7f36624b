"""Functions that are the same bits wherever a value stands, and near what they are called."""

from collections.abc import Callable
from math import exp, fsum, inf
from math import tanh as reference_tanh

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from silomix_core.elementary import exponential, falling, row_sums, tanh

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]

FUNCTIONS: dict[str, Function] = {"exponential": exponential, "falling": falling, "tanh": tanh}
EVERY = pytest.mark.parametrize("name", sorted(FUNCTIONS))
VALUES = st.floats(-70, 70) | st.floats(-1e-3, 1e-3) | st.sampled_from([0.0, -0.0, inf, -inf])


def test_they_are_what_they_are_called() -> None:
    values = np.concatenate([np.linspace(-60, 60, 40_001), np.geomspace(1e-300, 1, 1001)])
    exact = np.array([exp(value) for value in values])
    assert exponential(values) == pytest.approx(exact, rel=3e-12, abs=0)
    assert falling(values) == pytest.approx(1 / (1 + exact), rel=3e-12, abs=0)
    assert tanh(values) == pytest.approx([reference_tanh(value) for value in values], abs=3e-12)


def test_they_end_at_sixty_and_are_exact_in_the_middle() -> None:
    far = np.array([-inf, -1e308, -60.0, 0.0, 60.0, 1e308, inf])
    assert exponential(far)[:3].tolist() == [exponential(far)[0]] * 3
    assert exponential(far)[3] == 1.0
    assert falling(far)[3] == 0.5
    assert falling(far)[[0, -1]] == pytest.approx([1, 0], abs=1e-25)
    assert tanh(far)[[0, 3, -1]].tolist() == [-1.0, 0.0, 1.0]


@EVERY
def test_an_argument_is_not_changed(name: str) -> None:
    values = np.linspace(-3, 3, 7)
    FUNCTIONS[name](values)
    assert np.array_equal(values, np.linspace(-3, 3, 7))


@EVERY
@given(st.data())
def test_a_value_gives_the_same_bits_among_any_others_and_anywhere(
    name: str, data: st.DataObject
) -> None:
    """In vectors of any length, at any alignment, in rows and columns."""
    made, value = FUNCTIONS[name], data.draw(VALUES)
    alone = made(np.array([value]))[0]
    length, place = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 69))
    around = data.draw(arrays(np.float64, length + 8, elements=VALUES))
    start = data.draw(st.integers(0, 7))
    line = around[start : start + length]
    line[place % length] = value
    results = [made(line), made(np.vstack([line, line]))[1], made(np.column_stack([line, line]))]
    for result in (*results[:2], results[2][:, 0]):
        assert result[place % length].tobytes() == alone.tobytes()


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6)), st.integers(1, 9))
def test_the_sum_of_a_row_is_the_same_bits_among_any_others(row: Floats, rows: int) -> None:
    alone = row_sums(row)
    others = np.random.default_rng(rows).normal(size=(rows, len(row)))
    others[-1] = row
    for layout in (others, np.asfortranarray(others)):
        assert row_sums(layout)[-1].tobytes() == alone.tobytes()
    assert float(alone) == pytest.approx(fsum(row), abs=1e-6)
