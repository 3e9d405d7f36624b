"""What a study lead decides, declared once: the task stands beside it, the parties come later.

A parameter of a study is a field here, a key that `reader` takes and `writer` puts down, and an
option of the commands that offer it.  Everything between them passes the specification whole.
"""

from dataclasses import dataclass

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import Descent
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import Aggregation
from silomix_core.study.schedule import Draw
from silomix_core.study.weighting import Weighting


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch may be released: at least `minimum` reports, at most `deadline_s` of waiting.

    With a gate nobody can open it before `minimum` silos confirmed that their reports are in it;
    with tokens the server counts distinct enrolled senders without learning who they are.
    """

    minimum: int = 2
    deadline_s: float = 10.0
    gate: bool = True
    tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """How a task is learned, and what that may cost; None leaves a choice as it usually is.

    A `Study` is a specification with a task and parties, and refuses what does not go together.
    """

    algorithm: str
    most_rounds: int
    radius: float  # of the ball around 0 that the model is kept in
    clip: float  # bound on the norm of a record's gradient
    target: PrivacyTarget  # of every silo that has none of its own
    name: str = ""
    ridge: float = 0.0  # of the public term ridge/2·‖w‖²
    local_steps: int | None = None  # a silo's in a round, of algorithms that leave it to the study
    descent: Descent | None = None  # of algorithms that leave it to the study
    participants: int | None = None  # how many silos a round asks; by default all
    draw: Draw = Draw.TURNS  # of the silos that a round asks
    named_weighting: Weighting | None = None  # None: the usual one for such batches
    minibatch: Minibatch = Minibatch()  # noqa: RUF009  # it is frozen
    held_out: float = 0.0  # share of every silo's records that only evaluates the final model
    named_aggregation: Aggregation | None = None  # None: the default rule for such a study
    batching: Batching = Batching()  # it is frozen
