"""Planning: a study's parameters chosen before there is one, from public numbers alone.

request ──► grid        noise, figures and simulated error for every ε and number of rounds
              └──► recommendation ──► plan
simulated_studies       the real algorithm on synthetic records
"""

from silomix_core.simulation.planning.plan import Plan, curves, plan, simulated_rounds
from silomix_core.simulation.planning.recommendation import with_best_clip
from silomix_core.simulation.planning.request import InvalidPlan, PlanRequest

__all__ = [
    "InvalidPlan",
    "Plan",
    "PlanRequest",
    "curves",
    "plan",
    "simulated_rounds",
    "with_best_clip",
]
