"""A silo's process and a simulation are the same silo: same bytes in, same report, same model."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest
from numpy.typing import NDArray
from silomix_client.config.silo_config import load
from silomix_client.random_stream import stream_of
from silomix_client.rounds.answer import StudyDesk
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.discrete_gaussian import RandomBytes, Streams
from silomix_core.model import clipped_sum
from silomix_core.model.clipped_sum import Records, open_rows
from silomix_core.reports.reporter import Integers, Reporter, RoundQuery
from silomix_core.simulation.one_process import Answers, evaluated_study
from silomix_lab.consortium.create import Consortium
from support.consortia import csv_path
from support.silos import altered, approved_silo, asked, open_desk, open_ledger, opened

KINDS_OF_STUDY = {
    "full batch": [],
    "localized, ridge": [('name = "noisy-mb-sgd"', 'name = "localized-accelerated"\nridge = 0.01')],
    "Poisson batches": [("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5')],
}


class Silo:
    """Counts its rounds, notes its reports, and takes the random bytes of its name and round."""

    def __init__(self, name: str) -> None:
        self.name, self.rounds = name, 0
        self.reports: list[NDArray[np.int64]] = []

    def bytes_of_round(self, label: bytes) -> RandomBytes:
        return stream_of(sha256(f"{self.name} {self.rounds} ".encode() + label).digest())

    def takes_part(self, round_number: int) -> bool:
        return True

    def noted(self, report: NDArray[np.int64]) -> NDArray[np.int64]:
        self.reports.append(report)
        return report


class RealSilo(Silo):
    """A desk as `silomix silo run` has it, asked by a server and opened by mixes and server."""

    def __init__(
        self, made: Consortium, name: str, desk_of: Callable[[Streams], StudyDesk]
    ) -> None:
        super().__init__(name)
        self._made, self._desk = made, desk_of(self.bytes_of_round)

    def values(self, question: RoundQuery, _: Streams, kept: object) -> Integers:
        self.rounds += 1
        query = asked(self._made, question.round, question.point)
        return self.noted(opened(self._made, self._desk.answer(query)))


class SimulatedSilo(Silo):
    def __init__(self, name: str, reporter: Reporter) -> None:
        super().__init__(name)
        self._reporter = reporter

    def values(self, question: RoundQuery, _: Streams, kept: Integers | None) -> Integers:
        self.rounds += 1
        return self.noted(self._reporter.values(question, self.bytes_of_round, kept))


@pytest.mark.parametrize("changes", KINDS_OF_STUDY.values(), ids=KINDS_OF_STUDY)
def test_the_silos_software_and_a_simulation_give_the_same_reports_and_model(
    consortium: Consortium, changes: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_batches: list[object] = []

    def counted(batch: NDArray[np.bool_] | None) -> NDArray[np.intp] | None:
        opened_batches.append(batch)
        return open_rows(batch)

    monkeypatch.setattr(clipped_sum, "open_rows", counted)
    made = altered(consortium, *changes)
    study, mechanism = made.study, made.study.mechanism()
    real: list[RealSilo] = []
    simulated: list[SimulatedSilo] = []
    for index, silo in enumerate(study.silos):
        policy = 'epsilon = 6.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n'
        (made.silos[index].parent / "policy.toml").write_text(policy, encoding="utf-8")
        config = approved_silo(made, index)
        ledger = open_ledger(config)
        real.append(
            RealSilo(
                made,
                silo.name,
                lambda stream, config=config, ledger=ledger: open_desk(  # type: ignore[misc]
                    config, study, ledger, stream
                ),
            )
        )
        table = np.loadtxt(csv_path(load(made.silos[index]).data), delimiter=",", skiprows=1)
        reporter = Reporter(
            mechanism,
            study.participant(silo),
            Records(study.task.encode(table[:, :-1]), study.task.encode_labels(table[:, -1])),
            study.model,
            stream_of(ledger.approval(study.identity).partition),
            open_batches=True,  # as a rehearsal has them
        )
        simulated.append(SimulatedSilo(silo.name, reporter))

    def model_of(silos: list[Answers]) -> NDArray[np.float64]:
        entry, plan = algorithm(study.algorithm), study.algorithm_plan(mechanism)
        rng = np.random.default_rng(1)
        reception = study.reception()
        return evaluated_study(
            entry, plan, mechanism, silos, rng, rng.bytes, reception=reception
        ).model

    model = model_of([*real])
    assert not opened_batches  # the time that a real silo takes tells nothing of its batches
    assert np.array_equal(model, model_of([*simulated]))
    assert np.any(model)
    assert opened_batches
    for one, other in zip(real, simulated, strict=True):
        assert one.rounds == other.rounds == study.rounds
        assert np.array_equal(one.reports, other.reports)
