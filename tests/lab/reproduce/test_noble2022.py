"""`silomix reproduce scaf`: its records, its rounds, its trials and its verdicts."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.simulation.one_process import rehearsal
from silomix_core.task.task import UNIT
from silomix_lab.reproduce import run_experiment as run
from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.experiment import ClaimVerdict, ExperimentRequest
from silomix_lab.reproduce.noble2022 import findings
from silomix_lab.reproduce.noble2022.accuracies import NobleResults
from silomix_lab.reproduce.noble2022.paper_rounds import cell, needed_sigma_g
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    CLIP,
    FED_AVG,
    FULL,
    LEVELS,
    PRINTED_ACCURACIES,
    PRINTED_DELTA,
    PRINTED_ROUNDS,
    SCAFFOLD,
    SIGMAS_G,
    UNLESS_TOLD,
    NobleMethod,
    NobleNoise,
    NobleTrial,
    Size,
)
from silomix_lab.reproduce.noble2022.trial import study
from silomix_lab.reproduce.synthetic import Population
from support.specifications import specification

VECTORS = Path(__file__).parents[2] / "vectors"
# twelve noised gradients whatever K is: one calibration for all
TINY = Size("reduced", 4, 60, 2, ((1, 12), (2, 6), (3, 4)), printed=True)
TINY_FULL = Size("full", 4, 60, 2, ((1, 20), (5, 4), (10, 2)), printed=True)


def largest_share(labels: np.ndarray) -> float:
    """Of the class that a user has most of, on average over users."""
    return float(np.mean([np.bincount(each.astype(int)).max() / len(each) for each in labels]))


# Records ------------------------------------------------------------------------------------------


def test_the_deviations_that_features_are_scaled_by_are_those_of_the_records() -> None:
    values, _ = synthetic.draw(Population(0, 3, 4000, 2), np.random.default_rng(1))
    bounds = np.array([feature.high for feature in synthetic.task(3).features])
    ratios = values.reshape(-1, synthetic.FEATURES).std(axis=0) / bounds
    assert np.allclose(ratios, 1 / 5, rtol=0.06)  # 4000 users: 1.1 % is one deviation


def test_users_differ_by_beta_and_alpha_changes_nothing() -> None:
    def labels(alpha: float, beta: float) -> np.ndarray:
        return synthetic.draw(Population(alpha, beta, 200, 200), np.random.default_rng(2))[1]

    assert np.array_equal(labels(0, 0), labels(5, 0))
    assert largest_share(labels(0, 5)) > largest_share(labels(0, 0)) + 0.05
    # so far apart that every user has one class, but for those that were changed
    assert largest_share(labels(0, 1e8)) == pytest.approx(0.95, abs=0.005)
    assert set(np.unique(labels(0, 0))) == set(range(10))


def test_a_split_gives_every_user_four_fifths_and_unit_vectors() -> None:
    made = synthetic.split(Population(0, 0, 3, 50), seed=4)
    assert [len(silo) for silo in made.silos] == [40] * 3
    assert len(made.test) == 30
    for silo in made.silos:
        norms = np.linalg.norm(silo.features[:, :-1], axis=1) / UNIT
        assert np.allclose(norms, 1, atol=1e-3)
    rows = np.concatenate([*(silo.features for silo in made.silos), made.test.features])
    assert len(np.unique(rows, axis=0)) == 150


def test_accuracy_is_the_share_of_records_whose_class_has_the_largest_score() -> None:
    made = synthetic.split(Population(0, 0, 3, 50), seed=4)
    model = np.zeros((10, synthetic.FEATURES + 1))
    model[7, -1] = 1.0
    share = np.mean(np.rint(made.test.labels * UNIT) == 7)
    assert made.accuracy(model.ravel()) == pytest.approx(100 * share)


# Rounds -------------------------------------------------------------------------------------------


def test_the_printed_rounds_are_those_of_the_vectors() -> None:
    known = tomllib.loads((VECTORS / "scaffold_rounds.toml").read_text(encoding="utf-8"))
    read = {(each["local_steps"], each["sigma_g"]): each["rounds"] for each in known["cell"]}
    ours = {
        (steps, sigma_g): rounds
        for steps, column in PRINTED_ROUNDS.items()
        for sigma_g, rounds in zip(SIGMAS_G, column, strict=True)
    }
    assert ours == read
    assert known["setting"]["delta"] == pytest.approx(PRINTED_DELTA)


def test_a_cell_costs_more_towards_the_server_and_its_noise_can_be_found() -> None:
    found = cell(5, 10, 488)
    assert found.rounds == 488
    assert 2.99 < found.third_party <= 3
    assert found.third_party < found.ours < found.server
    event = PrivacyEvent(Scheme.POISSON, 0.2, 2**20 / needed_sigma_g(5, 488), 2**20, 410)
    assert 2.9 < epsilon_of([(event, 5 * 488)], PRINTED_DELTA) <= 3


def test_other_rounds_than_printed_do_not_hold() -> None:
    cells = [cell(1, 10, 542)]
    assert findings.findings(cells, [], None).claims[0].verdict is ClaimVerdict.HOLDS
    wrong = [replace(cells[0], printed=540)]
    assert findings.findings(wrong, [], None).claims[0].verdict is ClaimVerdict.FAILS


# Trials -------------------------------------------------------------------------------------------


def test_noise_is_that_of_the_promise_or_the_printed_one() -> None:
    ours, printed = (study(TINY, 5.0, NobleMethod(SCAFFOLD, 3, noise), 5.0) for noise in NobleNoise)
    (silo, *_) = ours.participants
    assert silo.target.delta == 1 / (4 * 48)
    assert 2.5 < ours.mechanism.epsilon(silo) <= 3
    assert printed.mechanism.sigma() == pytest.approx(10 * 2 * CLIP / (0.2 * 48))
    assert ours.setting.participants == 2
    assert ours.mechanism.minibatch == Minibatch(Scheme.POISSON, 0.2)


def test_an_algorithm_is_told_of_the_batches_of_a_rehearsal() -> None:
    """dp-fedsgd takes as many steps as batches make up all records."""
    made_study = study(TINY, 0.0, NobleMethod(FED_AVG, 2), 5.0)
    made = rehearsal(
        made_study.task,
        specification(
            "dp-fedsgd",
            most_rounds=2,
            radius=5.0,
            clip=1.0,
            minibatch=Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.2),
        ),
        made_study.participants,
    )
    assert made.mechanism.phases[0].steps == 5
    assert made.setting.ratio == 0.2


def test_a_run_writes_its_findings_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "REDUCED", TINY)
    monkeypatch.setitem(run.EXPERIMENTS, "scaf", findings.EXPERIMENT)
    console = Console(record=True, width=200)
    request = ExperimentRequest(None, 1, ("reduced",), tmp_path, 1)
    run.run_experiment("scaf", request, None, console)
    run.run_experiment("scaf", replace(request, trials=2), None, console)
    # a floor, three radii of one-step, four for each of 3 × 3 and 2 × 3 printed, on two levels
    shown = console.export_text()
    assert "128 trials, 0 of them kept from before" in shown
    assert "256 trials, 128 of them kept from before" in shown
    figures = json.loads((tmp_path / "scaf.json").read_text(encoding="utf-8"))
    assert len(figures["rows"]) == 126
    for row in figures["rows"]:
        assert len(row["accuracies"]) == 2
        assert all(0 <= each <= 100 for each in row["accuracies"])
    assert min(figures["rows"][0]["floors"]) > 30
    assert (tmp_path / "scaf.png").stat().st_size > 10_000
    assert "[31.3]" in shown  # what is printed for K = 1
    assert "dp-scaffold, printed noise" in (tmp_path / "scaf.md").read_text(encoding="utf-8")


def test_the_full_part_has_its_tables_claims_notes_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "FULL", TINY_FULL)
    monkeypatch.setattr(findings, "all_cells", lambda: [cell(1, 10, 542)])
    monkeypatch.setitem(run.EXPERIMENTS, "scaf", findings.EXPERIMENT)
    console = Console(record=True, width=200)
    run.run_experiment(
        "scaf", ExperimentRequest(None, 2, ("rounds", "full"), tmp_path, 1), None, console
    )
    text = (tmp_path / "scaf.md").read_text(encoding="utf-8")
    for level in LEVELS:
        assert f"full: accuracy in %, (α, β) = ({level:g}, {level:g})" in text
    for printed in PRINTED_ACCURACIES.values():
        assert f"[{printed:.1f}]" in text
    assert "full: 4 users with 48 records to learn from, 2 asked in a round" in text
    figures = json.loads((tmp_path / "scaf.json").read_text(encoding="utf-8"))
    says = [claim["says"] for claim in figures["claims"]]
    # rounds; for either noise: better at both levels, by more there, by more for K twice
    assert len(says) == 1 + 2 * 5 + 2
    assert sum("printed noise" in each for each in says) == 5 + 1
    assert all(claim["measured"] for claim in figures["claims"])
    assert {row["noise"] for row in figures["rows"]} == {noise.value for noise in NobleNoise}
    assert (tmp_path / "scaf.png").stat().st_size > 10_000


def test_full_size_is_run_only_when_asked_for() -> None:
    assert FULL.name in findings.EXPERIMENT.parts
    assert FULL.name not in UNLESS_TOLD


# Verdicts -----------------------------------------------------------------------------------------


def made_up(scaffold_ahead_by: dict[tuple[float, int], float]) -> NobleResults:
    """Accuracies by (level, K): 50 % for all but dp-scaffold at its second radius."""
    size, found, rng = replace(TINY, printed=False), {}, np.random.default_rng(5)
    for level in LEVELS:
        for seed in range(1, 6):
            found[NobleTrial(size, level, seed).key] = 90.0
            for method in size.methods:
                for index, radius in enumerate(method.radii):
                    ahead = scaffold_ahead_by.get((level, method.local_steps), 0.0)
                    best = method.algorithm == SCAFFOLD and index == 1
                    figure = 50 + (ahead if best else -20 if index else 0) + 0.1 * rng.random()
                    found[NobleTrial(size, level, seed, method, radius).key] = figure
    return NobleResults(found, 5)


def verdicts(results: NobleResults) -> list[ClaimVerdict]:
    """Better at (0, 0), better at (5, 5), by more there, by more for K twice, one step."""
    made = findings.findings([], [replace(TINY, printed=False)], results)
    return [claim.verdict for claim in made.claims]


HOLDS, FAILS = ClaimVerdict.HOLDS, ClaimVerdict.FAILS
CELLS = tuple((level, steps) for level in LEVELS for steps in TINY.local_steps)


def test_verdicts_follow_from_the_best_radius_of_each() -> None:
    found = verdicts(made_up(dict(zip(CELLS, (1, 2, 4, 6, 8, 16), strict=True))))
    assert found == [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS]
    found = verdicts(made_up(dict(zip(CELLS, (16, 8, 6, 4, 2, 1), strict=True))))
    assert found == [HOLDS, HOLDS, FAILS, FAILS, FAILS, HOLDS]


@pytest.mark.parametrize(("better_by", "verdict"), [(1.0, HOLDS), (-1.0, FAILS)])
def test_accuracies_are_held_against_the_printed_ones(
    better_by: float, verdict: ClaimVerdict
) -> None:
    found, rng = {}, np.random.default_rng(6)
    for level in LEVELS:
        for seed in range(1, 4):
            found[NobleTrial(TINY_FULL, level, seed).key] = 90.0
            for method in TINY_FULL.methods:
                printed = PRINTED_ACCURACIES[level, method.local_steps]
                for radius in method.radii:
                    key = NobleTrial(TINY_FULL, level, seed, method, radius).key
                    found[key] = printed + better_by + 0.1 * rng.random()
    *_, claim = findings.findings([], [TINY_FULL], NobleResults(found, 3)).claims
    assert claim.says == "dp-scaffold with the printed noise is more accurate than printed (full)"
    assert claim.verdict is verdict


def test_one_trial_decides_nothing() -> None:
    results = replace(made_up({(5.0, 2): 8, (5.0, 3): 16}), trials=1)
    assert set(verdicts(results)) == {ClaimVerdict.UNDECIDED}
