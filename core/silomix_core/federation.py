"""A study in one process: the silos' own reporters and the coordinator's own algorithm, no network.

For research.  The random bytes come from a seeded generator, so that a run can be repeated: noise
that anybody can repeat protects nobody.
"""

from collections.abc import Callable, Sequence

import numpy as np

from silomix_core.algorithms.seam import Aggregate, Algorithm, AlgorithmPlan, Point
from silomix_core.evaluation import Result, study_steps
from silomix_core.mechanism import Mechanism
from silomix_core.noise import discrete_gaussian
from silomix_core.reporting import Reporter


def run_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    reporters: Sequence[Reporter],
    rng: np.random.Generator,
    advance: Callable[[Point], None] = lambda _: None,
) -> Point:
    """The model after all rounds: `evaluated_study` without what it says of it."""
    return evaluated_study(algorithm, plan, mechanism, reporters, rng, advance).model


def evaluated_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    reporters: Sequence[Reporter],
    rng: np.random.Generator,
    advance: Callable[[Point], None] = lambda _: None,
) -> Result:
    """The model after all rounds; `advance` is given the model so far after each.

    Each round asks as many silos as the setting says, drawn anew; with check-ins, those of them
    answer that chose this round.
    """
    steps = study_steps(algorithm, plan, mechanism)
    query = next(steps)
    asked = plan.setting.participants
    for number in range(1, mechanism.rounds + 1):
        phase = mechanism.phase_of(number)
        chosen = [reporters[each] for each in rng.choice(len(reporters), asked, replace=False)]
        coming = [reporter for reporter in chosen if reporter.takes_part(number)]
        reports = [reporter.values(query.point, phase, rng.bytes) for reporter in coming]
        check_in = mechanism.phases[phase].check_in
        if check_in is not None and check_in.lone:
            dummy = discrete_gaussian(mechanism.dimension, rng.bytes)
            reports = [reports[rng.integers(len(reports))] if reports else dummy]
        total = sum(reports, np.zeros(mechanism.dimension, dtype=np.int64))
        try:
            query = steps.send(Aggregate.of(total, len(reports), mechanism.grids[phase]))
        except StopIteration as end:
            result: Result = end.value
            advance(result.model)
            return result
        advance(query.model)
    raise ValueError(f"{algorithm.name} asks more than its {mechanism.rounds} rounds")
