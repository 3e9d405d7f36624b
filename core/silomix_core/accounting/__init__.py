"""What a silo's reports cost: from events (what was done) to ε, δ and back.

    events ──► gaussian    exact, full batches
          ├──► poisson     privacy loss distributions, batches drawn by coin tosses
          ├──► renyi       Rényi divergences, batches of fixed size; also the ledger's second filter
          ├──► integers    what discrete noise from tables costs on top, in all three
          └──► composition the three together, and the noise that a target needs
    budget ──► the privacy filter of a ledger: one additive loss per event

The neighbouring relation is everywhere the same: one record replaced by another.
"""

from silomix_core.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from silomix_core.accounting.integers import TABLE_ERROR, discretization_delta

__all__ = [
    "TABLE_ERROR",
    "discretization_delta",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
]
