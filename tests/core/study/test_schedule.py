"""Whom a round asks: the same silos for everybody who looks, all of them equally often."""

from collections import Counter
from hashlib import sha256
from math import ceil, comb, gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Mechanism, Participant
from silomix_core.reports.reporter import Integers, RoundQuery
from silomix_core.simulation.one_process import run_study
from silomix_core.study.derive import phases_of, plan_of, setting_of
from silomix_core.study.schedule import Draw, asked_places
from support.specifications import specification
from support.studies import parse, study_tree

STUDY, OTHER = b"s" * 32, b"o" * 32
sizes = st.integers(1, 24).flatmap(lambda silos: st.tuples(st.just(silos), st.integers(1, silos)))


def schedule(
    seed: bytes, silos: int, asked: int, rounds: int, first: int = 1, draw: Draw = Draw.TURNS
) -> list[frozenset[int]]:
    """The silos of the first so many rounds of a phase."""
    numbers = range(first, first + rounds)
    return [asked_places(seed, number, silos, asked, draw, first) for number in numbers]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.binary(min_size=32, max_size=32),
    size=sizes,
    rounds=st.integers(1, 60),
    first=st.integers(1, 1000),
)
def test_every_silo_is_asked_as_often_as_every_other_and_never_twice_in_a_round(
    seed: bytes, size: tuple[int, int], rounds: int, first: int
) -> None:
    silos, asked = size
    named = schedule(seed, silos, asked, rounds, first)
    assert all(len(each) == asked and each <= frozenset(range(silos)) for each in named)
    times = Counter(place for each in named for place in each)
    least, most = rounds * asked // silos, ceil(rounds * asked / silos)
    assert all(least <= times[place] <= most for place in range(silos))


@settings(deadline=None, max_examples=30)
@given(
    seed=st.binary(min_size=32, max_size=32),
    size=sizes,
    number=st.integers(1, 10**6),
    after=st.integers(0, 100),
)
def test_the_schedule_is_what_the_protocol_says(
    seed: bytes, size: tuple[int, int], number: int, after: int
) -> None:
    """Written down once more from docs/protocol.md, in the plainest way."""
    silos, asked = size
    length = silos // gcd(silos, asked)
    phase = max(1, number - after)  # its first round

    def order(begins: int) -> list[int]:
        label = b"silomix/v1/asked\0" + seed + begins.to_bytes(4, "big")
        hashes = {
            sha256(label + place.to_bytes(4, "big")).digest(): place for place in range(silos)
        }
        return [hashes[each] for each in sorted(hashes)]

    begins = phase + (number - phase) // length * length
    turn, standing = (number - begins) * asked, order(begins)
    expected = {standing[each % silos] for each in range(turn, turn + asked)}
    assert asked_places(seed, number, silos, asked, Draw.TURNS, phase) == expected
    alone = asked_places(seed, number, silos, asked, Draw.INDEPENDENT, phase)
    assert alone == set(order(number)[:asked])
    block, standing = (number - 1) // length, order((number - 1) // length)
    turn = (number - 1 - block * length) * asked
    expected = {standing[each % silos] for each in range(turn, turn + asked)}
    assert asked_places(seed, number, silos, asked, Draw.BLOCKS, phase) == expected


def test_other_studies_and_other_blocks_ask_in_another_order() -> None:
    silos, asked = 24, 6
    block = silos // gcd(silos, asked)
    own = schedule(STUDY, silos, asked, 2 * block)
    assert own[:block] != own[block:]
    assert own != schedule(OTHER, silos, asked, 2 * block)


def test_every_choice_of_silos_is_as_likely_as_every_other() -> None:
    """2000 studies, 10 pairs of 5 silos, each 200 ± 13.4: beyond 5 deviations once in 10⁵ runs
    (and never again, since the seeds are fixed)."""
    for draw in Draw:
        drawn = Counter(asked_places(sha256(bytes([i // 256, i % 256])).digest(), 3, 5, 2, draw)
                        for i in range(2000))  # fmt: skip
        assert len(drawn) == comb(5, 2)
        assert all(abs(times - 200) < 5 * 13.4 for times in drawn.values())


@pytest.mark.parametrize("asked", [0, 4])
def test_a_round_that_would_ask_nobody_or_more_than_there_are_is_refused(asked: int) -> None:
    with pytest.raises(ValueError, match="a round asks 1 to 3 silos"):
        asked_places(STUDY, 1, 3, asked, Draw.TURNS)


def test_a_study_names_its_silos_in_the_rosters_order() -> None:
    tree = study_tree()
    roster = tuple(silo["name"] for silo in tree["silos"])
    assert {parse(tree).asked(number) for number in range(1, 5)} == {roster}
    tree["batch"]["minimum"] = tree["algorithm"]["participants"] = 2
    for named, draw in (*((each.value, each) for each in Draw), (None, Draw.BLOCKS)):
        tree["algorithm"].pop("draw", None)
        if named is not None:
            tree["algorithm"]["draw"] = named
        study = parse(tree)
        assert study.draw is draw
        for number in range(1, study.rounds + 1):
            places = sorted(asked_places(study.identity, number, len(roster), 2, draw))
            assert study.asked(number) == tuple(roster[place] for place in places)


def test_every_phase_begins_turns_of_its_own() -> None:
    """One-pass learning has a phase for each round; localized learning a few, of several rounds."""
    tree = study_tree()
    tree["batch"]["minimum"] = tree["algorithm"]["participants"] = 2
    tree["algorithm"] |= {"draw": "turns", "name": "localized-mb-sgd", "rounds": 40}
    study = parse(tree)
    assert len(study.phases) > 1
    first = 1
    for phase in study.phases:
        rounds = range(first, first + phase.rounds)
        assert phase.turns == ceil(phase.rounds * 2 / 3)
        times = Counter(name for number in rounds for name in study.asked(number))
        assert max(times.values()) == phase.turns
        first += phase.rounds


def test_a_simulation_asks_by_the_schedule_of_a_study() -> None:
    class Noted:
        """A silo that notes in which rounds it is asked."""

        def __init__(self) -> None:
            self.rounds: list[int] = []

        def values(self, question: RoundQuery, _: RandomBytes, __: Integers | None) -> Integers:
            self.rounds.append(question.round)
            return np.ones(len(question.point), dtype=np.int64)

        def takes_part(self, _: int) -> bool:
            return True

    task, entry = parse(study_tree()).task, algorithm("noisy-mb-sgd")
    participants = [Participant(50, PrivacyTarget(2.0, 1e-6))] * 5
    named = specification(most_rounds=12, radius=5.0, clip=0.5, participants=3)
    setting = setting_of(task, named, participants)
    phases, dimension = phases_of(setting, named), task.dimension
    mechanism = Mechanism.calibrate(participants, clip=0.5, dimension=dimension, phases=phases)
    silos, rng = [Noted() for _ in participants], np.random.default_rng(3)
    run_study(entry, plan_of(setting, mechanism), mechanism, silos, rng, bytes)
    expected = schedule(np.random.default_rng(3).bytes(32), 5, 3, 12)
    for place, silo in enumerate(silos):
        assert silo.rounds == [n for n, each in enumerate(expected, start=1) if place in each]


# What a server learns from the sets that change --------------------------------------------------


@pytest.mark.parametrize(("silos", "asked"), [(5, 3), (5, 4), (10, 3), (10, 5), (25, 5), (25, 20)])
def test_subsets_tell_as_little_of_a_silo_as_the_protocol_says(silos: int, asked: int) -> None:
    """Asked the same in every round, by least squares, against knowing which report is whose."""
    errors = []
    for seed in range(20):
        sets = schedule(sha256(bytes([seed])).digest(), silos, asked, 100)
        design = np.array([[place in each for place in range(silos)] for each in sets], dtype=float)
        unlinked = asked * np.diag(np.linalg.inv(design.T @ design))  # of reports of variance 1
        errors.append(np.sqrt(unlinked * design.sum(axis=0)).mean())
    stated = np.sqrt(asked * (silos - 1) / (silos - asked))
    assert 0.9 * stated < np.mean(errors) < 1.2 * stated
