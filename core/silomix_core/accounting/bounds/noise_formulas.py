"""The papers' closed formulas for the noise of a silo's reports, each with its range of validity.

silomix calibrates with the exact composition of Gaussians (`silomix_core.accounting`), which needs
22 to 33 times less noise; these formulas are here to repeat the papers and to compare with them.

Neighbouring data sets: one record of one silo replaced.  Trust: nobody but the silo itself, the
guarantee (inter-silo record-level DP) covers the whole transcript that the silo sends.  σ is the
standard deviation of the noise on each coordinate of the *mean* of a batch of clipped gradients.

Symbols: `lipschitz` is L, the bound on the norm of a record's gradient; `records` is n; `batch` is
K; `rounds` is R.
"""

from math import ceil, log, sqrt

from silomix_core.accounting.bounds.validity import (
    require,
    require_count,
    require_delta,
    require_positive,
)


def multi_pass_sigma(
    *, lipschitz: float, records: int, batch: int, rounds: int, epsilon: float, delta: float
) -> float:
    """The σ of R rounds with batches of K of n records drawn afresh in every round.

    σ² = 256·L²·R·ln(2.5R/δ)·ln(2/δ) / (n²ε²)

    (Lowy, Razaviyayn 2021, long version, Theorem 2.1, D.1 of the short one; Gao, Lowy, Zhou,
    Wright 2024, Theorem C.1)

    Conditions: ε ≤ ln(2/δ) and εn/(4√(2R ln(2/δ))) ≤ K ≤ n, K records without replacement.
    Where the texts differ:
    - Gao et al. print ε ≤ 2 ln(2/δ).  The proof splits ε = 2·ε̃·√(2R ln(2/δ)) by advanced
      composition, which needs e^ε̃ − 1 ≤ √(2 ln(2/δ)/R).  K ≤ n gives ε̃ ≤ 2, hence
      e^ε̃ − 1 ≤ 3.2·ε̃, and that suffices for ε ≤ ln(2/δ) but not for twice as much.
    - Gao et al. mix R with R_i and n with n_i in Theorem G.1; a phase has its own R_i and n_i.
    - Lowy and Razaviyayn print ln(2δ) for ln(2/δ) once, in Appendix D.1 of the long version.
    """
    require_positive(lipschitz=lipschitz)
    smallest = smallest_batch(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    require_count(batch=batch)
    require(
        smallest <= batch <= records,
        f"the multi-pass formula needs {smallest} <= batch <= records = {records}, got "
        f"batch={batch}; use a larger batch, more rounds or a smaller epsilon",
    )
    logs = log(2.5 * rounds / delta) * log(2 / delta)
    return 16 * lipschitz * sqrt(rounds * logs) / (records * epsilon)


def smallest_batch(*, records: int, rounds: int, epsilon: float, delta: float) -> int:
    """The smallest K for which `multi_pass_sigma` is a theorem: ⌈εn/(4√(2R ln(2/δ)))⌉.

    It keeps the ε of one round, before the gain from sampling, at most 1, as the classic analysis
    of the Gaussian mechanism needs (Dwork, Roth 2014, Theorem A.1).
    """
    require_count(records=records, rounds=rounds)
    require_positive(epsilon=epsilon)
    require_delta(delta)
    require(
        epsilon <= log(2 / delta),
        f"the multi-pass formula needs epsilon <= ln(2/delta) = {log(2 / delta):.4g}, got "
        f"epsilon={epsilon}; use the exact calibration instead",
    )
    batch = ceil(epsilon * records / (4 * sqrt(2 * rounds * log(2 / delta))))
    require(
        batch <= records,
        f"the multi-pass formula needs a batch of {batch} of only {records} records; "
        "use more rounds or a smaller epsilon",
    )
    return max(batch, 1)


def one_pass_sigma(*, lipschitz: float, batch: int, epsilon: float, delta: float) -> float:
    """The σ when every record is used in one round only, in disjoint batches of K.

    σ² = 8·L²·ln(1.25/δ) / (K²ε²)

    (Lowy, Razaviyayn 2021, long version, Theorem 2.3, 2.2 of the short one; there with K = 1)

    Condition: ε ≤ 1, from the classic Gaussian mechanism (Dwork, Roth 2014, Theorem A.1).  Above
    it the formula breaks its own δ, by a factor of 5 to 70 at ε = 12 to 18 with δ = 3.3·10⁻⁷.
    """
    require_positive(lipschitz=lipschitz, epsilon=epsilon)
    require_count(batch=batch)
    require_delta(delta)
    require(
        epsilon <= 1,
        f"the one-pass formula needs epsilon <= 1, got epsilon={epsilon}; "
        "use the exact calibration instead",
    )
    return lipschitz * sqrt(8 * log(1.25 / delta)) / (batch * epsilon)
