"""Random check-ins: who takes part when, what that costs, what the server makes of it.

Statistical tests have fixed seeds; each fails on correct code with probability `FALSE_ALARM`.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from silomix_core.accounting.bounds.check_in_theorems import (
    Amplified,
    LocalRandomizer,
    averaged,
    fixed_window,
)
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms import check_ins
from silomix_core.algorithms.base import Aggregate, Algorithm, AlgorithmPlan, Point, Query, Setting
from silomix_core.claims import central
from silomix_core.claims.central import central_figures
from silomix_core.mechanism.attendance import attend
from silomix_core.mechanism.mechanism import CheckIn, Mechanism, Participant, Phase
from silomix_core.mechanism.report_format import (
    MalformedReport,
    decode_report,
    encode_report,
    is_abstention,
)
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import Linear
from silomix_core.reports.reporter import Reporter
from silomix_core.task.losses import LossName, loss
from support.privacy_checks import FALSE_ALARM, seeded_bytes

SILO = Participant(50, PrivacyTarget(2.0, 1e-5))
SETTING = Setting(
    rounds=10,
    dimension=3,
    silos=40,
    participants=40,
    records=50,
    radius=5.0,
    lipschitz=1.0,
    smoothness=1.0,
    target=SILO.target,
)
ALL = (check_ins.FIXED, check_ins.AVERAGED, check_ins.SLIDING)


def mechanism(*phases: Phase, silo: Participant = SILO, dimension: int = 3) -> Mechanism:
    return Mechanism.calibrate([silo], clip=1.0, dimension=dimension, phases=phases)


def chosen(made: Mechanism, silos: int, seed: int = 1) -> list[list[int]]:
    """The rounds in which each silo takes part."""
    source = seeded_bytes(seed)
    attendances = [attend(made, place, source) for place in range(silos)]
    rounds = range(1, made.rounds + 1)
    return [[each for each in rounds if one.takes_part(each)] for one in attendances]


# Who takes part ----------------------------------------------------------------------------------


def test_a_silo_takes_part_once_in_a_window_and_in_all_other_rounds() -> None:
    made = mechanism(Phase(2, 0.3), Phase(7, 0.3, check_in=CheckIn()), Phase(3, 0.4))
    for rounds in chosen(made, 100):
        assert rounds[:2] == [1, 2]
        assert rounds[-3:] == [10, 11, 12]
        assert len(rounds) == 6
        assert 3 <= rounds[2] <= 9


def test_the_slots_of_a_window_are_all_alike() -> None:
    counts = Counter(
        rounds[0] for rounds in chosen(mechanism(Phase(9, 1.0, check_in=CheckIn())), 4000)
    )
    assert set(counts) == set(range(1, 10))
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_with_a_probability_some_stay_away() -> None:
    came = sum(map(len, chosen(mechanism(Phase(9, 1.0, check_in=CheckIn(probability=0.3))), 4000)))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 4000, 0.3)
    assert low <= came <= high


def test_a_sliding_window_has_its_silos_in_the_papers_slots() -> None:
    """n = 7 silos, m = 4 slots, n − m + 1 = 4 rounds: round r is the paper's slot r + 3.

    Silo j (from 1) is in slot i with probability 1/4 for j ≤ i ≤ j + 3.
    """
    made = mechanism(Phase(4, 1.0, check_in=CheckIn(sliding=4)))
    seen: Counter[tuple[int, int]] = Counter()
    trials = 2000
    for seed in range(trials):
        for place, rounds in enumerate(chosen(made, 7, seed)):
            assert len(rounds) <= 1
            seen.update((place + 1, each + 3) for each in rounds)
    possible = {(j, i) for j in range(1, 8) for i in range(max(j, 4), min(j + 3, 7) + 1)}
    assert set(seen) == possible
    tail = FALSE_ALARM / 2 / len(possible)
    limits = stats.binom.ppf([tail, 1 - tail], trials, 0.25)
    assert all(limits[0] <= count <= limits[1] for count in seen.values())


def test_the_same_secret_gives_the_same_round_whatever_the_records() -> None:
    made = mechanism(Phase(30, 1.0, check_in=CheckIn()))
    assert chosen(made, 20, seed=5) == chosen(made, 20, seed=5)
    assert chosen(made, 20, seed=5) != chosen(made, 20, seed=6)
    records = Records(np.zeros((50, 3)), np.ones(50))
    with pytest.raises(ValueError, match="needs to know when"):
        Reporter(made, SILO, records, Linear(loss(LossName.LOGISTIC)), seeded_bytes(1))


@pytest.mark.parametrize("bad", [{"probability": 0.0}, {"probability": 1.1}, {"sliding": 0}])
def test_impossible_check_ins_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"check-in|window"):
        CheckIn(**bad)  # type: ignore[arg-type]


# What it costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_the_noise_is_that_of_one_report_however_many_rounds(entry: Algorithm) -> None:
    made = mechanism(*entry.phases(SETTING))
    assert made.rounds == 10
    assert made.sigma() == mechanism(Phase(1)).sigma()
    assert made.transcripts(SILO) == (((made.event(SILO), 1),),)
    assert epsilon_of([(made.event(SILO), 1)], 1e-5) == pytest.approx(2.0, rel=1e-6)


def test_an_abstention_is_as_long_as_a_report_and_holds_nothing() -> None:
    made = mechanism(Phase(10, 1.0, check_in=CheckIn()))
    values = np.array([5, -6, 7])
    there, away = encode_report(values, made), encode_report(values, made, takes_part=False)
    assert len(there) == len(away)
    assert is_abstention(away, made)
    assert not is_abstention(there, made)
    assert away == encode_report(-values, made, takes_part=False)
    with pytest.raises(MalformedReport):
        decode_report(away, made)
    changed = bytearray(away)
    changed[-1] = 1
    assert not is_abstention(bytes(changed), made)
    assert not is_abstention(away[:-1], made)


# What may be claimed -----------------------------------------------------------------------------


def figures_of(rounds: int, silo: Participant, check_in: CheckIn):  # type: ignore[no-untyped-def]
    made = mechanism(Phase(rounds, 1.0, check_in=check_in), silo=silo)
    return central_figures(made, [silo] * 1000, minimum_batch=1000)


def test_the_theorem_is_claimed_where_it_says_something() -> None:
    """Silos of one record, 10⁷ slots: below the local ε; never above what the theorem gives."""
    lone = CheckIn(lone=True, probability=0.5)
    local, shuffled, outsiders = figures_of(10**7, Participant(1, PrivacyTarget(0.1, 1e-6)), lone)
    assert (outsiders.name, outsiders.against.name) == ("check-ins", "OUTSIDERS")
    assert outsiders.epsilon is not None
    assert local.epsilon is not None
    assert 0 < outsiders.epsilon < local.epsilon
    assert "Theorem 3.2" in outsiders.theorem
    assert "not protect against the server" in outsiders.assumption
    # pure 0.1-DP reports would give less than any (ε₀, δ₀) of the same noise
    best = fixed_window(LocalRandomizer(0.1), 1e-6, window=10**7, check_in_probability=0.5)
    assert outsiders.epsilon > best.epsilon
    assert shuffled.epsilon is None
    assert "how many reports" in (shuffled.reason or "")


@pytest.mark.parametrize(
    ("rounds", "silo", "check_in", "says"),
    [
        (100, Participant(1, PrivacyTarget(1.0, 1e-6)), CheckIn(lone=True), "below the local"),
        (10**7, Participant(500, PrivacyTarget(0.1, 1e-6)), CheckIn(lone=True), "many records"),
        (10**6, Participant(1, PrivacyTarget(0.1, 1e-6)), CheckIn(), "below the local"),
    ],
)
def test_nothing_is_claimed_where_it_says_nothing(
    rounds: int, silo: Participant, check_in: CheckIn, says: str
) -> None:
    _, _, outsiders = figures_of(rounds, silo, check_in)
    assert outsiders.epsilon is None
    assert says in (outsiders.reason or "")


def test_averaged_check_ins_count_on_the_smallest_batch_and_pay_for_every_silo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def noted(*local: object, **counted: int) -> Amplified:
        asked.append((counted["silos"], counted["present"], counted["slots"]))
        return averaged(*local, **counted)  # type: ignore[arg-type]

    monkeypatch.setattr(central, "averaged", noted)
    silo = Participant(1, PrivacyTarget(0.1, 1e-6))
    made = mechanism(Phase(50, 1.0, check_in=CheckIn()), silo=silo)
    _, _, outsiders = central_figures(made, [silo] * 1000, minimum_batch=800)
    assert set(asked) == {(1000, 800, 50)}
    assert "who is away is away in all rounds" in outsiders.assumption


def test_averaged_check_ins_of_rounds_that_ask_some_silos_claim_nothing() -> None:
    """A silo that is asked elsewhere cannot have changed places with one that reports."""
    silo = Participant(1, PrivacyTarget(0.1, 1e-6))
    for check_in, says in ((CheckIn(), "asks some of them only"), (CheckIn(lone=True), "below")):
        made = mechanism(Phase(50, 1.0, check_in=check_in), silo=silo)
        _, _, outsiders = central_figures(made, [silo] * 1000, minimum_batch=800, asked=900)
        assert outsiders.epsilon is None
        assert says in (outsiders.reason or "")
        _, _, everybody = central_figures(made, [silo] * 1000, minimum_batch=800, asked=1000)
        assert "asks some" not in (everybody.reason or "")


def test_a_second_report_of_a_silo_ends_the_claim() -> None:
    silo = Participant(2, PrivacyTarget(0.1, 1e-6))
    made = mechanism(Phase(10**7, 0.5, check_in=CheckIn(lone=True)), Phase(1, 0.5), silo=silo)
    _, _, outsiders = central_figures(made, [silo] * 1000, minimum_batch=1000)
    assert "more than one report" in (outsiders.reason or "")


# What the server does ----------------------------------------------------------------------------


def play(entry: Algorithm, known: Setting, answers) -> tuple[list[Query], Point]:  # type: ignore[no-untyped-def]
    steps = entry.start(AlgorithmPlan(known, entry.phases(known), (0.1,)))
    queries = [next(steps)]
    while True:
        try:
            queries.append(steps.send(answers(len(queries), queries[-1])))
        except StopIteration as stop:
            return queries, stop.value


def test_an_empty_slot_moves_the_averaged_model_by_nothing() -> None:
    def answers(number: int, query: Query) -> Aggregate | None:
        if number == 4:
            return Aggregate(np.ones(3), 2)
        return None if number == 5 else Aggregate(np.zeros(3), 0)

    ridge = replace(SETTING, ridge=0.1)
    queries, model = play(check_ins.AVERAGED, ridge, answers)
    assert all(np.array_equal(query.point, np.zeros(3)) for query in queries[:4])
    assert np.all(queries[4].point < 0)
    assert np.array_equal(queries[4].point, model)


def test_lone_reports_step_once_for_as_many_slots_as_bring_a_report() -> None:
    """12 slots, 3 silos: a slot has a report with probability 1 − (11/12)³, about 1/4.4."""
    known = replace(SETTING, silos=3, participants=3, rounds=12)
    queries, _ = play(check_ins.FIXED, known, lambda *_: Aggregate(np.ones(3), 1))
    moved = [not np.array_equal(a.point, b.point) for a, b in pairwise(queries)]
    assert moved == [False, False, False, True] * 2 + [False, False, False]


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_check_ins_find_a_known_minimum(entry: Algorithm) -> None:
    """½‖w − t‖² with noise 0.1: Theorem 3.5 promises D·√(L² + dσ²)·(2 + ln m)/√m in value."""
    target = np.array([1.0, -2.0, 0.5])
    rng = np.random.default_rng(3)
    known = replace(SETTING, silos=2000, participants=2000, rounds=1000, lipschitz=8.0)

    def answers(_: int, query: Query) -> Aggregate:
        return Aggregate(query.point - target + rng.normal(0, 0.1, 3), 1)

    _, model = play(entry, known, answers)
    assert np.linalg.norm(model - target) < 0.3


def test_who_comes_to_a_lone_slot_is_about_twice_what_is_needed() -> None:
    (phase,) = check_ins.FIXED.phases(replace(SETTING, silos=1000, rounds=100))
    assert phase.check_in == CheckIn(probability=0.2, lone=True)
    (phase,) = check_ins.SLIDING.phases(replace(SETTING, silos=1000, rounds=100))
    assert (phase.rounds, phase.check_in) == (100, CheckIn(sliding=901, lone=True))
    (phase,) = check_ins.SLIDING.phases(replace(SETTING, silos=6, rounds=100))
    assert (phase.rounds, phase.check_in) == (4, CheckIn(sliding=3, lone=True))


def test_nothing_is_claimed_for_reports_of_several_local_steps() -> None:
    silo = Participant(1, PrivacyTarget(0.05, 1e-4))
    phase = Phase(10_000, steps=20, check_in=CheckIn(lone=True))
    made = Mechanism.calibrate([silo], clip=0.25, dimension=3, phases=[phase])
    (figure,) = (
        each
        for each in central_figures(made, [silo] * 20_000, minimum_batch=2)
        if each.name == "check-ins"
    )
    assert figure.epsilon is None
    assert "more than one noised gradient" in (figure.reason or "")
