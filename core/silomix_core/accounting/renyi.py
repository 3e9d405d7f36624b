"""Rényi differential privacy of single events, at integer orders.

D_α adds up over adaptively chosen releases (Mironov 2017, Prop. 1), and a *fixed* order gives a
privacy filter (Feldman, Zrnic 2021, "Individual privacy accounting via a Rényi filter", Thm 4.3).
Replace-one adjacency:

full batch            α·μ²/2                                            (Mironov 2017, Prop. 7)
without replacement   Wang, Balle, Kasiviswanathan 2019, Thm 27, or the full batch's if that is less
                      (joint quasi-convexity: sampling never costs)
Poisson               the divergence of the dominating pair of `poisson`, by quadrature
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, log, log1p, pi

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import PrivacyEvent, Scheme

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 96, 128, 192, 256)


def renyi(event: PrivacyEvent, order: int) -> float:
    """The D_α of one event, the larger of both directions, rounded up."""
    return renyi_curve(event, (order,))[0]


def renyi_curve(event: PrivacyEvent, orders: Sequence[int] = ORDERS) -> tuple[float, ...]:
    """The D_α of one event at each order α."""
    if event.scheme is Scheme.FULL or event.mu == 0:
        return tuple(order * event.mu * event.mu / 2 for order in orders)
    return _subsampled(event.scheme, event.ratio, event.mu, tuple(orders))


def epsilon_at(order: int, divergence: float, delta: float) -> float:
    """The ε at `delta` of a mechanism whose D_α, at this order α, is `divergence`.

    Canonne, Kamath, Steinke 2020, Prop. 12: ε = D + ln(1 − 1/α) − ln(δ·α)/(α − 1).
    """
    epsilon = divergence + log1p(-1 / order) - log(delta * order) / (order - 1)
    return max(epsilon, 0.0)


def renyi_epsilon(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    """The ε at `delta` of a transcript of events fixed beforehand: the best of all orders."""
    totals = np.zeros(len(ORDERS))
    for event, count in events:
        totals += count * np.array(renyi_curve(event))
    return min(
        epsilon_at(order, float(total), delta) for order, total in zip(ORDERS, totals, strict=True)
    )


@lru_cache(maxsize=256)
def _subsampled(
    scheme: Scheme, ratio: float, mu: float, orders: tuple[int, ...]
) -> tuple[float, ...]:
    if scheme is Scheme.POISSON:
        return tuple(_poisson(ratio, mu, order) for order in orders)
    return _without_replacement(ratio, mu, orders)


def _without_replacement(ratio: float, mu: float, orders: tuple[int, ...]) -> tuple[float, ...]:
    """For each α, 1/(α−1)·ln(1 + Σ_{j=2…α} C(α,j)·γ^j·m_j), γ the ratio, or α·μ²/2 if less."""
    powers = np.arange(2, max(orders) + 1)
    terms = _log_moments(mu, powers) + powers * log(ratio)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, max(orders) + 1)))])
    result = []
    for order in orders:
        j = powers[: order - 1]
        choose = log_factorials[order] - log_factorials[j] - log_factorials[order - j]
        total = np.logaddexp(0.0, np.logaddexp.reduce(terms[: order - 1] + choose))
        sampled = float(total) / (order - 1) * (1 + 1e-9)
        result.append(min(sampled, order * mu * mu / 2))
    return tuple(result)


def _log_moments(mu: float, powers: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values ln m_j, m_j ≥ E_r[|p/r − q/r|^j] for any three Gaussians p, q, r at most μ apart.

    m_j is the lesser of 2·e^{j(j−1)μ²/2} (|p − q|^j ≤ p^j + q^j) and 4·√(B_{2⌊j/2⌋}·B_{2⌈j/2⌉}),
    B_l = E_q[(p/q − 1)^l].  The paper's B_l is an alternating sum, whose digits cancel for small μ
    (dp-accounting's value is up to 3 times too large then, or a domain error); the integrand of
    the expectation has one sign for even l.
    """
    simple = np.asarray(log(2) + powers * (powers - 1) * (mu * mu / 2), dtype=np.float64)
    if mu > 1:  # then the first bound is always the lesser
        return simple
    even = np.arange(2, int(powers[-1]) + 2, 2)
    reach, step = mu * even[-1] + 60, 1 / 8
    z = np.arange(-reach, reach, step)
    with np.errstate(divide="ignore"):  # ln 0 where both densities are equal
        away = np.log(np.abs(np.expm1(mu * z - mu * mu / 2)))
    base = -0.5 * z * z - 0.5 * log(2 * pi) + log(step)
    moments = np.array([np.logaddexp.reduce(base + power * away) for power in even])
    paired = log(4) + (moments[powers // 2 - 1] + moments[(powers + 1) // 2 - 1]) / 2
    lesser: NDArray[np.float64] = np.minimum(simple, paired)
    return lesser


def _poisson(ratio: float, mu: float, order: int) -> float:
    """D_α((1−q)·N(0,1) + q·N(h,1) ‖ (1−q)·N(0,1) + q·N(−h,1)), h = μ/2.

    The integrand P^α·Q^(1−α) is analytic with Gaussian tails, for which the trapezoidal rule
    converges geometrically; its bulk lies within [−(2α−1)h, (2α−1)h].  Where its integral may be
    close to 1, what is above 1 is integrated instead (∫P = ∫Q = 1), with l = ln(P/Q):

        P^α·Q^(1−α) − α·P + (α−1)·Q  =  Q·((e^{αl} − 1) − α·(e^l − 1))  ≥  0

    The terms that are added in the end cover rounding errors.
    """
    half = mu / 2
    reach = (2 * order + 1) * half + 40
    step = min(1 / 64, 1 / (8 * half * order) if half * order > 8 else 1 / 64)
    points = int(reach / step)
    if points > 500_000:
        return inf
    y: NDArray[np.float64] = step * np.arange(-points, points + 1, dtype=np.float64)
    base = -0.5 * y * y - 0.5 * log(2 * pi) + log(step)
    moves: list[NDArray[np.float64]] = [y * half - half * half / 2, -y * half - half * half / 2]
    stay, take = log1p(-ratio) if ratio < 1 else -inf, log(ratio)
    if half * order <= 4:  # e^{αl} is far from an overflow
        upper, lower = (_log_mixture(ratio, stay, take, move) for move in moves)
        losses = upper - lower
        above = np.exp(base + lower) @ (np.expm1(order * losses) - order * np.expm1(losses))
        return log1p(max(float(above), 0.0)) / (order - 1) * (1 + 1e-9) + 4e-16 * mu
    upper, lower = (np.logaddexp(stay, take + move) for move in moves)
    exponent = base + order * upper + (1 - order) * lower
    largest = float(exponent.max())
    total = float(np.exp(exponent - largest).sum())
    return max((log(total) + largest) / (order - 1), 0.0) * (1 + 1e-9) + 1e-14


def _log_mixture(
    ratio: float, stay: float, take: float, move: NDArray[np.float64]
) -> NDArray[np.float64]:
    """ln(1 − q + q·e^move), `stay` = ln(1 − q), `take` = ln q: exact near 0 and far below it.

    1 + q·(e^move − 1) keeps small values, but far down it is the difference of two numbers that
    are nearly 1 each, or 0 where q is 1.
    """
    near = np.log1p(ratio * np.expm1(np.maximum(move, -1.0)))
    mixture: NDArray[np.float64] = np.where(move > -1, near, np.logaddexp(stay, take + move))
    return mixture
