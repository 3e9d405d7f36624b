"""Batches, phases and weights at the silo: what a record can touch, and what is charged for it."""

from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.data.snapshot import thaw
from silomix_client.errors import BudgetExhausted, NotApproved, RefusedQuery
from silomix_client.ledger.verify_ledger import verify
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.study.specification import Batching
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import DemoOptions, prepare
from support.consortia import csv_path
from support.silos import (
    NOW,
    altered,
    approval_of,
    approved_silo,
    asked,
    copied,
    no_noise,
    open_desk,
    open_ledger,
    opened,
    study_file,
)
from support.specifications import specification

ONE_PASS = ('name = "noisy-mb-sgd"', 'name = "one-pass-mb-sgd"')
POISSON = ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5')
FIXED = ("clip = 0.25", 'clip = 0.25\nsampling = "without-replacement"\nratio = 0.5')


def renyi_policy(made: Consortium, epsilon: float = 8.0) -> None:
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text(
        f'epsilon = {epsilon}\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n'
    )


def replace_record(config: SiloConfig, row: int) -> None:
    lines = csv_path(config.data).read_text().splitlines()
    lines[row + 1] = "100,1,0"
    csv_path(config.data).write_text("\n".join(lines) + "\n")


def answers(made: Consortium, rounds: int) -> list[np.ndarray]:
    """Reports of an approved silo, opened by the server, with the noise off."""
    config = load(made.silos[0])
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger, no_noise)
    reports = []
    for number in range(1, rounds + 1):
        reports.append(opened(made, desk.answer(asked(made, number))))
    ledger.close()
    return reports


# Phases ------------------------------------------------------------------------------------------


def test_a_record_is_used_in_one_round_of_a_one_pass_study(
    template: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing it moves that round's report and no other, by at most what is charged."""
    monkeypatch.setattr("os.urandom", lambda count: bytes(range(count)))  # the same split twice
    made = altered(copied(template, tmp_path / "one"), ONE_PASS)
    other = altered(copied(template, tmp_path / "two"), ONE_PASS)
    replace_record(load(other.silos[0]), 17)
    for each in (made, other):
        approved_silo(each)
    monkeypatch.undo()
    moved = [
        float(np.linalg.norm(one - two))
        for one, two in zip(answers(made, 5), answers(other, 5), strict=True)
    ]
    event = made.study.mechanism().event(made.study.participant(made.study.silos[0]))
    assert sum(distance > 0 for distance in moved) == 1
    assert max(moved) <= event.sensitivity


def test_every_phase_of_a_one_pass_study_costs_the_whole_epsilon_and_so_do_all_together(
    consortium: Consortium,
) -> None:
    made = altered(consortium, ONE_PASS)
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    spent = []
    for number in range(1, 6):
        desk.answer(asked(made, number))
        spent.append(ledger.spending(made.study.identity).epsilon(1e-5))
        assert ledger.total().epsilon() == pytest.approx(spent[-1], rel=1e-9)
    assert spent == pytest.approx([2.0] * 5, rel=1e-5)
    assert ledger.total().rounds == 5
    assert verify(ledger).entries == 6
    ledger.close()


def test_two_phased_studies_add_up_though_their_phases_do_not(
    template: Consortium, tmp_path: Path
) -> None:
    """A record may be in the worst phase of both: the policy counts Σ over studies of the max."""
    made = altered(copied(template, tmp_path / "c"), ONE_PASS)
    study, content = made.study, study_file(made)
    config = load(made.silos[0])
    approve(config, review(config, content), NOW)
    second = content.replace(b'name = "test"', b'name = "second"')
    with pytest.raises(BudgetExhausted):
        approve(config, review(config, second), NOW)
    event = study.mechanism().event(study.participant(study.silos[0]))
    ledger = open_ledger(config, PrivacyTarget(3.2, 1e-5))
    ledger.approve(approval_of(review(config, second).study), second, NOW)
    assert ledger.reserved().loss.value == pytest.approx(2 * event.mu**2)
    ledger.close()


def test_the_split_into_phases_is_drawn_once_and_kept(consortium: Consortium) -> None:
    made = altered(consortium, ONE_PASS)
    config = approved_silo(made)
    ledger = open_ledger(config)
    first, second = (ledger.approval(made.study.identity).partition for _ in range(2))
    assert first == second
    assert len(first) == 32
    entries = ledger.database.execute("SELECT line FROM entries").fetchall()
    ledger.close()
    assert sha256(first).hexdigest() in entries[0][0]  # committed to, not told
    assert first.hex() not in entries[0][0]


def test_splits_of_two_silos_differ(consortium: Consortium) -> None:
    made = altered(consortium, ONE_PASS)
    keys = []
    for index in (0, 1):
        config = approved_silo(made, index)
        ledger = open_ledger(config)
        keys.append(ledger.approval(made.study.identity).partition)
        ledger.close()
    assert keys[0] != keys[1]


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [POISSON, FIXED], ids=["poisson", "fixed size"])
def test_a_gaussian_policy_refuses_a_subsampled_study_and_says_why(
    consortium: Consortium, change: tuple[str, str]
) -> None:
    made = altered(consortium, change)
    config = load(made.silos[0])
    with pytest.raises(NotApproved, match='accountant = "renyi" would'):
        approve(config, review(config, study_file(made)), NOW)


def test_a_policy_that_became_gaussian_answers_no_round_of_an_open_subsampled_study(
    consortium: Consortium,
) -> None:
    """It could not say what that costs; the ledger still opens, so that it can be revoked."""
    made = altered(consortium, POISSON)
    renyi_policy(made)
    approved_silo(made)
    (made.silos[0].parent / "policy.toml").write_text(
        "epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\n"
    )
    config = load(made.silos[0])
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    with pytest.raises(RefusedQuery, match=r"Gaussian accountant .* or revoke it"):
        desk.answer(asked(made, 1))
    assert not ledger.spending(made.study.identity).rounds
    ledger.close_study(made.study.identity, NOW)
    ledger.close()


@pytest.mark.parametrize("change", [POISSON, FIXED], ids=["poisson", "fixed size"])
def test_a_subsampled_study_is_reserved_whole_and_charged_round_by_round(
    consortium: Consortium, change: tuple[str, str]
) -> None:
    made = altered(consortium, change)
    renyi_policy(made)
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    previous = 0.0
    for number in range(1, 6):
        desk.answer(asked(made, number))
        spent = ledger.spending(made.study.identity).epsilon(1e-5)
        assert previous < spent <= 2.0
        previous = spent
    assert spent == pytest.approx(2.0, rel=5e-3)
    assert verify(ledger).entries == 6
    # the second filter is looser than the study's own accountant, never tighter
    assert 2.0 <= ledger.total().epsilon() <= 8.0
    ledger.close()


def test_a_renyi_policy_that_has_no_room_refuses_the_study(consortium: Consortium) -> None:
    made = altered(consortium, POISSON)
    renyi_policy(made, epsilon=1.9)
    config = load(made.silos[0])
    with pytest.raises(BudgetExhausted):
        approve(config, review(config, study_file(made)), NOW)


def test_a_renyi_policy_keeps_full_batch_studies_too(consortium: Consortium) -> None:
    renyi_policy(consortium, epsilon=3.0)
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger)
    for number in range(1, 6):
        desk.answer(asked(consortium, number))
    assert ledger.spending(consortium.study.identity).epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    assert 2.0 < ledger.total().epsilon() < 2.3
    ledger.close()


def test_the_batch_is_drawn_anew_each_round_from_the_keystream(
    template: Consortium, tmp_path: Path
) -> None:
    """Noise off, batches on: the reports of a fixed point differ as batch means do.

    A report's bias coordinate counts how many of the labels drawn were positive; over 60 rounds
    its values take many different sizes (one size only: probability below 2⁻⁶⁰).
    """

    def coins_then_no_noise(label: bytes) -> RandomBytes:
        return np.random.bytes if label.startswith(b"batch") else no_noise()

    made = altered(
        copied(template, tmp_path / "c"),
        POISSON,
        ("rounds = 5", "rounds = 60"),
        ("epsilon = 2.0", "epsilon = 6.0"),
    )
    renyi_policy(made, epsilon=20.0)
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger, coins_then_no_noise)
    biases = []
    for number in range(1, 61):
        report = opened(made, desk.answer(asked(made, number)))
        biases.append(int(report[-1]))
    ledger.close()
    assert len(Counter(biases)) > 5
    # Var of a Poisson batch's sum: q(1−q)Σ‖g‖² per coordinate, divided by (qn̄)²
    records = thaw(made.study.identity, ledger_snapshot(config, made), config.state / "snapshots")
    bias = 0.3 * 0.5 / made.study.mechanism().grids[0]
    expected = np.sqrt(0.25 * len(records)) * bias / (0.5 * 50)  # silos of 40, 50 and 60
    ratio = 59 * np.var(biases, ddof=1) / expected**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 59)  # false alarm about 1e-6
    assert low < ratio < high


def ledger_snapshot(config: SiloConfig, made: Consortium) -> bytes:
    ledger = open_ledger(config)
    snapshot = ledger.approval(made.study.identity).snapshot
    ledger.close()
    return snapshot


# Weights and own targets -------------------------------------------------------------------------


def weighted(made: Consortium, weights: tuple[float, ...]) -> Consortium:
    changes = [('weights = "records"', 'weights = "named"')]
    for silo, weight in zip(made.study.silos, weights, strict=True):
        old = f'name = "{silo.name}"\nrecords = {silo.records}'
        changes.append((old, f"{old}\nweight = {weight}"))
    return altered(made, *changes)


def test_a_weight_multiplies_the_mean_and_what_is_charged(
    template: Consortium, tmp_path: Path
) -> None:
    """Weights 4, 1, 1 average 2: the first silo's mean counts twice."""
    plain = weighted(copied(template, tmp_path / "plain"), (1.0, 1.0, 1.0))
    heavy = weighted(copied(template, tmp_path / "heavy"), (4.0, 1.0, 1.0))
    means = []
    for made in (plain, heavy):
        approved_silo(made)
        means.append(answers(made, 1)[0] * made.study.mechanism().grids[0])
    assert means[1] == pytest.approx(2 * means[0], abs=1e-5)
    participant = heavy.study.participant(heavy.study.silos[0])
    assert participant.weight == 2
    assert heavy.study.mechanism().epsilon(participant) == pytest.approx(2.0, rel=1e-6)
    assert heavy.study.mechanism().sigma() == pytest.approx(
        2 * plain.study.mechanism().sigma(), rel=1e-3
    )


def test_a_silo_with_its_own_epsilon_sets_the_noise_and_the_others_lose_less(
    consortium: Consortium,
) -> None:
    old = 'name = "silo-1"\nrecords = 40'
    made = altered(consortium, (old, f"{old}\nepsilon = 0.5\ndelta = 1e-6"))
    study = made.study
    losses = [study.mechanism().epsilon(study.participant(silo)) for silo in study.silos]
    assert losses[0] == pytest.approx(0.5, rel=1e-6)
    assert losses[1] < 0.5  # at a larger delta
    assert losses[2] == pytest.approx(losses[1], rel=1e-6)  # a record of either moves it as far
    config = approved_silo(made)
    ledger = open_ledger(config)
    assert ledger.approval(study.identity).participant.target == PrivacyTarget(0.5, 1e-6)
    ledger.close()


def test_schemes_have_the_names_of_the_study_file() -> None:
    assert [scheme.value for scheme in Scheme] == ["full", "poisson", "without-replacement"]


def test_a_sample_silo_has_room_for_one_record_reports(tmp_path: Path) -> None:
    """As `consortium init` and the demo make it: a Rényi policy that holds this study."""
    one_record = specification(
        "shuffled-mb-sgd", most_rounds=4, target=PrivacyTarget(6.0, 1e-6), batching=Batching(3)
    )
    options = DemoOptions(tmp_path / "c", one_record, silos=3, mixes=1)
    made, _ = prepare(options)
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    for number in range(1, 5):
        desk.answer(asked(made, number))
    event = made.study.mechanism().event(ledger.approval(made.study.identity).participant)
    assert ledger.spending(made.study.identity).phases == (((event, 4),),)
    assert event.ratio == 1 / made.study.silos[0].records
    verify(ledger)
    ledger.close()
