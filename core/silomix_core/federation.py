"""A study in one process: the silos' own reporters and the coordinator's own algorithm, no network.

For research.  The random bytes come from a seeded generator, so that a run can be repeated: noise
that anybody can repeat protects nobody.
"""

from collections.abc import Callable, Sequence

import numpy as np

from silomix_core.algorithms.seam import Aggregate, Algorithm, AlgorithmPlan, Point
from silomix_core.mechanism import Mechanism
from silomix_core.reporting import Integers, Question, Reporter


def run_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    reporters: Sequence[Reporter],
    rng: np.random.Generator,
    advance: Callable[[Point], None] = lambda _: None,
) -> Point:
    """The model after all rounds; `advance` is given the model so far after each.

    Each round asks as many silos as the setting says, drawn anew.  All reports arrive and are used,
    so every silo that answered keeps its control variate.
    """
    steps = algorithm.start(plan)
    query = next(steps)
    asked = plan.setting.participants
    kept = np.zeros((len(reporters), mechanism.dimension), dtype=np.int64)
    for number in range(1, mechanism.rounds + 1):
        question = Question(number, query.point, query.control)
        total: Integers = np.zeros(mechanism.dimension, dtype=np.int64)
        for index in rng.choice(len(reporters), asked, replace=False):
            report = reporters[index].values(question, rng.bytes, kept[index])
            kept[index] += report
            total += report
        grid = mechanism.grids[mechanism.phase_of(number)]
        try:
            query = steps.send(Aggregate.of(total, asked, grid))
        except StopIteration as end:
            model: Point = end.value
            advance(model)
            return model
        advance(query.model)
    raise ValueError(f"{algorithm.name} asks more than its {mechanism.rounds} rounds")
