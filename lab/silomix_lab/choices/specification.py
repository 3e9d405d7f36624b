"""A specification as the command line says it, and what can be known to be wrong with it."""

from collections.abc import Sequence
from dataclasses import replace

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms import shuffled
from silomix_core.algorithms.catalogue import AUTO, algorithm
from silomix_core.claims.central_target import local_target
from silomix_core.evaluation.private import not_measurable
from silomix_core.study.specification import Specification
from silomix_core.task.task import Task
from silomix_protocol.host.failure import Failure

from silomix_lab.choices.descent import check_descent
from silomix_lab.choices.minibatch import check_batches


def target_of(epsilon: float, delta: float) -> PrivacyTarget:
    """The (ε, δ) that were typed."""
    try:
        return PrivacyTarget(epsilon, delta)
    except ValueError as bad:
        raise Failure(str(bad)) from bad


def held_out_of(evaluation: float | None) -> float:
    """The share of the records that `--evaluation` holds out."""
    if evaluation is not None and not 0.01 <= evaluation <= 0.99:
        raise Failure(f"--evaluation {evaluation}: use a share from 0.01 to 0.99")
    return evaluation or 0.0


def check(specification: Specification, task: Task, *, is_central: bool) -> None:
    """Raise Failure for what is wrong with this specification of a task, whatever the silos are."""
    has_one_record = specification.algorithm == shuffled.ALGORITHM.name
    if is_central and (specification.held_out or not has_one_record):
        raise Failure(
            "--central-epsilon needs reports of one record: shuffled-mb-sgd without --evaluation"
        )
    check_descent(specification)
    check_batches(specification)
    if specification.held_out and (reason := not_measurable(task)) is not None:
        raise Failure(f"--{reason}")


def check_local_steps(specification: Specification) -> None:
    """Raise ValueError if local steps were chosen and the algorithm leaves none to choose."""
    name, steps = specification.algorithm, specification.local_steps
    if steps is None or name == AUTO:
        return
    if not algorithm(name).takes_local_steps:
        raise ValueError(f"--local-steps: {name} has none to choose")
    if steps < 1:
        raise ValueError("--local-steps: at least 1")


def behind_the_mixes(
    specification: Specification, records: Sequence[int], dimension: int
) -> Specification:
    """The specification whose local target is what its central one amounts to."""
    central = specification.target
    try:
        local = local_target(
            central,
            records,
            minimum_batch=specification.batching.minimum,
            rounds=specification.most_rounds,
            clip=specification.clip,
            dimension=dimension,
        )
    except ValueError as bad:
        raise Failure(f"--central-epsilon {central.epsilon:g}: {bad}") from bad
    return replace(specification, target=local)
