"""One way to say that a theorem does not apply.

Every function of this package states the conditions of the theorem that it implements and refuses
outside them: a formula used beyond its range gives a number, but no guarantee.
"""


class OutsideValidity(ValueError):
    """A condition of the theorem fails; the message says which one, by how much, and a way out."""


def require(holds: bool, failure: str) -> None:
    """Refuse unless `holds`.  A comparison with NaN is false, so NaN is refused too."""
    if not holds:
        raise OutsideValidity(failure)


def require_delta(delta: float, name: str = "delta") -> None:
    """Refuse a δ that is not strictly between 0 and 1."""
    require(0 < delta < 1, f"need 0 < {name} < 1, got {name}={delta}")


def require_positive(**values: float) -> None:
    """Refuse any value that is not positive and finite."""
    for name, value in values.items():
        require(0 < value < float("inf"), f"need {name} positive and finite, got {name}={value}")


def require_count(smallest: int = 1, **values: int) -> None:
    """Refuse any value that is not a whole number of at least `smallest`."""
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(
            whole and value >= smallest,
            f"need {name} a whole number of at least {smallest}, got {name}={value}",
        )
