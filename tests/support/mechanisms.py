"""The promise of the reference study, and numbers drawn by their exponents."""

from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyTarget

STUDY = PrivacyTarget(3, 3.33e-7)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)
