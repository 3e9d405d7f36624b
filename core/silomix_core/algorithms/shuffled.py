"""Shuffled minibatch SGD: one record of every silo in a round, hidden by the mixes.

Lowy & Razaviyayn (2021), "Private federated learning without a trusted server", Section 4, with
K = 1.  A report made of one record is private in all that went into it, so shuffling amplifies: the
noise that a *central* (ε, δ) needs is less than what the same local one would
(`silomix_core.claims.central_target`).  Their Theorem 4.1 has an unspecified constant and needs
hundreds of silos; the numerical clones bound takes its place.  What the silo charges is its real
local loss.

Steps as in `noisy_mb_sgd`, which is post-processing of the same reports.
"""

from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.base import Algorithm
from silomix_core.algorithms.noisy_mb_sgd import every_round, noisy_mb_sgd
from silomix_core.mechanism.mechanism import Minibatch

ONE_RECORD = Minibatch(Scheme.WITHOUT_REPLACEMENT, count=1)

ALGORITHM = Algorithm(
    name="shuffled-mb-sgd",
    summary="Noisy minibatch SGD with one record of each silo in a round",
    theorem="Lowy & Razaviyayn 2021, §4, Thm 4.1; noise by Feldman et al. 2021, Thm 3.1",
    advice="A thousand silos or more that trust one mix; --central-epsilon sets the noise.",
    start=noisy_mb_sgd,
    phases=every_round,
    minibatch=ONE_RECORD,
)
