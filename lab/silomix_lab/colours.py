"""Colours of curves in one picture: none twice, however many curves there are."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.typing import ColorType

_FEW = 10  # beyond, the usual colours would begin anew


def colours(count: int) -> list["ColorType"]:
    """So many different colours."""
    import matplotlib as mpl

    if count <= _FEW:
        return [f"C{index}" for index in range(count)]
    along = mpl.colormaps["turbo"]
    return [along(index / (count - 1)) for index in range(count)]
