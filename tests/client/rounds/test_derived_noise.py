"""One question, one report: also of a silo whose state folder was put back to an earlier one.

And of two questions, two reports that have nothing to do with each other, however alike they are.
Whoever leaves one of the answer's inputs out of its noise is caught (the mutants below).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from silomix_client.config.silo_config import SiloConfig
from silomix_client.data.snapshot import thaw
from silomix_client.ledger.entries import Approval
from silomix_client.random_stream import answer_streams
from silomix_client.rounds import answer
from silomix_client.rounds.answer import StudyDesk
from silomix_core.discrete_gaussian import SIGMA_UNITS, RandomBytes, Streams
from silomix_core.reports.reporter import Integers, RoundQuery
from silomix_core.study.study import StudyId
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.controls import ONE_STEP, settle
from support.put_back import StateCopy
from support.silos import NOW, altered, approved_silo, asked, open_desk, open_ledger, opened

FALSE_ALARM = 1e-6  # of each statistical test below
QUESTIONS = 120
POISSON = ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5')
FIXED = ("clip = 0.25", 'clip = 0.25\nsampling = "without-replacement"\nratio = 0.5')
HINGE = ('loss = "logistic"', 'loss = "hinge"')
EVALUATED = ("[server]", "[evaluation]\nshare = 0.3\n\n[server]")


def named(name: str) -> tuple[str, str]:
    return 'name = "noisy-mb-sgd"', f'name = "{name}"'


SCAFFOLD = named("dp-scaffold")
KINDS_OF_STUDY: dict[str, list[tuple[str, str]]] = {
    "full batches": [],
    "Poisson batches": [POISSON],
    "batches of a fixed size": [FIXED],
    "phases": [named("localized-accelerated")],
    "convolution smoothing": [HINGE, named("convolution-smoothing"), POISSON],
    "local steps": [named("dp-fedavg")],
    "local steps and Poisson batches": [named("dp-fedavg"), POISSON],
    "control variates": [SCAFFOLD],
    "check-ins": [named("check-ins-averaged")],
}


def wide_task(features: int) -> Task:
    named = tuple(Feature(f"x{index}", -1.0, 1.0, 0.0) for index in range(features))
    return Task(LossName.LOGISTIC, "outcome", named, Scaling.UNIT_BALL, 0.3)


def made_of(made: Consortium, changes: list[tuple[str, str]]) -> tuple[Consortium, SiloConfig]:
    """The consortium with another study, approved by its first silo."""
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text(
        'epsilon = 20.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n', encoding="utf-8"
    )
    made = altered(made, *changes)
    return made, approved_silo(made)


def two_rounds(made: Consortium, config: SiloConfig) -> list[bytes]:
    """The payloads of a process that answers two rounds, the first of which is used."""
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger, tokens=False)
    first = desk.answer(asked(made, 1)).payload
    if made.study.has_control:
        settle(made, ledger, 1)
    payloads = [first, desk.answer(asked(made, 2, [1.0, 0.0, -1.0])).payload]
    ledger.close()
    return payloads


@pytest.mark.slow
@pytest.mark.parametrize("changes", KINDS_OF_STUDY.values(), ids=KINDS_OF_STUDY)
def test_a_silo_whose_state_was_put_back_answers_the_same_question_with_the_same_bytes(
    consortium: Consortium, changes: list[tuple[str, str]]
) -> None:
    made, config = made_of(consortium, changes)
    ledger = open_ledger(config)
    open_desk(config, made.study, ledger)  # its tokens are there
    ledger.close()
    earlier = StateCopy.of(config)
    payloads = two_rounds(made, config)
    for _ in range(2):
        earlier.put_back()
        assert two_rounds(made, config) == payloads


# Another question ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutBackSilo:
    """A silo whose state is put back before every question: the ledger never learns anything."""

    made: Consortium
    config: SiloConfig
    earlier: StateCopy

    @classmethod
    def of(cls, made: Consortium) -> "PutBackSilo":
        config = approved_silo(made)
        return cls(made, config, StateCopy.of(config))

    def answer(
        self,
        point: NDArray[np.float64],
        number: int = 1,
        change: Callable[[Approval], Approval] = lambda approval: approval,
    ) -> Integers:
        """The opened report; the approval may be another one than the ledger's."""
        self.earlier.put_back()
        ledger, study = open_ledger(self.config), self.made.study
        open_desk(self.config, study, ledger)  # for its tokens
        approval = ledger.approval(study.identity)
        records = thaw(study.identity, approval.snapshot, self.config.state / "snapshots")
        desk = StudyDesk(self.config.name, change(approval), records, ledger, lambda: NOW)
        report = opened(self.made, desk.answer(asked(self.made, number, point)))
        ledger.close()
        return report


@pytest.fixture
def silo(consortium: Consortium) -> PutBackSilo:
    return PutBackSilo.of(consortium)


POINT = np.array([0.5, -0.5, 0.25])
NEARLY = POINT * (1 + 2.0**-50)  # another question; the sum of its gradients is the same integers


def other_event(approval: Approval) -> Approval:
    (run,) = approval.plan
    event = run["event"] | {"sensitivity": run["event"]["sensitivity"] * 1.0001}
    return replace(approval, plan=({**run, "event": event},))


def other_calibration(approval: Approval) -> Approval:
    """Of the same grid, so that the integers are the same."""
    other = replace(approval)
    vars(other)["mechanism"] = replace(approval.mechanism, heaviest=1 + 2.0**-20)
    return other


def test_the_same_question_has_the_same_report_and_any_other_another(silo: PutBackSilo) -> None:
    report = silo.answer(POINT)
    assert np.array_equal(silo.answer(POINT), report)
    others = {
        "query": silo.answer(NEARLY),
        "round": silo.answer(POINT, 2),
        "snapshot": silo.answer(POINT, change=lambda each: replace(each, snapshot=bytes(32))),
        "secret": silo.answer(POINT, change=lambda each: replace(each, partition=b"s" * 32)),
        "calibration": silo.answer(POINT, change=other_calibration),
        "event": silo.answer(POINT, change=other_event),
    }
    for name, other in others.items():
        assert np.abs(other - report).min() > 0, name  # false alarm: 3·10⁻⁶ in all


def test_another_study_has_noise_of_its_own(silo: PutBackSilo) -> None:
    """Even if it had been approved with the same secret."""
    silo.earlier.put_back()
    study, config = silo.made.study, silo.config
    ledger = open_ledger(config)
    approval = ledger.approval(study.identity)
    records = thaw(study.identity, approval.snapshot, config.state / "snapshots")
    descriptor = asked(silo.made, 1).descriptor
    drawn = []
    for identity in (study.identity, StudyId(bytes(32))):
        other = replace(approval, study=replace(study, identity=identity))
        desk = StudyDesk(config.name, other, records, ledger, lambda: NOW)
        drawn.append(desk._streams(descriptor)(b"noise")(32))
    ledger.close()
    assert drawn[0] != drawn[1]


def test_a_release_with_other_arithmetic_would_have_noise_of_its_own(
    silo: PutBackSilo, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = silo.answer(POINT)
    monkeypatch.setattr(answer, "release", lambda: "another one")
    assert np.abs(silo.answer(POINT) - report).min() > 0


def test_sums_that_differ_never_share_their_noise(
    silo: PutBackSilo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that rounds otherwise: one unit more in one coordinate, and all noise is new."""
    from silomix_core.reports import reporter as reporting

    report, to_grid = silo.answer(POINT), reporting.to_grid

    def one_more(total: Integers, units_per_sum: float) -> Integers:
        mean = to_grid(total, units_per_sum)
        mean[0] += 1
        return mean

    monkeypatch.setattr(reporting, "to_grid", one_more)
    assert np.abs(silo.answer(POINT) - report).min() > 1


def kept_and_sent(silo: PutBackSilo, number: int) -> tuple[Integers, Integers]:
    """Round 1 answered and used after the state was put back, then this one."""
    made = silo.made
    silo.earlier.put_back()
    ledger = open_ledger(silo.config)
    desk = open_desk(silo.config, made.study, ledger)
    kept = opened(made, desk.answer(asked(made, 1)))
    settle(made, ledger, 1)
    sent = opened(made, desk.answer(asked(made, number, POINT)))
    ledger.close()
    return kept, sent


def test_a_gradient_has_the_same_noise_whatever_the_silo_keeps(consortium: Consortium) -> None:
    """A report is a difference from what is kept; behind it stands the same noised gradient.

    Otherwise, put back, it could be had with as many noises as there are rounds to answer before.
    """
    silo = PutBackSilo.of(altered(consortium, ONE_STEP))
    kept, sent = kept_and_sent(silo, 2)
    assert np.array_equal(sent + kept, silo.answer(POINT, 2))


def test_an_evaluation_has_the_same_noise_whatever_the_silo_keeps(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "wide", records=(60, 60), mixes=1, task=wide_task(4))
    made, config = made_of(made, [SCAFFOLD, EVALUATED])
    silo = PutBackSilo(made, config, StateCopy.of(config))
    last = silo.made.study.rounds
    point = np.zeros(silo.made.study.task.dimension)
    point[0] = 1.0
    silo.earlier.put_back()
    ledger = open_ledger(silo.config)
    desk = open_desk(silo.config, silo.made.study, ledger)
    desk.answer(asked(silo.made, 1))
    settle(silo.made, ledger, 1)
    sent = opened(silo.made, desk.answer(asked(silo.made, last, point)))
    ledger.close()
    assert np.array_equal(sent, silo.answer(point, last))


def test_the_streams_of_later_steps_follow_from_where_the_walk_stands(
    consortium: Consortium,
) -> None:
    """Also where the sums are equal: that they are would show if they had the same noise."""
    made = altered(consortium, SCAFFOLD)
    config = approved_silo(made)
    ledger = open_ledger(config)
    reporter = open_desk(config, made.study, ledger)._reporter
    ledger.close()
    nothing = np.zeros(made.study.task.dimension)
    streams = answer_streams(bytes(32))

    def places(kept: Integers) -> list[bytes]:
        """The labels of the streams, without the sums that noise goes onto."""
        labels: list[bytes] = []

        def noted(label: bytes) -> RandomBytes:
            labels.append(label[:-32] if label.startswith(b"noise") else label)
            return streams(label)

        reporter.values(RoundQuery(1, nothing, nothing), noted, kept)
        return labels

    still, moved = np.zeros(len(nothing), dtype=np.int64), np.full(len(nothing), 2**20)
    assert places(still) == places(still)
    assert places(still)[:2] == places(moved)[:2] == [b"batch 0 ", b"noise 0 "]
    later = set(places(still)[2:])
    assert len(later) >= 2
    assert not later & set(places(moved)[2:])


# Their law ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float64]:
    """(QUESTIONS, d): reports of one round, each to another question that has the same sum."""
    folder: Path = tmp_path_factory.mktemp("wide") / "consortium"
    made = make_consortium(folder, records=(30, 30), mixes=1, task=wide_task(20))
    silo, point = PutBackSilo.of(made), np.full(made.study.task.dimension, 0.5)
    questions = [point * (1 + number * 2.0**-50) for number in range(QUESTIONS)]
    return np.array([silo.answer(each) for each in questions]) / SIGMA_UNITS


def fits_chi2(values: NDArray[np.float64], freedom: int) -> bool:
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], freedom)
    return bool(low < (values**2).sum() < high)


@pytest.mark.slow
def test_the_noise_of_other_questions_in_one_round_has_the_charged_scale(
    reports: NDArray[np.float64],
) -> None:
    deviations = reports - reports.mean(axis=0)
    assert fits_chi2(deviations, deviations.size - reports.shape[1])


@pytest.mark.parametrize("apart", [1, 2, QUESTIONS // 2])
def test_the_noise_of_one_question_tells_nothing_about_that_of_another(
    reports: NDArray[np.float64], apart: int
) -> None:
    """Differences of pairs, each report in one of them: equal noise would leave nothing."""
    firsts = [at for at in range(QUESTIONS) if at // apart % 2 == 0]
    pairs = (reports[firsts] - reports[[at + apart for at in firsts]]) / np.sqrt(2)
    assert fits_chi2(pairs, pairs.size)


# Mutants -----------------------------------------------------------------------------------------

PARTS = ("release", "study", "round", "query", "snapshot", "calibration", "event")


def without(part: str) -> Callable[..., Streams]:
    """Streams that do not depend on this part of what an answer depends on."""

    def mutant(secret: bytes, *depends_on: bytes) -> Streams:
        if not depends_on:  # of the desk's own pace
            return answer_streams(secret)
        kept = [each for name, each in zip(PARTS, depends_on, strict=True) if name != part]
        return answer_streams(secret, *kept)

    return mutant


@pytest.mark.parametrize(
    ("part", "claim"),
    [
        ("study", test_another_study_has_noise_of_its_own),
        ("release", test_a_release_with_other_arithmetic_would_have_noise_of_its_own),
        ("round", test_the_same_question_has_the_same_report_and_any_other_another),
        ("query", test_the_same_question_has_the_same_report_and_any_other_another),
        ("snapshot", test_the_same_question_has_the_same_report_and_any_other_another),
        ("calibration", test_the_same_question_has_the_same_report_and_any_other_another),
        ("event", test_the_same_question_has_the_same_report_and_any_other_another),
    ],
)
def test_noise_that_leaves_an_input_out_is_caught(
    silo: PutBackSilo, monkeypatch: pytest.MonkeyPatch, part: str, claim: Callable[..., None]
) -> None:
    monkeypatch.setattr(answer, "answer_streams", without(part))
    with pytest.raises(AssertionError):
        claim(silo, *([monkeypatch] if part == "release" else []))


def test_fresh_noise_is_caught(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    from silomix_client.random_stream import fresh_keystream

    monkeypatch.setattr(answer, "answer_streams", lambda *_: lambda _label: fresh_keystream())
    claim = test_a_silo_whose_state_was_put_back_answers_the_same_question_with_the_same_bytes
    with pytest.raises(AssertionError):
        claim(consortium, [])
