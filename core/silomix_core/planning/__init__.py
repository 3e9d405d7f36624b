"""Choosing a study's parameters before there is one, from public numbers alone.

request ──► cells       noise, figures and simulated error for every ε and number of rounds
              └──► recommendation ──► plan
simulation              the real algorithm on synthetic records
"""

from silomix_core.planning.plan import Plan, curves, plan, simulated_rounds
from silomix_core.planning.recommendation import with_best_clip
from silomix_core.planning.request import InvalidPlan, Request

__all__ = ["InvalidPlan", "Plan", "Request", "curves", "plan", "simulated_rounds", "with_best_clip"]
