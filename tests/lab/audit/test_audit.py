"""The audit, on real silo processes: the shipped build passes, builds with a known fault do not.

Every fault is a small script that changes the build and then runs its command line; the shipped
silo has no switch that could do it.  A correct silo is called violated with probability at most
0.1 %; a fault here is overlooked with probability below 2·10⁻⁵ (`audit_bounds.gaussian_detection`
at ε = 20, δ = 0.01: twice the claimed μ in 80 trials, three times in 30).
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from scipy import stats
from silomix.main import app
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.records import read
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.claims.audit_bounds import gaussian_mu_lower
from silomix_core.discrete_gaussian import SIGMA_UNITS, one_stream
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.minibatches import Mask, draw, partition
from silomix_core.model import clipped_sum
from silomix_core.model.clipped_sum import ClippedSum, Records, to_grid
from silomix_core.model.rounding import Weights, rounded
from silomix_core.reports import reporter as reporting
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import Task
from silomix_lab.audit.canary import (
    BLANK,
    CLIP,
    KINKED_TASK,
    RADIUS,
    RECORDS,
    TASK,
    canary_row,
    neighbours,
    point,
    points,
    strength,
    write_people,
)
from silomix_lab.audit.claim import AuditClaim, CanaryPhase, not_covered
from silomix_lab.audit.run_audit import AuditOptions, run_audit
from silomix_lab.audit.scratch import AuditFailed, make
from silomix_lab.audit.trials import Observed, Transcript
from silomix_lab.audit.verdict import ALPHA, AuditVerdict, Shift, judge, noticed_factor, power
from silomix_protocol.host.failure import Failure
from support.processes import start, wait_until
from support.specifications import changed as with_changes
from support.specifications import specification
from typer.testing import CliRunner

TARGET = PrivacyTarget(6.0, 1e-5)
SILO = Participant(RECORDS, TARGET)
ROUNDS = 4
AUDITED = specification(most_rounds=ROUNDS, clip=CLIP, radius=1.0, target=TARGET)
AUDIT = AuditOptions(AUDITED)
HALF = {scheme: Minibatch(scheme, 0.5) for scheme in (Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT)}


def mechanism() -> Mechanism:
    return Mechanism.calibrate([SILO], clip=CLIP, dimension=TASK.dimension, phases=[Phase(ROUNDS)])


def claimed() -> AuditClaim:
    part = CanaryPhase.of(Phase(ROUNDS), mechanism().event(SILO))
    return AuditClaim(TARGET, TARGET.epsilon, (part,), RECORDS)


def means(moved: float = 0.0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The exact means of D and D′ on the grid, at a point that the audit asks about, or so far in
    the canary's direction from it."""
    data = neighbours()
    first, second = (
        to_grid(
            ClippedSum(
                Records(TASK.encode(people.values), TASK.encode_labels(people.labels)),
                loss(LossName.LOGISTIC),
                CLIP,
            ).at(point(3, 10, RADIUS) + moved * data.direction),
            mechanism().units_per_sum(SILO),
        )
        for people in (data.first, data.second)
    )
    return first, second


# The attack is as strong as the claim ------------------------------------------------------------


def test_the_canary_moves_the_mean_by_all_that_the_mechanism_allows() -> None:
    first, second = means()
    moved = second - first
    limit = mechanism().sensitivity_units(SILO)
    assert np.linalg.norm(moved) <= limit
    assert moved @ neighbours().direction > limit * (1 - 1e-3)
    assert np.array_equal(first[:-1], -second[:-1])  # so 0 is the best threshold
    assert neighbours().direction[-1] == 0  # one more record of one label shows in the bias only


def test_the_data_sets_differ_in_one_person_and_blanks_are_blank() -> None:
    """Everybody else has the same values, label and number of rows, one row farther up."""
    data = neighbours()
    assert data.first.names[1:] == data.second.names[:-1]
    assert data.first.rows[1:] == data.second.rows[:-1]
    assert np.array_equal(data.first.values[1:], data.second.values[:-1])
    assert np.array_equal(data.first.labels[1:], data.second.labels[:-1])
    assert not {data.first.names[0], data.second.names[-1]} & {*data.first.names[1:]}
    assert (data.first.rows[0], data.second.rows[-1]) == (1, 3)
    assert not TASK.encode(data.first.values)[:, BLANK].any()
    assert not any(values[BLANK].any() for values in means())


@pytest.mark.parametrize("task", [TASK, KINKED_TASK])
def test_the_silos_reader_makes_of_shuffled_rows_what_the_audit_means(
    task: Task, tmp_path: Path
) -> None:
    data = neighbours(task)
    for number, people in enumerate((data.first, data.second, data.first)):
        path = tmp_path / f"{number}.csv"
        write_people(people, task, path, seed=number)
        records = read(CsvFile(path), task).records
        assert np.array_equal(records.features, task.encode(people.values))
        assert np.array_equal(records.labels, task.encode_labels(people.labels))
    texts = [(tmp_path / f"{number}.csv").read_text() for number in range(3)]
    assert texts[0] != texts[2]
    assert sorted(texts[0].splitlines()) == sorted(texts[2].splitlines())
    assert len(texts[0].splitlines()) == 1 + sum(data.first.rows)


@pytest.mark.parametrize("moved", [-0.3, 0.3])
def test_what_records_say_is_the_same_all_along_a_walk(moved: float) -> None:
    """A walk is about as long as the ball is wide, 0.02: noise takes none as far as this."""
    for here, there in zip(means(), means(moved), strict=True):
        assert np.array_equal(here, there)


@pytest.mark.parametrize("loss", [LossName.LOGISTIC, LossName.HINGE])
def test_every_round_asks_at_a_point_of_its_own_inside_the_ball(
    loss: LossName, tmp_path: Path
) -> None:
    study = made(tmp_path / "c", "noisy-mb-sgd", loss=loss)
    asked = [each for trial in range(20) for each in points(study, trial, 20)]
    assert len({each.tobytes() for each in asked}) == 20 * ROUNDS
    assert max(np.linalg.norm(each) for each in asked) <= study.radius


def test_a_crowd_stands_at_the_kink_and_says_the_same_beside_either_canary(
    tmp_path: Path,
) -> None:
    """By the model that silos have; each of the crowd who did not would move a mean by half of what
    the canary does, in the crowd's direction."""
    study = made(tmp_path / "c", "noisy-mb-sgd", loss=LossName.HINGE)
    data = neighbours(study.task, study.silos[0].records)
    assert data.crowd is not None
    sums = [
        study.model.gradients(
            Records(study.task.encode(each.values), study.task.encode_labels(each.labels)), CLIP
        )
        for each in (data.first, data.second)
    ]
    crowd = study.task.encode(data.first.values[1:2])
    for trial in range(20):
        where = point(trial, 20, study.radius, study.task)
        assert np.linalg.norm(where) <= study.radius
        assert 1 <= study.model.scores(where, crowd)[0] < 1 + 1e-8
        moved = sums[1].at(where) - sums[0].at(where)
        assert moved @ data.direction == pytest.approx(2 * CLIP * 2**36, rel=1e-3)
        assert moved @ data.crowd == 0


# What is covered ---------------------------------------------------------------------------------


def made(
    folder: Path,
    name: str,
    minibatch: Minibatch | None = None,
    steps: int | None = None,
    loss: LossName = LossName.LOGISTIC,
) -> Study:
    named = replace(AUDITED, algorithm=name, local_steps=steps, minibatch=minibatch or Minibatch())
    return make(folder, named, loss).study


def test_the_claim_follows_from_the_studys_mechanism(tmp_path: Path) -> None:
    """Whatever the algorithm, a study claims its ε: μ is the same, but for integer noise."""
    claims = {
        name: AuditClaim.of(made(tmp_path / name, name, steps=steps))
        for name, steps in [
            ("noisy-mb-sgd", None),
            ("dp-fedavg", 3),
            ("check-ins-averaged", None),
            ("one-pass-mb-sgd", None),
        ]
    }
    counts = [(each.rounds, each.answers, each.steps, len(each.parts)) for each in claims.values()]
    assert counts == [(4, 4, 1, 1), (4, 4, 3, 1), (4, 1, 1, 1), (4, 4, 1, 4)]
    for claim in claims.values():
        assert claim.mu == pytest.approx(claimed().mu, rel=1e-3)
        assert {part.mu for part in claim.parts} == {claim.mu}


@pytest.mark.parametrize("scheme", list(HALF))
def test_the_claim_of_drawn_batches_is_what_the_best_attacker_reaches(
    scheme: Scheme, tmp_path: Path
) -> None:
    """20 000 simulated studies: errors of the likelihood ratio are those of the claimed μ.

    5 standard errors of the errors' rate, fixed seed; μ is rounded up.
    """
    claim = AuditClaim.of(made(tmp_path / "c", "noisy-mb-sgd", HALF[scheme]))
    (part,) = claim.parts
    assert (part.chance, part.answers) == (0.5, 4)
    rng = np.random.default_rng(1)
    there = rng.random((20_000, 4)) < part.chance
    values = part.move * there + rng.normal(0, 1, (20_000, 4))
    likelier = 1 - part.chance + part.chance * np.exp(part.move * values - part.move**2 / 2)
    less = 1 - part.chance + part.chance * np.exp(-part.move * values - part.move**2 / 2)
    wrong = float(np.mean(np.prod(likelier / less, axis=1) <= 1))
    best = stats.norm.sf(claim.mu / 2)
    assert best == pytest.approx(wrong, abs=5 * sqrt(wrong / 20_000))


def test_every_algorithm_is_covered_and_its_canary_as_loud_as_a_record_may_be(
    tmp_path: Path,
) -> None:
    for name in ALGORITHMS:
        study = made(tmp_path / name, name)
        assert not_covered(study) is None, name
        assert strength(study) > 0.999


def test_what_would_be_a_weak_attack_is_refused(tmp_path: Path, scratch: Path) -> None:
    walking = with_changes(AUDIT, algorithm="dp-fedavg", minibatch=HALF[Scheme.WITHOUT_REPLACEMENT])
    with pytest.raises(AuditFailed, match="a batch for every local step"):
        run_audit(walking)
    smoothed = with_changes(AUDIT, algorithm="moreau-smoothing", target=PrivacyTarget(0.001, 1e-5))
    with pytest.raises(AuditFailed, match=r"by \d+ % of what is allowed; use a larger epsilon"):
        run_audit(smoothed)
    for algorithm in ("dp-fedavg", "one-pass-mb-sgd"):
        with pytest.raises(AuditFailed, match="only where every report is of all records"):
            run_audit(with_changes(AUDIT, algorithm=algorithm, loss="hinge"))
    with pytest.raises(Failure, match="draws its own batches"):
        run_audit(with_changes(walking, algorithm="shuffled-mb-sgd"))


# The verdict, by the silo's own arithmetic in this process ----------------------------------------


def rehearsed(study: Study, trials: int, seed: int) -> AuditVerdict:
    """An audit of the code as it is now, without processes: D and D′ in turn."""
    data, mechanism = neighbours(study.task, study.silos[0].records), study.mechanism()
    silo, claim = study.participant(study.silos[0]), AuditClaim.of(study)
    tables = [
        Records(study.task.encode(each.values), study.task.encode_labels(each.labels))
        for each in (data.first, data.second)
    ]
    transcripts, number, noise = list[Transcript](), 0, np.random.default_rng(seed)
    while len(transcripts) < trials:
        second, number = len(transcripts) % 2 == 1, number + 1
        rows = partition(silo.records, study.phases, np.random.default_rng([seed, number]).bytes)
        canary = canary_row(tables[second])
        part = [index for index, each in enumerate(rows) if canary in each]
        if not part:
            continue
        reporter = Reporter(
            mechanism,
            silo,
            tables[second],
            study.model,
            np.random.default_rng([seed, number]).bytes,
        )
        places = enumerate(points(study, len(transcripts), trials), start=1)
        asked = [RoundQuery(number, where) for number, where in places]
        transcripts.append(
            Transcript(
                second=second,
                part=part[0],
                reports=np.array(
                    [reporter.values(each, one_stream(noise.bytes)) for each in asked]
                ),
                charged_first=(True,) * study.rounds,
                charged_rounds=study.rounds,
                charged_epsilon=claim.epsilon,
            )
        )
    return judge(claim, Observed(tuple(transcripts), ()), data)


FAMILIES: dict[str, tuple[str, Minibatch | None]] = {
    "hinge": ("noisy-mb-sgd", None),
    "one-pass": ("one-pass-mb-sgd", None),
    "localized": ("localized-subgradient", None),
    "Poisson": ("noisy-mb-sgd", HALF[Scheme.POISSON]),
    "without replacement": ("noisy-mb-sgd", HALF[Scheme.WITHOUT_REPLACEMENT]),
    "counted": ("shuffled-mb-sgd", None),
    "Moreau": ("moreau-smoothing", None),
    "convolution, Poisson": ("convolution-smoothing", HALF[Scheme.POISSON]),
}


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    draw = reporting.discrete_gaussian
    patch.setattr(reporting, "discrete_gaussian", lambda *asked: draw(*asked) // 2)


def no_clip(patch: pytest.MonkeyPatch) -> None:
    at = ClippedSum.at

    def unclipped(self: ClippedSum, *asked: Any) -> NDArray[np.int64]:
        self._caps = np.full(len(self), 2.0**20)
        return at(self, *asked)

    patch.setattr(ClippedSum, "at", unclipped)


def two_phases(patch: pytest.MonkeyPatch) -> None:
    def overlapping(*asked: Any) -> list[NDArray[np.int64]]:
        rows = partition(*asked)
        pairs = zip(rows, rows[-1:] + rows[:-1], strict=True)
        return [np.concatenate([each, before]) for each, before in pairs]

    patch.setattr(reporting, "partition", overlapping)


def twice_the_batch(patch: pytest.MonkeyPatch) -> None:
    def larger(batch: Minibatch, *asked: Any) -> Mask | None:
        if batch.count is not None:
            return draw(replace(batch, count=2 * batch.count), *asked)
        return draw(replace(batch, ratio=min(1.0, 2 * batch.ratio)), *asked)

    patch.setattr(reporting, "draw", larger)


def rounded_by_place(patch: pytest.MonkeyPatch) -> None:
    """Scores of floats whose last bit depends on the row, as some matrix libraries have them."""

    def by_place(self: Weights, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = Weights.scores(Weights(self.integers, self.unit), vectors)
        scores[-3:] *= 1 - 2.0**-20  # beyond what rounding the point moves them
        return scores

    class ByPlace(Weights):
        scores = by_place

    def rounded_so(point: NDArray[np.float64]) -> Weights:
        found = rounded(point)
        return ByPlace(found.integers, found.unit)

    patch.setattr(clipped_sum, "rounded", rounded_so)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_code_as_it_is_is_consistent_and_a_fault_is_not(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 trials, fixed seeds.  Correct code fails such an audit with probability 0.1 % at most."""
    loss = LossName.HINGE if family == "hinge" else LossName.LOGISTIC
    study = made(tmp_path / "c", *FAMILIES[family], loss=loss)
    kept = rehearsed(study, 200, seed=1)
    assert failed(kept) == set()
    whole = kept.claim.mu if isinstance(kept.sharper, Shift) else 1.0
    assert kept.sharper.estimate == pytest.approx(whole, abs=5 * kept.sharper.error)
    assert kept.sharper.error < 0.25 * whole  # the attack is not a toothless one
    sharper = "mu-gaussian" if isinstance(kept.sharper, Shift) else "moved"
    faults = {half_the_noise: "noise", no_clip: sharper}
    if len(study.phases) > 1:
        faults[two_phases] = "one-phase"
    if loss is LossName.HINGE:  # 500 trials find it with probability 99.97 %
        faults[rounded_by_place] = "others"
    if study.minibatch.scheme is not Scheme.FULL:
        faults[twice_the_batch] = "moved"
    for fault, caught in faults.items():
        with monkeypatch.context() as patch:
            fault(patch)
            trials = 500 if fault is rounded_by_place else 200
            assert caught in failed(rehearsed(study, trials, seed=2)), fault.__name__


def test_drawn_batches_are_consistent_every_time(tmp_path: Path) -> None:
    """20 audits, fixed seeds (each would fail with probability 0.1 %)."""
    study = made(tmp_path / "c", "shuffled-mb-sgd")
    for seed in range(20):
        assert failed(rehearsed(study, 60, seed)) == set()


# The verdict, on simulated transcripts -----------------------------------------------------------


def simulated(seed: int, trials: int, scale: float = 1.0) -> Observed:
    """What a silo with `scale` times the noise would have sent."""
    rng = np.random.default_rng(seed)
    centres = means()
    noise = rng.normal(0, scale * SIGMA_UNITS, (trials, ROUNDS, TASK.dimension))
    return Observed(
        tuple(
            Transcript(
                second=number % 2 == 1,
                part=0,
                reports=np.rint(noise[number] + centres[number % 2]).astype(np.int64),
                charged_first=(True,) * ROUNDS,
                charged_rounds=ROUNDS,
                charged_epsilon=TARGET.epsilon,
            )
            for number in range(trials)
        ),
        (),
    )


def judged(observed: Observed) -> AuditVerdict:
    return judge(claimed(), observed, neighbours())


def failed(verdict: AuditVerdict) -> set[str]:
    return {check.name for check in verdict.checks if not check.passed}


def test_a_silo_that_keeps_its_promise_is_consistent_every_time() -> None:
    """100 audits of 500 trials, fixed seeds (each would fail with probability 0.1 %)."""
    for seed in range(100):
        verdict = judged(simulated(seed, 500))
        assert not verdict.violated, failed(verdict)
        assert verdict.mu_lower < verdict.claim.mu
        assert verdict.sharper.estimate == pytest.approx(verdict.claim.mu, abs=0.5)


def test_the_standard_error_of_mu_is_how_much_it_varies() -> None:
    """100 audits: their spread is known to 7 %, 30 % are four times that."""
    verdicts = [judged(simulated(seed, 500)) for seed in range(100)]
    spread = np.std([verdict.sharper.estimate for verdict in verdicts], ddof=1)
    assert verdicts[0].sharper.error == pytest.approx(spread, rel=0.3)


def test_half_the_noise_is_violated_every_time_whatever_the_noise_is_taken_for() -> None:
    for seed in range(100):
        verdict = judged(simulated(seed, 500, scale=0.5))
        assert failed(verdict) == {"mu", "mu-gaussian", "noise"}
    found = power(claimed(), 500, 2)
    assert found.moved >= (found.moved_any_noise or 0) > 0.9999
    assert found.noise > 0.9999


@pytest.mark.parametrize("trials", [100, 500])
def test_the_power_that_is_told_is_that_of_simulated_audits(trials: int) -> None:
    """300 audits of a canary that moves reports 1.25 times as far: 4 standard errors, 10⁻⁴."""
    claim, factor, rng = claimed(), 1.25, np.random.default_rng(trials)
    found = sum(
        gaussian_mu_lower(
            rng.normal(-factor * claim.mu / 2, 1, trials // 2),
            rng.normal(factor * claim.mu / 2, 1, trials // 2),
            ALPHA / 4,
        )
        > claim.mu
        for _ in range(300)
    )
    told = power(claim, trials, factor).moved
    assert found / 300 == pytest.approx(told, abs=4 * sqrt(told * (1 - told) / 300) + 1e-3)
    assert power(claim, trials, noticed_factor(claim, trials)).moved == pytest.approx(0.99)


def test_the_power_that_is_told_of_less_noise_is_that_of_simulated_audits() -> None:
    """200 audits of 20 trials with noise divided by 1.25: 4 standard errors, 10⁻⁴."""
    found = sum("noise" in failed(judged(simulated(seed, 20, scale=0.8))) for seed in range(200))
    told = power(claimed(), 20, 1.25).noise
    assert found / 200 == pytest.approx(told, abs=4 * sqrt(told * (1 - told) / 200) + 1e-3)


def test_a_twentieth_less_noise_is_still_seen_where_there_is_nothing_else() -> None:
    assert failed(judged(simulated(1, 500, scale=0.95))) == {"noise"}


def changed(observed: Observed, number: int, **fields: Any) -> Observed:
    transcripts = list(observed.transcripts)
    transcripts[number] = replace(transcripts[number], **fields)
    return replace(observed, transcripts=tuple(transcripts))


def test_one_late_charge_one_missing_one_and_one_repeated_noise_are_each_enough() -> None:
    observed = simulated(2, 100)
    late = changed(observed, 7, charged_first=(True, False, True, True))
    assert failed(judged(late)) == {"charged-first"}
    assert failed(judged(changed(observed, 7, charged_rounds=3))) == {"charge"}
    assert failed(judged(changed(observed, 7, charged_epsilon=5.9))) == {"charge"}
    assert failed(judged(replace(observed, broken_ledgers=("torn",)))) == {"ledger-intact"}
    twice = observed.transcripts[8].reports.copy()
    twice[1] = twice[3]
    assert failed(judged(changed(observed, 8, reports=twice))) == {"fresh-noise"}
    twice[1, BLANK] = -twice[3, BLANK]
    assert failed(judged(changed(observed, 8, reports=twice))) == {"fresh-noise"}


def test_noise_that_knows_the_round_before_is_seen() -> None:
    observed = simulated(3, 500)
    mixed = []
    for each in observed.transcripts:
        reports = each.reports.astype(np.float64)
        reports[1:] = 0.9 * reports[1:] + sqrt(1 - 0.81) * reports[:-1]
        mixed.append(replace(each, reports=np.rint(reports).astype(np.int64)))
    assert "correlation-by-round" in failed(judged(replace(observed, transcripts=tuple(mixed))))


# Real processes ----------------------------------------------------------------------------------

FAULTS = {
    "half the noise": """
from silomix_core.reports import reporter
draw = reporter.discrete_gaussian
reporter.discrete_gaussian = lambda *asked: draw(*asked) // 2
""",
    "sensitivity C/n": """
from silomix_core.mechanism import mechanism
grid = mechanism._grid
mechanism._grid = lambda silo, clip, *rest: grid(silo, clip / 2, *rest)
def sensitivity(self, silo, phase=0):
    moved = self.clip * self.units_per_sum(silo, phase)
    return moved + mechanism._rounding(self.minibatch, self.dimension)
mechanism.Mechanism.sensitivity_units = sensitivity
""",
    "no root of R": """
from math import sqrt
from silomix_core.mechanism import mechanism
from silomix_core.accounting import events
mu = mechanism.largest_mu
mechanism.largest_mu = lambda *study: mu(*study) * sqrt(9)
events.PrivacyEvent.mu = property(lambda event: event.sensitivity / event.noise / sqrt(9))
""",
    "the average is clipped, not the records": """
import numpy as np
from silomix_core.model import clipped_sum
at = clipped_sum.ClippedSum.at
def unclipped(self, point, *drawn):
    self._caps = np.full(len(self), 2.0**20)
    total, limit = at(self, point, *drawn), len(self) * 0.1 * 2**36
    return (total * min(1.0, limit / max(np.linalg.norm(total), 1))).astype(np.int64)
clipped_sum.ClippedSum.at = unclipped
""",
    "noise reused across rounds": """
from silomix_client.rounds import answer
from silomix_client.random_stream import stream_of
start = answer.StudyDesk.__init__
def same_noise(self, *args, **kwargs):
    start(self, *args, **kwargs)
    self._streams = lambda descriptor: lambda _label: stream_of(descriptor.study)
answer.StudyDesk.__init__ = same_noise
""",
    "charged late": """
from silomix_client.ledger import hash_chain
from silomix_client.ledger.study_account import StudyAccount
from silomix_client.rounds import lease
charge, send, waiting = StudyAccount.charge, lease.LeaseHolder._send, []
def later(self, *args):
    waiting.append((self, args))
    return hash_chain.ChainEntry(0, b"", {})
async def send_first(self, *args):
    await send(self, *args)
    for account, late in waiting:
        charge(account, *late)
    waiting.clear()
StudyAccount.charge = later
lease.LeaseHolder._send = send_first
""",
}
FAMILY_FAULTS = {
    "noise at the first local step only": """
from silomix_core.reports import reporter
draw, walk = reporter.discrete_gaussian, reporter.Reporter._walk
def noised_once(self, *asked):
    drawn = []
    def first(*asked):
        drawn.append(draw(*asked) * (not drawn))
        return drawn[-1]
    reporter.discrete_gaussian = first
    return walk(self, *asked)
reporter.Reporter._walk = noised_once
""",
    "checks in every time, charged once": """
from silomix_core.reports import reporter
reporter.Reporter.takes_part = lambda self, round_number: True
""",
}
CAUGHT = {  # rounds of a study and trials that suffice, and the checks that must fail
    "half the noise": (4, 20, {"noise"}),
    "sensitivity C/n": (4, 80, {"mu-gaussian"}),
    "no root of R": (9, 30, {"mu-gaussian", "charge", "ledger-intact"}),
    "the average is clipped, not the records": (4, 30, {"mu-gaussian"}),
    "noise reused across rounds": (4, 20, {"fresh-noise", "correlation-by-round"}),
    "charged late": (4, 20, {"charged-first"}),
}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the audit makes its scratch folder; it must be empty in the end."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def arguments(*more: object) -> list[str]:
    return [sys.executable, "-m", "silomix", "audit", *map(str, more)]


def audit(folder: Path, *more: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments(*more), cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_shipped_silo_is_consistent(tmp_path: Path, scratch: Path) -> None:
    """With everybody but the canary at the kink of the hinge loss."""
    result = audit(
        tmp_path,
        *("--loss", "hinge", "--trials", 40, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "verdict      consistent" in result.stdout
    assert re.search(
        r"would notice with probability: .*: 1.25 times 1.70 %, 2 times 94.27 %, 2.16 times 99 %; "
        r"noise divided by 1.25 above 99.99 %, by 2 above 99.99 %; one other person more or less",
        result.stdout,
    )
    assert "\napproving 8 studies …\nattacking 40 studies, 4 rounds each …\n" in result.stdout
    assert "checks       11 checks ok: mu, epsilon, mu-gaussian, noise, others, " in result.stdout
    assert re.search(r"if Gaussian  mu \d\.\d+ ± 0\.\d+ \(standard error\)", result.stdout)
    assert result.stderr == ""
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["verdict"] == "consistent"
    assert figures["violations"] == []
    assert figures["trials"] == 40
    assert figures["confidence"] == pytest.approx(0.999)
    assert figures["loss"] == "hinge"
    assert [*figures["power"]] == ["1.25", "2"]
    assert figures["power"]["2"]["moved"] == pytest.approx(0.9427, abs=1e-3)
    assert figures["power"]["1.25"]["noise"] > 0.9999
    assert figures["noticed_factor"] == pytest.approx(2.16, abs=0.01)
    assert figures["power_one_of_the_crowd"] == pytest.approx(0.9955, abs=1e-3)
    assert figures["mu_lower_bound"] <= figures["mu_claimed"]
    assert figures["epsilon_lower_bound"] <= figures["epsilon_claimed"] == 20
    # The attack is not a toothless one: it measures what is claimed (5 standard errors).
    assert figures["mu_estimate"] == pytest.approx(figures["mu_claimed"], rel=0.7)
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.15)
    assert (tmp_path / "silomix-audit.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "audit.json",
        "scratch",
        "silomix-audit.png",
    ]


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("dp-fedavg", ("--local-steps", 3)),
        ("dp-scaffold", ("--local-steps", 3)),
        ("check-ins-averaged", ()),
        ("one-pass-mb-sgd", ()),
    ],
)
def test_one_of_each_family_is_consistent_and_measures_what_is_claimed(
    algorithm: str, more: tuple[object, ...], tmp_path: Path, scratch: Path
) -> None:
    result = audit(
        tmp_path,
        *("--algorithm", algorithm, *more, "--trials", 20, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["verdict"] == "consistent"
    assert figures["algorithm"] == algorithm
    # Fails a correct audit with probability below 10⁻⁶ (noncentral t of 18 degrees of freedom),
    # and the noise of 20 reports and more, of four blanks each, is five standard errors away.
    assert figures["mu_estimate"] > 0.3 * figures["mu_claimed"]
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.4)


def test_smoothed_and_drawn_are_consistent_and_measure_what_is_claimed(
    tmp_path: Path, scratch: Path
) -> None:
    """Phases, random points and drawn batches at once, on real processes.

    That the canary is in no phase of all four studies on D, or on D′, has probability 3·10⁻⁵.
    """
    drawn = ("--sampling", "without-replacement", "--ratio", 0.5)
    result = audit(
        tmp_path,
        *("--algorithm", "convolution-smoothing", *drawn, "--trials", 40, "--json", "audit.json"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 phases of which a record is in one, in which a record is drawn with" in result.stdout
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["checks"]["one-phase"]["passed"]
    assert figures["phases"] == 4
    # Fails a correct audit with probability below 10⁻⁶, as the noise of 160 reports does.
    assert figures["moved_estimate"] == pytest.approx(1, abs=5 * figures["moved_standard_error"])
    assert figures["noise_estimate"] == pytest.approx(1, abs=0.14)
    assert (tmp_path / "silomix-audit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("fault", "options", "caught"),
    [
        (
            "noise at the first local step only",  # three times the claimed μ
            ("--algorithm", "dp-fedavg", "--local-steps", 9, "--trials", 30),
            {"mu-gaussian", "noise"},
        ),
        (
            "checks in every time, charged once",
            ("--algorithm", "check-ins-averaged", "--trials", 20),
            {"charged-first"},
        ),
    ],
)
def test_a_fault_of_one_family_is_violated(
    fault: str, options: tuple[object, ...], caught: set[str], tmp_path: Path, scratch: Path
) -> None:
    build = tmp_path / "faulty build.py"
    build.write_text(f"{FAMILY_FAULTS[fault]}\nfrom silomix.main import run\nrun()\n")
    result = audit(
        tmp_path,
        *(*options, "--epsilon", 20, "--delta", 0.01),
        *("--json", "audit.json", "--silo-command", f"{sys.executable} '{build}' silo"),
    )
    assert result.returncode == 3, result.stdout + result.stderr
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert caught <= {name for name, check in figures["checks"].items() if not check["passed"]}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_build_with_a_fault_is_violated(fault: str, tmp_path: Path, scratch: Path) -> None:
    build = tmp_path / "faulty build.py"
    build.write_text(f"{FAULTS[fault]}\nfrom silomix.main import run\nrun()\n")
    rounds, trials, caught = CAUGHT[fault]
    result = audit(
        tmp_path,
        *(
            "--rounds",
            rounds,
            "--trials",
            trials,
            "--epsilon",
            20,
            "--delta",
            0.01,
            "--json",
            "audit.json",
        ),
        *("--silo-command", f"{sys.executable} '{build}' silo"),
    )
    assert result.returncode == 3, result.stdout + result.stderr
    assert "verdict      violated" in result.stdout
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["verdict"] == "violated"
    for name, check in figures["checks"].items():
        assert (f"violation    {name}: {check['says']}" in result.stdout) != check["passed"]
    assert caught <= {name for name, check in figures["checks"].items() if not check["passed"]}


def _wait_for_a_silo(audit: "subprocess.Popen[Any]", scratch: Path) -> None:
    wait_until(
        lambda: audit.poll() is not None or any(scratch.rglob("silo.log")), "a silo was started"
    )
    assert audit.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_audit_leaves_nothing(
    number: signal.Signals, tmp_path: Path, scratch: Path
) -> None:
    audit = start(arguments("--trials", 40), tmp_path)
    try:
        _wait_for_a_silo(audit, scratch)
        children = psutil.Process(audit.pid).children(recursive=True)
        assert children
        audit.send_signal(number)
        _, said = audit.communicate(timeout=30)
    finally:
        audit.kill()
        audit.wait()
    assert audit.returncode == 1
    assert said == "silomix: interrupted; nothing was kept\n"
    assert not any(child.is_running() for child in children)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scratch"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 21}, "--trials: an even number"),
        ({"trials": 2}, "--trials: an even number"),
        ({"most_rounds": 0}, "--rounds: from 1 to 1000"),
        ({"algorithm": "sgd"}, "unknown algorithm 'sgd'"),
        ({"loss": "squared"}, "--loss: logistic or hinge, not 'squared'"),
        ({"local_steps": 3}, "--local-steps: noisy-mb-sgd has none to choose"),
        ({"algorithm": "dp-fedavg", "local_steps": 0}, "--local-steps: at least 1"),
        ({"algorithm": "dp-fedavg", "local_steps": 1001}, "local_steps must lie between 1 and"),
        (
            {"target": PrivacyTarget(6.0, 1e-40)},
            "epsilon=6 at delta=1e-40 cannot be kept with integer noise",
        ),
        ({"json": Path("nowhere/audit.json")}, "--json nowhere/audit.json: there is no such"),
        ({"png": Path()}, "--png .: cannot be written"),
        ({"silo_command": "no-such-program silo"}, "no such program"),
        ({"silo_command": "'torn"}, "No closing quotation"),
        ({"silo_command": ""}, "no such program"),
    ],
)
def test_what_cannot_be_audited_is_said_before_anything_starts(
    options: dict[str, Any], said: str, scratch: Path
) -> None:
    with pytest.raises(AuditFailed, match=re.escape(said)):
        run_audit(with_changes(AUDIT, **options))


def test_an_epsilon_of_no_study_is_refused() -> None:
    result = CliRunner().invoke(app, ["audit", "--epsilon", "-1"])
    assert isinstance(result.exception, Failure)
    assert "epsilon must be above 0" in str(result.exception)


def test_a_command_that_is_no_silo_is_one_line(tmp_path: Path, scratch: Path) -> None:
    result = audit(tmp_path, "--trials", 20, "--silo-command", "false")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line == (
        "silomix: the silo did not approve the audit's study: it printed nothing, exit status 1"
    )


def test_a_silo_that_stops_answering_is_no_verdict(tmp_path: Path, scratch: Path) -> None:
    build = tmp_path / "build.py"
    build.write_text(
        "from silomix_client import errors\n"
        "from silomix_client.rounds import answer\n"
        "def refuse(*_): raise errors.RefusedQuery('out of order')\n"
        "answer.StudyDesk.answer = refuse\n"
        "from silomix.main import run\nrun()\n"
    )
    result = audit(tmp_path, "--trials", 20, "--silo-command", f"{sys.executable} {build} silo run")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("silomix: the silo answered 0 of 4 rounds")
    assert "verdict" not in result.stdout


def test_a_killed_audit_takes_its_silos_along(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    audit = subprocess.Popen(
        arguments("--trials", 40), cwd=tmp_path, env=os.environ | {"TMPDIR": str(folder)}
    )
    try:
        _wait_for_a_silo(audit, folder)
        children = psutil.Process(audit.pid).children(recursive=True)
    finally:
        audit.kill()
        audit.wait()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)
