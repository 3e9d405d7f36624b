"""The privacy bound of DP-SCAFFOLD and DP-FedAvg as their paper computes it: nested sampled RDP.

Noble, Bellet, Dieuleveut 2022, "Differentially private federated learning on heterogeneous data",
Appendix B, paragraph "Implementation": the Gaussian mechanism on a fraction s of a user's records
(Lemma B.7), K local steps (Lemma B.5), a fraction l of the users (Wang, Balle, Kasiviswanathan
2019, Theorem 9), T rounds, and conversion to (ε, δ) (Lemma B.4).  σ_g is the noise in units of the
sensitivity 2C/(sR), so neighbours differ by **replacing one record**.

Two adversaries.  A *third party* sees the models only; the server and the other users are trusted.
The *server* sees every update and knows who sent it: no gain from drawing or averaging users.

This is here to repeat the paper.  We do not rely on `third_party_epsilon` for K > 1: the paper
divides every local step's variance by the number of users in the round, as if each step were
released only as an average; but the second local step starts from the user's own first one, which
is no function of that average.  `server_epsilon` has no such gap.
"""

from math import floor, lgamma, log

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.bounds.validity import (
    require,
    require_count,
    require_delta,
    require_positive,
)

_Floats = NDArray[np.float64]

# Renyi orders 2..256.  The paper interpolates between whole orders (its Eq. 7); the interpolated
# cumulant is linear there, so the best order is a whole one and nothing is lost.
_LARGEST_ORDER = 256
_ORDERS = np.arange(2, _LARGEST_ORDER + 1, dtype=np.float64)


def largest_rounds(
    *,
    epsilon: float,
    delta: float,
    sigma_g: float,
    local_steps: int,
    user_ratio: float,
    data_ratio: float,
    users: int,
) -> int:
    """The number T of rounds that stay (ε, δ)-DP towards a third party; refuses if not one does.

    The paper's tables come out with δ = 1/(100·4000), 4000 of 5000 records being for training
    (its text has δ = 1/(MR)), and with the variance of the average of l·M = 5 users.
    """
    require_positive(epsilon=epsilon)
    require_delta(delta)
    rdp = _third_party_rdp(sigma_g, local_steps, user_ratio, data_ratio, users)
    rounds = floor(float(np.max((epsilon - log(1 / delta) / (_ORDERS - 1)) / rdp)))
    require(
        rounds >= 1,
        f"no round fits into epsilon={epsilon}, delta={delta}: one costs "
        f"{_epsilon(rdp, delta):.4g}; use smaller ratios, fewer local steps or a larger epsilon",
    )
    return rounds


def third_party_epsilon(
    *,
    delta: float,
    sigma_g: float,
    local_steps: int,
    user_ratio: float,
    data_ratio: float,
    users: int,
    rounds: int,
) -> float:
    """The ε of T rounds towards a third party, as in the paper (Theorem 4.1 (1), numerically)."""
    require_count(rounds=rounds)
    require_delta(delta)
    return _epsilon(
        rounds * _third_party_rdp(sigma_g, local_steps, user_ratio, data_ratio, users), delta
    )


def server_epsilon(
    *, delta: float, sigma_g: float, local_steps: int, data_ratio: float, rounds: int
) -> float:
    """The ε of a user's whole transcript towards the server (Theorem 4.1 (2), numerically).

    Every local step of every round that the user answered counts: T·K sampled Gaussians.
    """
    require_count(local_steps=local_steps, rounds=rounds)
    require_delta(delta)
    return _epsilon(rounds * local_steps * sampled_gaussian_rdp(sigma_g, data_ratio), delta)


def sampled_gaussian_rdp(sigma: float, ratio: float) -> _Floats:
    """Rényi ε at orders 2, 3, … of a Gaussian of sensitivity 1 on a sample (Lemma B.7)."""
    require_positive(sigma=sigma)
    return sampled_rdp(_ORDERS / (2 * sigma * sigma), ratio)


def sampled_rdp(rdp: _Floats, ratio: float) -> _Floats:
    """Rényi ε′ at orders 2, 3, … of a mechanism with ε(·) = `rdp`, run on a sample.

    (α − 1)·ε′(α) = ln(1 + q²·C(α,2)·min{4(e^ε(2) − 1), 2e^ε(2)}
                         + Σ_{j≥3} 2q^j·C(α,j)·e^{(j−1)ε(j)})
    (Wang, Balle, Kasiviswanathan 2019, Theorem 9, with ε(∞) = ∞: whole orders, replace-one,
    without replacement).
    """
    require(
        0 < ratio < 1,
        f"the sampling bound needs 0 < ratio < 1, got {ratio}; without sampling use the "
        "exact accountant",
    )
    require(rdp.shape == _ORDERS.shape, f"need one value per order, got {rdp.shape}")
    terms = log(2) + _ORDERS * log(ratio) + (_ORDERS - 1) * rdp
    terms[0] = 2 * log(ratio) + rdp[0] + log(min(-4 * np.expm1(-rdp[0]), 2.0))
    cumulants = np.logaddexp.reduce(_log_binomials() + terms, axis=1)
    bound: _Floats = np.logaddexp(0.0, cumulants) / (_ORDERS - 1)
    return bound


def _third_party_rdp(
    sigma_g: float, local_steps: int, user_ratio: float, data_ratio: float, users: int
) -> _Floats:
    """The RDP of one round: K sampled steps of the average of l·M users, themselves sampled."""
    require_positive(sigma_g=sigma_g)
    require_count(local_steps=local_steps, users=users)
    cohort = user_ratio * users
    require(
        0 < user_ratio < 1 and cohort >= 1 and abs(cohort - round(cohort)) < 1e-9 * users,
        f"need user_ratio·users a whole number of users, at least 1, with user_ratio < 1, got "
        f"{user_ratio}·{users}",
    )
    step = sampled_gaussian_rdp(sigma_g * round(cohort) ** 0.5, data_ratio)
    return sampled_rdp(local_steps * step, user_ratio)


def _epsilon(rdp: _Floats, delta: float) -> float:
    """The ε of Lemma B.4 (Mironov 2017, Proposition 3) at the best order."""
    return float(np.min(rdp + log(1 / delta) / (_ORDERS - 1)))


def _log_binomials() -> _Floats:
    """ln C(α, j): rows are orders α, columns j = 2, 3, …; −∞ above the diagonal."""
    logs = np.array([lgamma(k + 1) for k in range(_LARGEST_ORDER + 1)])
    order = np.arange(2, _LARGEST_ORDER + 1)
    rest = order[:, None] - order[None, :]
    table: _Floats = logs[order][:, None] - logs[order][None, :] - logs[np.maximum(rest, 0)]
    return np.where(rest >= 0, table, -np.inf)
