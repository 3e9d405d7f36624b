"""Who takes part: phases are disjoint, batches are drawn as the accountant assumes.

Statistical tests have fixed seeds; each fails on correct code with probability `FALSE_ALARM`.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Minibatch, Phase
from silomix_core.mechanism.minibatches import draw, partition
from support.privacy_checks import FALSE_ALARM, seeded_bytes

POISSON, FIXED = Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT


def scripted(*answers: list[int]) -> Callable[[int], bytes]:
    """A byte source that gives these numbers, and nothing else."""
    queue: Iterator[list[int]] = iter(answers)

    def random_bytes(count: int) -> bytes:
        numbers = next(queue)
        assert count == 8 * len(numbers)
        return np.array(numbers, dtype="<u8").tobytes()

    return random_bytes


# Phases


@given(st.integers(1, 500), st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 9))
def test_phases_are_disjoint_and_of_the_right_size(
    records: int, parts: list[int], seed: int
) -> None:
    phases = [Phase(1, part / sum(parts)) for part in parts]
    rows = partition(records, phases, seeded_bytes(seed))
    assert [len(part) for part in rows] == [phase.records(records) for phase in phases]
    together = np.concatenate(rows)
    assert len(set(together.tolist())) == len(together)
    assert set(together.tolist()) <= set(range(records))
    assert records - len(together) < len(phases)  # only what cannot be divided is left out


def test_one_phase_of_everything_is_everybody() -> None:
    (rows,) = partition(100, [Phase(7)], seeded_bytes(1))
    assert sorted(rows.tolist()) == list(range(100))


def test_the_same_key_gives_the_same_phases_and_another_key_others() -> None:
    phases = [Phase(1, 0.5), Phase(1, 0.5)]
    one, again, other = (partition(100, phases, seeded_bytes(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(np.sort(one[0]), np.sort(other[0]))


def test_every_split_into_phases_is_equally_likely() -> None:
    """5 records, phases of 2, 2 and 1: 30 splits; χ² with 29 degrees of freedom."""
    phases, source = [Phase(1, 0.4), Phase(1, 0.4), Phase(1, 0.2)], seeded_bytes(11)
    counts: dict[tuple[frozenset[int], ...], int] = {}
    for _ in range(6000):
        split = tuple(frozenset(part.tolist()) for part in partition(5, phases, source))
        counts[split] = counts.get(split, 0) + 1
    assert len(counts) == 30
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_equal_keys_are_drawn_again() -> None:
    """Ties would be broken by position: not a uniform permutation."""
    phases = [Phase(1, 0.5), Phase(1, 0.5)]
    source = scripted([5, 9, 5, 1], [7, 7, 7, 7], [30, 10, 40, 20])
    first, second = partition(4, phases, source)
    assert (first.tolist(), second.tolist()) == ([1, 3], [0, 2])


def test_phases_that_need_more_records_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="more records"):
        partition(10, [Phase(1, 0.6), Phase(1, 0.6)], seeded_bytes(1))


# Batches


def test_a_full_batch_is_no_mask_and_asks_for_no_randomness() -> None:
    assert draw(Minibatch(), 10, scripted()) is None


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5, 0.99])
def test_coins_have_the_right_probability_for_every_record(ratio: float) -> None:
    """χ² over 40 records, each in 5000 rounds; the size of a batch is binomial in variance too."""
    source = seeded_bytes(12)
    masks = np.array([draw(Minibatch(POISSON, ratio), 40, source) for _ in range(5000)])
    expected = 5000 * ratio
    excess = (masks.sum(axis=0) - expected) ** 2 / (expected * (1 - ratio))
    assert stats.chi2.sf(excess.sum(), 40) > FALSE_ALARM
    sizes = masks.sum(axis=1)
    spread = sizes.var() / (40 * ratio * (1 - ratio))
    # Var of a sample variance: kurtosis of the binomial is at most 3 + 1/(n·q·(1−q))
    noise = sqrt((2 + 1 / (40 * ratio * (1 - ratio))) / 5000)
    assert 2 * stats.norm.sf(abs(spread - 1) / noise) > FALSE_ALARM


def test_coins_of_two_records_and_of_two_rounds_are_independent() -> None:
    """All four outcomes of every pair among 6 records, and of a record with its next round."""
    source, ratio = seeded_bytes(13), 0.3
    masks = np.array([draw(Minibatch(POISSON, ratio), 6, source) for _ in range(8000)])
    pairs = [(masks[:, i], masks[:, j]) for i, j in combinations(range(6), 2)]
    pairs += [(masks[::2, i], masks[1::2, i]) for i in range(6)]
    likely = np.array([(1 - ratio) ** 2, ratio * (1 - ratio), ratio * (1 - ratio), ratio**2])
    for one, other in pairs:
        counts = np.bincount(2 * one + other, minlength=4)
        pvalue = stats.chisquare(counts, likely * len(one)).pvalue
        assert pvalue > FALSE_ALARM / len(pairs)


def test_a_coin_is_won_below_the_ratio_exactly() -> None:
    """Never more often than the accountant assumes: the threshold is rounded down."""
    half = 2**63
    mask = draw(Minibatch(POISSON, 0.5), 4, scripted([0, half - 1, half, 2**64 - 1]))
    assert mask is not None
    assert mask.tolist() == [True, True, False, False]
    always = draw(Minibatch(POISSON, 1.0), 2, scripted([0, 2**64 - 2]))
    assert always is not None
    assert always.all()
    third = int(np.floor(np.float64(1 / 3) * 2.0**64))
    mask = draw(Minibatch(POISSON, 1 / 3), 2, scripted([third - 1, third]))
    assert mask is not None
    assert mask.tolist() == [True, False]


@given(st.integers(1, 300), st.floats(0.01, 1), st.integers(0, 9))
def test_a_batch_of_fixed_size_has_that_size(records: int, ratio: float, seed: int) -> None:
    batch = Minibatch(FIXED, ratio)
    size = int(batch.size(records))
    if size < 1:
        with pytest.raises(ValueError, match="empty"):
            draw(batch, records, seeded_bytes(seed))
        return
    mask = draw(batch, records, seeded_bytes(seed))
    assert mask is not None
    assert mask.shape == (records,)
    assert int(mask.sum()) == size


def test_every_batch_of_fixed_size_is_equally_likely() -> None:
    """2 of 6 records: 15 batches, χ² with 14 degrees of freedom."""
    source, counts = seeded_bytes(14), dict.fromkeys(combinations(range(6), 2), 0)
    for _ in range(6000):
        mask = draw(Minibatch(FIXED, 1 / 3), 6, source)
        assert mask is not None
        counts[tuple(np.flatnonzero(mask).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_a_tie_at_the_border_of_a_batch_is_drawn_again() -> None:
    batch = Minibatch(FIXED, 0.5)
    mask = draw(batch, 4, scripted([5, 9, 5, 5], [3, 3, 3, 1], [8, 2, 7, 4]))
    assert mask is not None
    assert mask.tolist() == [False, True, False, True]


def test_a_tie_away_from_the_border_of_a_batch_does_no_harm() -> None:
    mask = draw(Minibatch(FIXED, 0.5), 4, scripted([9, 1, 9, 1]))
    assert mask is not None
    assert mask.tolist() == [False, True, False, True]


@pytest.mark.parametrize("scheme", [POISSON, FIXED])
def test_batches_of_successive_rounds_differ(scheme: Scheme) -> None:
    """Of 200 records: the same mask twice has a probability below 2⁻¹⁰⁰."""
    source = seeded_bytes(15)
    first, second = (draw(Minibatch(scheme, 0.5), 200, source) for _ in range(2))
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)
