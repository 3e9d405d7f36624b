"""Which of its records a silo uses in a round, as the command line says it."""

from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.catalogue import AUTO, algorithm
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.study.specification import Specification
from silomix_protocol.host.failure import Failure

FULL = Scheme.FULL.value


def minibatch(sampling: str, ratio: float | None) -> Minibatch:
    """The minibatch that `--sampling` and `--ratio` name, in the words of a study's [privacy]."""
    known = [scheme.value for scheme in Scheme]
    if sampling not in known:
        raise Failure(f"--sampling {sampling!r}: use one of {', '.join(known)}")
    scheme = Scheme(sampling)
    if (ratio is None) != (scheme is Scheme.FULL):
        needs = "has no" if scheme is Scheme.FULL else "needs a"
        raise Failure(f"--sampling {sampling} {needs} --ratio (the share of records drawn)")
    try:
        return Minibatch(scheme, 1.0 if ratio is None else ratio)
    except ValueError as error:
        raise Failure(f"--ratio {ratio}: {error}") from error


def described(batch: Minibatch) -> str:
    """The minibatch in words, for people."""
    if batch.scheme is Scheme.FULL:
        return "full batches"
    return f"{batch.scheme.value} batches of {100 * batch.ratio:g} %"


def check_batches(specification: Specification) -> None:
    """Raise Failure if batches were chosen where the algorithm, or auto, leaves none to choose."""
    name = specification.algorithm
    if specification.minibatch.scheme is Scheme.FULL:
        return
    if name == AUTO:
        raise Failure("--sampling: auto uses all records in every round; name an algorithm")
    if algorithm(name).minibatch is not None:
        raise Failure(f"--sampling: {name} draws its own batches; leave it out")
