"""DP-SCAFFOLD's accountant: the 25 printed numbers of rounds, and dp-accounting beside it."""

import tomllib
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from silomix_core.accounting.bounds import OutsideValidity
from silomix_core.accounting.bounds.scaffold import (
    largest_rounds,
    sampled_gaussian_rdp,
    sampled_rdp,
    server_epsilon,
    third_party_epsilon,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "scaffold_rounds.toml"
TABLE = tomllib.loads(VECTORS.read_text("utf-8"))
SETTING = TABLE["setting"]
DELTA = 1 / (100 * 4000)


@pytest.mark.parametrize("cell", TABLE["cell"])
def test_the_printed_numbers_of_rounds_come_out(cell: dict[str, int]) -> None:
    rounds = largest_rounds(
        **SETTING, sigma_g=float(cell["sigma_g"]), local_steps=cell["local_steps"]
    )
    assert rounds - cell["rounds"] == cell["above"]


def test_twenty_two_of_twenty_five_are_exact() -> None:
    assert [cell["above"] for cell in TABLE["cell"]].count(0) == 22
    assert len(TABLE["cell"]) == 25


def test_the_printed_rounds_spend_the_whole_epsilon() -> None:
    setting = {key: value for key, value in SETTING.items() if key != "epsilon"}
    epsilon = third_party_epsilon(**setting, sigma_g=10.0, local_steps=5, rounds=488)
    assert epsilon == pytest.approx(3.0, abs=1e-3)
    assert epsilon <= 3
    assert third_party_epsilon(**setting, sigma_g=10.0, local_steps=5, rounds=489) > 3


def test_order_two_and_three_are_lemma_b7_by_hand() -> None:
    q, sigma = 0.2, 3.0
    second = min(2 * (exp(1 / sigma**2) - 1), exp(1 / sigma**2))
    two = log(1 + 2 * q**2 * second)
    three = log(1 + 2 * q**2 * 3 * second + 2 * q**3 * exp(3 * 2 / (2 * sigma**2))) / 2
    assert sampled_gaussian_rdp(sigma, q)[:2] == pytest.approx([two, three])


@pytest.mark.parametrize(("sigma", "ratio"), [(1.0, 0.01), (2.0, 0.1), (10.0, 0.2), (0.7, 0.05)])
def test_the_bound_is_never_below_dp_accounting(sigma: float, ratio: float) -> None:
    # dp-accounting has the same theorem, tightened in its low-order terms.
    orders = list(range(2, 33))
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(
        dp_event.SampledWithoutReplacementDpEvent(
            10**4, round(ratio * 10**4), dp_event.GaussianDpEvent(sigma)
        )
    )
    theirs = np.asarray(accountant._rdp)
    ours = sampled_gaussian_rdp(sigma, ratio)[: len(orders)]
    assert np.all(ours >= theirs * (1 - 1e-9))
    assert ours[0] == pytest.approx(theirs[0], rel=0.01)


def test_the_server_learns_more_than_a_third_party() -> None:
    shared = {"delta": DELTA, "sigma_g": 10.0, "local_steps": 5, "data_ratio": 0.2, "rounds": 20}
    server = server_epsilon(**shared)
    outsider = third_party_epsilon(**shared, user_ratio=0.05, users=100)
    assert outsider < server


def test_towards_the_server_every_local_step_counts() -> None:
    one = server_epsilon(delta=DELTA, sigma_g=10.0, local_steps=1, data_ratio=0.1, rounds=60)
    other = server_epsilon(delta=DELTA, sigma_g=10.0, local_steps=6, data_ratio=0.1, rounds=10)
    assert one == pytest.approx(other)
    assert one > server_epsilon(delta=DELTA, sigma_g=10.0, local_steps=6, data_ratio=0.1, rounds=9)


def test_a_target_that_not_even_one_round_meets_is_refused() -> None:
    with pytest.raises(OutsideValidity, match="no round fits"):
        largest_rounds(**(SETTING | {"epsilon": 0.05}), sigma_g=0.5, local_steps=40)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 1.5])
def test_a_ratio_outside_the_lemma_is_refused(ratio: float) -> None:
    with pytest.raises(OutsideValidity, match="ratio"):
        server_epsilon(delta=DELTA, sigma_g=1.0, local_steps=1, data_ratio=ratio, rounds=1)
    with pytest.raises(OutsideValidity, match="user_ratio"):
        largest_rounds(**(SETTING | {"user_ratio": ratio}), sigma_g=10.0, local_steps=1)


def test_a_fraction_of_a_user_is_refused() -> None:
    with pytest.raises(OutsideValidity, match="whole number of users"):
        largest_rounds(**(SETTING | {"users": 90}), sigma_g=10.0, local_steps=1)


def test_one_value_per_order_is_needed() -> None:
    with pytest.raises(OutsideValidity, match="per order"):
        sampled_rdp(np.ones(3), 0.1)
