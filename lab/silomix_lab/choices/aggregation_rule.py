"""The rule by which reports become one, as the command line and Python name it."""

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import Algorithm, Setting
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import USUAL, Aggregation, Circumstances, Rule, unusable
from silomix_core.study.derive import minibatch_of
from silomix_core.study.specification import Specification
from silomix_protocol.host.failure import Failure

_KNOWN = [each.value for each in Rule]


def aggregation_of(rule: str | None, bad_silos: int | None) -> Aggregation | None:
    """The rule that was named; None if none was, which leaves the rule to the study."""
    if rule is None:
        if bad_silos is not None:
            raise Failure("--bad-silos belongs to --aggregation trimmed-mean")
        return None
    if rule not in _KNOWN:
        raise Failure(f"--aggregation {rule!r}: use one of {', '.join(_KNOWN)}")
    try:
        return Aggregation(Rule(rule), bad_silos or 0)
    except ValueError as bad:
        raise Failure(f"--aggregation {rule}: {bad}") from bad


def is_mean_only(algorithm: Algorithm) -> bool:
    """Whether no rule but the mean makes sense of this algorithm's reports, whatever the study."""
    sample = Setting(60, 10, 10, 10, 1000, 1.0, 1.0, 1.0, PrivacyTarget(1.0, 1e-6))
    given = Circumstances(
        algorithm.phases(sample), algorithm.minibatch or Minibatch(), 10, 10, sample.dimension
    )
    return unusable(USUAL, given) is not None


def check_aggregation(specification: Specification, setting: Setting) -> None:
    """Raise Failure if a study of this specification could not name its rule."""
    if specification.named_aggregation is None:
        return
    given = Circumstances(
        ALGORITHMS[specification.algorithm].phases(setting),
        minibatch_of(specification),
        specification.batching.minimum,
        setting.participants,
        setting.dimension,
    )
    if (reason := unusable(specification.named_aggregation, given)) is not None:
        raise Failure(f"--aggregation {reason}")
