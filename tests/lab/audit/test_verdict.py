"""An audit's verdict, on the silo's own arithmetic in this process and on simulated transcripts."""

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from silomix_core.accounting.events import Scheme
from silomix_core.claims.audit_bounds import gaussian_mu_lower
from silomix_core.discrete_gaussian import SIGMA_UNITS, one_stream
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.mechanism.minibatches import Mask, draw, partition
from silomix_core.model import clipped_sum
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.model.rounding import Weights, rounded
from silomix_core.reports import reporter as reporting
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_lab.audit.canary import BLANK, TASK, canary_row, neighbours, points
from silomix_lab.audit.claim import AuditClaim
from silomix_lab.audit.trials import Observed, Transcript
from silomix_lab.audit.verdict import ALPHA, AuditVerdict, Shift, judge, noticed_factor, power
from support.audits import HALF, ROUNDS, TARGET, claimed, made, means


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


# 500 find it with probability 99.97 %; 40 overlook it with probability below 10⁻¹².
FAULT_TRIALS = {rounded_by_place: 500, half_the_noise: 40}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_code_as_it_is_is_consistent_and_a_fault_is_not(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 trials, or those of `FAULT_TRIALS`, fixed seeds.

    Correct code fails such an audit with probability 0.1 % at most.
    """
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
    if loss is LossName.HINGE:
        faults[rounded_by_place] = "others"
    if study.minibatch.scheme is not Scheme.FULL:
        faults[twice_the_batch] = "moved"
    for fault, caught in faults.items():
        with monkeypatch.context() as patch:
            fault(patch)
            found = failed(rehearsed(study, FAULT_TRIALS.get(fault, 200), seed=2))
            assert caught in found, fault.__name__


def test_drawn_batches_are_consistent_every_time(tmp_path: Path) -> None:
    """20 audits, fixed seeds (each would fail with probability 0.1 %)."""
    study = made(tmp_path / "c", "shuffled-mb-sgd")
    for seed in range(20):
        assert failed(rehearsed(study, 60, seed)) == set()


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
