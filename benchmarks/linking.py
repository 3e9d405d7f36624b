"""How much a report's contents tell about whose it is, if silos count alike, or records.

    python benchmarks/linking.py                       # both shapes, five seeds, ε = 1 and 4
    python benchmarks/linking.py --seeds 2 --epsilon 1

The strongest reader of contents: it is given every silo's answer of a round without noise, and
matches the round's reports with them, the pairs nearest in all (the Hungarian algorithm; noise is
the same at every silo, so that is the likeliest matching).  Guessing is right once in N.  Cohorts
whose hospitals differ in case mix, 60 rounds of `auto`, the first silo smaller than the others.

Columns: share of reports that are matched with the silo that sent them, in %, over all rounds and
seeds, of all silos and of the small one; by what silos count by.
"""

import argparse
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.discrete_gaussian import Streams, discrete_gaussian
from silomix_core.model.clipped_sum import Records, to_grid
from silomix_core.model.models import model_of
from silomix_core.reports.reporter import Integers, RoundQuery
from silomix_core.simulation.one_process import Rehearsal, rehearsal, run_study
from silomix_core.study.defaults import automatic, chosen, loudness
from silomix_core.study.derive import participants_of, plan_of
from silomix_core.study.specification import Specification
from silomix_core.study.weighting import Weighting
from silomix_lab.datasets.cohorts import cohorts
from silomix_lab.datasets.tables import DemoData

SHAPES = {"300, 9 of 4000": (300, *[4000] * 9), "1000, 9 of 2000": (1000, *[2000] * 9)}
DELTA = 1e-6


class OpenSilo:
    """A silo with full batches whose answers are kept with and without noise."""

    def __init__(self, made: Rehearsal, place: int, records: Records) -> None:
        mechanism = made.mechanism
        self._mechanism = mechanism
        self._units = mechanism.units_per_sum(made.participants[place])
        self._sum = model_of(made.task).gradients(records, mechanism.clip, open_batches=True)
        self.answers: list[Integers] = []
        self.reports: list[Integers] = []

    def takes_part(self, _: int) -> bool:
        return True

    def values(self, query: RoundQuery, streams: Streams, _: Integers | None) -> Integers:
        mechanism, noise = self._mechanism, streams(b"noise")
        answer = to_grid(self._sum.at(query.point, None, noise), self._units)
        self.answers.append(answer)
        drawn = discrete_gaussian(mechanism.dimension, noise, mechanism.fineness)
        self.reports.append(answer + drawn)
        return self.reports[-1]


def specification(weighting: Weighting, epsilon: float, data: DemoData) -> Specification:
    named = replace(automatic(PrivacyTarget(epsilon, DELTA)), named_weighting=weighting)
    silos = participants_of(named, [len(each) for each in data.silos])
    return chosen(named, data.task, loudness(silos, named))


def matched(weighting: Weighting, epsilon: float, data: DemoData, seed: int) -> NDArray[np.bool_]:
    """Whether the report of each silo (columns) in each round (rows) is matched with it."""
    named = specification(weighting, epsilon, data)
    made = rehearsal(data.task, named, participants_of(named, [len(each) for each in data.silos]))
    silos = [OpenSilo(made, place, _records(data, place)) for place in range(len(data.silos))]
    rng = np.random.default_rng([seed, 7])
    plan = plan_of(made.setting, made.mechanism)
    run_study(made.algorithm, plan, made.mechanism, silos, rng, rng.bytes)
    rounds = zip(
        np.array([each.answers for each in silos], dtype=float).swapaxes(0, 1),
        np.array([each.reports for each in silos], dtype=float).swapaxes(0, 1),
        strict=True,
    )
    return np.array([_pairs(answers, reports) for answers, reports in rounds])


def _records(data: DemoData, place: int) -> Records:
    silo = data.silos[place]
    return Records(data.task.encode(silo.values), data.task.encode_labels(silo.labels))


def _pairs(answers: NDArray[np.float64], reports: NDArray[np.float64]) -> NDArray[np.bool_]:
    distances = ((reports[:, None, :] - answers[None, :, :]) ** 2).sum(axis=2)
    rows, columns = linear_sum_assignment(distances)
    found: NDArray[np.bool_] = rows == columns
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    options = parser.parse_args()
    print(f"{'records':>16} {'epsilon':>7} {'weights':>8} | {'all':>5} {'small':>5}  % matched")
    for shape, records in SHAPES.items():
        for epsilon in options.epsilon:
            for weighting in (Weighting.EQUAL, Weighting.RECORDS):
                found = np.concatenate(
                    [
                        matched(
                            weighting, epsilon, cohorts(len(records), seed, records=records), seed
                        )
                        for seed in range(1, options.seeds + 1)
                    ]
                )
                all_silos, small = 100 * found.mean(), 100 * found[:, 0].mean()
                print(
                    f"{shape:>16} {epsilon:7g} {weighting.value:>8} | {all_silos:5.1f} {small:5.1f}"
                )


if __name__ == "__main__":
    main()
