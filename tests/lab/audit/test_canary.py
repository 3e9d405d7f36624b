"""The audit's attack is as strong as the claim, and covers every algorithm or refuses it."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.records import read
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.model.clipped_sum import Records
from silomix_core.task.losses import LossName
from silomix_core.task.task import Task
from silomix_lab.audit.canary import (
    BLANK,
    CLIP,
    KINKED_TASK,
    TASK,
    neighbours,
    point,
    points,
    strength,
    write_people,
)
from silomix_lab.audit.claim import AuditClaim, not_covered
from silomix_lab.audit.run_audit import run_audit
from silomix_lab.audit.scratch import AuditFailed
from silomix_protocol.host.failure import Failure
from support.audits import AUDIT, HALF, ROUNDS, SILO, claimed, made, means, mechanism
from support.specifications import changed as with_changes


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
