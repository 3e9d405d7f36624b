"""Shuffled minibatch SGD: one record in a report, and the local target of a central one."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from scipy import stats
from silomix_core.accounting.composition import CalibrationImpossible, epsilon_of
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.shuffled import ALGORITHM, ONE_RECORD
from silomix_core.claims.central import Figure, central_figures
from silomix_core.claims.central_target import ShufflingGainsNothing, local_target
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import Linear
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.study.study import InvalidStudy
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT
from support.privacy_checks import FALSE_ALARM, seeded_bytes
from support.studies import parse, study_tree

TARGET = PrivacyTarget(4.0, 1e-5)


def mechanism(silos: list[Participant], rounds: int = 40) -> Mechanism:
    return Mechanism.calibrate(
        silos, clip=0.25, dimension=4, phases=[Phase(rounds)], minibatch=ONE_RECORD
    )


def test_a_report_is_made_of_one_record_each_as_often() -> None:
    """Noise off, records along different axes: χ² over 3000 rounds, false alarm 10⁻⁶."""
    silo = Participant(4, TARGET)
    made = mechanism([silo])
    records = Records(np.eye(4) * UNIT, np.ones(4))
    reporter = Reporter(made, silo, records, Linear(loss(LossName.LOGISTIC)), seeded_bytes(1))
    coins = seeded_bytes(2)
    drawn: Counter[int] = Counter()

    def batch_then_no_noise(label: bytes) -> RandomBytes:
        return coins if label.startswith(b"batch") else lambda n: (bytes(7) + b"\x80") * (n // 8)

    for _ in range(3000):
        values = reporter.values(RoundQuery(1, np.zeros(4)), batch_then_no_noise)
        (row,) = np.flatnonzero(values)
        drawn[row] += 1
        # residual ½, clipped to 0.25; divided by the one record that was drawn
        assert values[row] * made.grids[0] == pytest.approx(-0.25, rel=1e-3)
    assert stats.chisquare(list(drawn.values())).pvalue > FALSE_ALARM


def test_silos_of_any_size_draw_one_record_and_are_charged_for_their_own_share() -> None:
    silos = [Participant(count, TARGET) for count in (50, 200, 1000)]
    made = mechanism(silos)
    losses = []
    for silo in silos:
        event = made.event(silo)
        assert (event.scheme, event.ratio) == (Scheme.WITHOUT_REPLACEMENT, 1 / silo.records)
        moved = 2 * 0.25 / made.grids[0]
        assert moved <= event.sensitivity <= moved + 1.01 * sqrt(4)
        losses.append(epsilon_of([(event, 40)], 1e-5))
        assert losses[-1] == made.epsilon(silo)
    assert losses[0] == pytest.approx(4.0, rel=0.02)
    assert losses[0] <= 4.0
    assert losses == sorted(losses, reverse=True)


def test_several_targets_and_weights_all_keep_their_promise() -> None:
    silos = [
        Participant(50, TARGET, 1.5),
        Participant(90, PrivacyTarget(2.0, 1e-6)),
        Participant(400, PrivacyTarget(2.0, 1e-6), 0.5),
    ]
    made = mechanism(silos)
    assert all(made.epsilon(silo) <= silo.target.epsilon for silo in silos)


@pytest.mark.parametrize(
    "bad", [(Scheme.FULL, 1.0, 1), (Scheme.WITHOUT_REPLACEMENT, 0.5, 1), (Scheme.POISSON, 1.0, 1)]
)
def test_a_count_goes_with_one_scheme_only(bad: tuple[Scheme, float, int]) -> None:
    with pytest.raises(ValueError, match="count"):
        Minibatch(*bad)


def test_more_records_than_there_are_cannot_be_drawn() -> None:
    two = Minibatch(Scheme.WITHOUT_REPLACEMENT, count=2)
    with pytest.raises(CalibrationImpossible):
        Mechanism.calibrate(
            [Participant(1, TARGET)], clip=1.0, dimension=2, phases=[Phase(1)], minibatch=two
        )


def test_the_study_file_leaves_the_batches_to_the_algorithm() -> None:
    tree = study_tree()
    tree["algorithm"]["name"] = ALGORITHM.name
    study = parse(tree)
    assert study.minibatch == ONE_RECORD
    assert study.algorithm_plan(study.mechanism()).share == 1 / 40
    tree["privacy"] |= {"sampling": "poisson", "ratio": 0.1}
    with pytest.raises(InvalidStudy, match=r"privacy\.sampling: shuffled-mb-sgd draws its own"):
        parse(tree)


# A central target --------------------------------------------------------------------------------


def shuffled_figure(local: PrivacyTarget, silos: int, records: int, rounds: int) -> Figure:
    everybody = [Participant(records, local)] * silos
    made = mechanism(everybody, rounds)
    return central_figures(made, everybody, minimum_batch=silos)[1]


@pytest.mark.slow
def test_a_central_target_is_kept_and_nearly_used_up() -> None:
    """1000 silos of 1000 records, 20 rounds: less noise than without mixes, a larger local ε."""
    central = PrivacyTarget(0.1, 1e-6)
    local = local_target(
        central, [1000] * 1000, minimum_batch=1000, rounds=20, clip=0.25, dimension=4
    )
    assert local.delta == central.delta
    assert local.epsilon > 1.5 * central.epsilon
    figure = shuffled_figure(local, 1000, 1000, 20)
    assert figure.epsilon is not None
    assert 0.9 * central.epsilon < figure.epsilon <= central.epsilon
    larger = shuffled_figure(PrivacyTarget(1.1 * local.epsilon, 1e-6), 1000, 1000, 20)
    assert larger.epsilon is None or larger.epsilon > central.epsilon


@pytest.mark.slow
def test_too_few_silos_are_told_how_many_it_takes() -> None:
    with pytest.raises(ShufflingGainsNothing, match=r"from about (\d+) reports") as raised:
        local_target(
            PrivacyTarget(0.1, 1e-6), [1000] * 9, minimum_batch=8, rounds=20, clip=1.0, dimension=4
        )
    needed = int(str(raised.value).split("about ")[1].split()[0])
    assert 64 <= needed <= 1024
    local = local_target(
        PrivacyTarget(0.1, 1e-6),
        [1000] * needed,
        minimum_batch=needed,
        rounds=20,
        clip=1.0,
        dimension=4,
    )
    assert local.epsilon > 0.1


def test_every_phase_has_the_least_noise_that_keeps_every_promise() -> None:
    """Neither a small, light silo nor a large, heavy one needs what a small, heavy one would."""
    silos = [Participant(40, TARGET, 0.5), Participant(400, TARGET, 1.5)]
    phases = [Phase(5, 0.8), Phase(1, 0.2, kind=PhaseKind.EVALUATION)]
    made = Mechanism.calibrate(silos, clip=0.25, dimension=5, phases=phases, minibatch=ONE_RECORD)
    spent = [epsilon_of(made.transcripts(silo)[1], TARGET.delta) for silo in silos]
    assert max(spent) == pytest.approx(TARGET.epsilon, rel=1e-3)
    assert all(made.epsilon(silo) <= TARGET.epsilon for silo in silos)
