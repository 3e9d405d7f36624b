"""Momentum and averaging as the command line says them, for algorithms that leave them open."""

from silomix_core.algorithms.base import USUAL_DESCENT, Averaging, Descent
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.study.specification import Specification
from silomix_protocol.host.failure import Failure

_KNOWN = [each.value for each in Averaging]


def descent_of(momentum: float | None, averaging: str | None) -> Descent | None:
    """The momentum and averaging that were typed, the other as usual; None if neither was."""
    if momentum is None and averaging is None:
        return None
    if averaging is not None and averaging not in _KNOWN:
        raise Failure(f"--averaging {averaging!r}: use one of {', '.join(_KNOWN)}")
    try:
        return Descent(
            USUAL_DESCENT.momentum if momentum is None else momentum,
            USUAL_DESCENT.averaging if averaging is None else Averaging(averaging),
        )
    except ValueError as bad:
        raise Failure(f"--momentum {momentum}: {bad}") from bad


def check_descent(specification: Specification) -> None:
    """Raise Failure if a descent was chosen where the algorithm, or auto, leaves none to choose."""
    known = ALGORITHMS.get(specification.algorithm)
    if specification.descent is not None and not (known and known.takes_descent):
        name = specification.algorithm
        raise Failure(f"--momentum and --averaging: {name} has none to choose")
