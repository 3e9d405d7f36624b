"""What bad silos do to a model, and what rules against them cost when there are none.

    python benchmarks/poisoning.py [--quick] [--digits FOLDER] [--charges FOLDER] [--seeds K]
                                   [--processes K] [--json FILE]

Whole studies in one process with the silos' own arithmetic, noise and integers and the server's own
reception of reports, ten silos, 60 rounds, `noisy-mb-sgd`.  Test error in %, mean over seeds and
half of its 95 % interval; trials of one seed share records and noise.

Data: *cohorts* (`silomix demo`), also with 300 records a silo; *unlike*: ten silos, one, two or
five of which (the last) have patients that no other has, one linear model being right for all
(2000 records each; error on all silos' patients alike, and on theirs); with --digits (the four IDX
files of MNIST) odd and even *digits*, each silo having one odd and one even digit, each digit two
silos: silos that differ as much as can be; with --charges (insurance.csv) *charges*, three silos
with the lowest, middle and highest (cost only, no attacks; 100·MSE/mean(y²)).

Bad silos know the study and their own records, send a report in every round, of whatever length is
accepted, and work together:

turned      the opposite of their own noiseless answer, as long as is accepted
opposite    the opposite of their own honest answer, noise included, no longer than that
push        always the same, away from the model of everybody's records, as long as is accepted
short       the same, but so short that nobody is warned among silos that are alike
noise       a random direction in every round, as long as is accepted
labels      what the agreed software says of records whose labels are turned

"no bound" is the mean of reports of which only each value is checked, on its own, as it was before
reports had a longest norm.  "without them": the mean of the good silos alone.  *warned*: rounds in
which a report was found to lie far from the others.  "r = 0.25 C": the bounded mean if its radius,
of ten silos and in 60 rounds a sixth of the clip, were that much of it (and noise).  The last table
has other numbers of silos and rounds.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from math import log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.discrete_gaussian import Streams, one_stream
from silomix_core.evaluation.pooled_baseline import logistic_regression
from silomix_core.mechanism.mechanism import Mechanism, Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import model_of
from silomix_core.reports.aggregation import MEAN, USUAL, Aggregation, Rule
from silomix_core.reports.length_bound import longest_reports, noise_of
from silomix_core.reports.outliers import FALSE_ALARMS
from silomix_core.reports.reception import Gathered, Gathering, Reception
from silomix_core.reports.reporter import Integers, Reporter, RoundQuery
from silomix_core.simulation.one_process import Rehearsal, evaluated_study, rehearsal
from silomix_core.study.defaults import automatic, chosen, loudness
from silomix_core.study.derive import plan_of
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from silomix_lab.datasets.cohorts import cohorts
from silomix_lab.parallel import Spread, run_all
from silomix_lab.reproduce import digits, insurance

Floats = NDArray[np.float64]

SILOS, ROUNDS, MOST_BAD = 10, 60, 3
UNBOUNDED, WITHOUT = "mean, no bound", "without them"
RULES: dict[str, Aggregation] = {
    "mean": MEAN,
    "bounded-mean": USUAL,
    "trimmed-mean, 1": Aggregation(Rule.TRIMMED_MEAN, 1),
    "trimmed-mean, 2": Aggregation(Rule.TRIMMED_MEAN, 2),
    "trimmed-mean, 3": Aggregation(Rule.TRIMMED_MEAN, 3),
    "geometric-median": Aggregation(Rule.GEOMETRIC_MEDIAN),
}
RADII = {f"r = {part:g} C": part for part in (1.0, 0.5, 0.25, 0.1, 0.05)}
ATTACKS = ("turned", "opposite", "push", "short", "noise", "labels")
STRETCHED = ("turned", "push", "noise")  # as long as is accepted


# The studies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A data set and the ε that its silos are promised."""

    name: str
    epsilon: float
    folder: Path | None = None
    silos: int = SILOS
    rounds: int = ROUNDS

    @property
    def title(self) -> str:
        return f"{self.name}, ε = {self.epsilon:g}"


@dataclass(frozen=True, slots=True)
class Split:
    """Records for a seed, and what the labels of test records are."""

    task: Task
    silos: tuple[Records, ...]
    test: Records
    delta: float
    numbers: Floats | None = None  # the test labels in their own unit, of a regression
    unlike: Records | None = None  # those test records whose silos are unlike most

    def error(self, model: Floats) -> float:
        scores = self.test.features @ model / UNIT
        if self.numbers is None:
            return 100 * float(np.mean((scores > 0) != (self.test.labels > 0)))
        wrong = self.task.predict(scores) - self.numbers
        return 100 * float(np.mean(wrong**2) / np.mean(self.numbers**2))

    def unlike_error(self, model: Floats) -> float | None:
        if self.unlike is None:
            return None
        return 100 * float(np.mean((self.unlike.features @ model > 0) != (self.unlike.labels > 0)))

    def pooled(self) -> Floats:
        """The model of everybody's records, no privacy."""
        features = np.concatenate([silo.features for silo in self.silos]) / UNIT
        return logistic_regression(features, np.concatenate([each.labels for each in self.silos]))


@lru_cache(maxsize=4)
def split(source: Source, seed: int) -> Split:
    if source.name == "digits" and source.folder is not None:
        return digits_split(source.folder, seed)
    if source.name == "charges" and source.folder is not None:
        task = insurance.Coding.CATEGORY.task
        data = insurance.split(source.folder, task, seed)
        test = Records(data.test_features, np.zeros(len(data.test_charges)))
        delta = 1 / len(data.silos[0]) ** 2
        return Split(task, tuple(data.silos), test, delta, data.test_charges)
    if source.name.startswith("unlike"):
        return unlike_split(int(source.name.split()[1]), source.silos, seed)
    made = cohorts(source.silos, seed, 300 if source.name == "small cohorts" else 2000)
    encoded = [
        Records(made.task.encode(each.values), made.task.encode_labels(each.labels))
        for each in (*made.silos, made.holdout)
    ]
    return Split(made.task, tuple(encoded[:-1]), encoded[-1], 1e-6)


def unlike_split(many: int, count: int, seed: int) -> Split:
    """A reading that is low in most silos and high in `many`, where nearly everybody is ill."""
    rng = np.random.default_rng([seed, 1])
    features = tuple(Feature(f"x{place}", -1.0, 1.0, 0.0) for place in range(6))
    task = Task(LossName.LOGISTIC, "y", features, Scaling.UNIT_BALL, 0.5)

    def patients(people: int, high: bool) -> Records:
        values = rng.uniform(-1, 1, (people, 6))
        sign = 1 if high else -1
        values[:, 5] = sign * rng.uniform(0.5, 1, people)
        scores = values @ np.array([3.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 3 * sign
        labels = (rng.random(people) < 1 / (1 + np.exp(-scores))).astype(np.float64)
        return Records(task.encode(values), task.encode_labels(labels))

    silos = tuple(patients(2000, place >= count - many) for place in range(count))
    rest, unlike = (
        patients(4000 * part, high) for part, high in ((count - many, False), (many, True))
    )
    test = Records(
        np.concatenate([rest.features, unlike.features]),
        np.concatenate([rest.labels, unlike.labels]),
    )
    return Split(task, silos, test, 1e-6, unlike=unlike)


def digits_split(folder: Path, seed: int) -> Split:
    """Ten of the 25 silos of `silomix reproduce loc`, such that each digit is in two; any order."""
    data = digits.split(folder, seed)
    chosen = [5 * odd + (odd + shift) % 5 for shift in (0, 1) for odd in range(5)]
    order = np.random.default_rng([seed, 3]).permutation(chosen)
    silos = tuple(data.silos[place] for place in order)
    task = digits.load(folder).task(LossName.LOGISTIC)
    return Split(task, silos, data.test, 1 / len(silos[0]) ** 2)


@dataclass(frozen=True, slots=True)
class Trial:
    source: Source
    rule: str
    attack: str | None
    bad: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    trial: Trial
    error: float
    warned: float  # share of the rounds
    unlike_error: float | None = None


def run_trial(rounds: int, trial: Trial) -> Outcome:
    data = split(trial.source, trial.seed)
    silos = data.silos[trial.bad :] if trial.rule == WITHOUT else data.silos
    made = study(data, silos, trial, rounds)
    rng = np.random.default_rng([trial.seed, 7])
    plan, model = plan_of(made.setting, made.mechanism), model_of(data.task)
    bad = 0 if trial.rule == WITHOUT else trial.bad
    answering: list[Reporter | BadSilo] = [
        Reporter(made.mechanism, participant, records, model, rng.bytes)
        for participant, records in zip(made.participants, silos, strict=True)
    ]
    for place in range(bad):
        answering[place] = BadSilo(made, silos[place], place, trial, data.pooled())
    reception = Watching(made, RADII.get(trial.rule))
    result = evaluated_study(
        made.algorithm,
        plan,
        made.mechanism,
        answering,
        rng,
        rng.bytes,
        reception=None if trial.rule == UNBOUNDED else reception,
    )
    warned = reception.warned / made.mechanism.rounds
    return Outcome(trial, data.error(result.model), warned, data.unlike_error(result.model))


def study(data: Split, silos: Sequence[Records], trial: Trial, rounds: int) -> Rehearsal:
    target = PrivacyTarget(trial.source.epsilon, data.delta)
    participants = [Participant(len(each), target) for each in silos]
    named = automatic(target)
    auto = chosen(named, data.task, loudness(participants, named))
    specification = replace(
        auto,
        most_rounds=min(rounds, trial.source.rounds, auto.most_rounds),
        named_aggregation=USUAL if trial.rule in RADII else RULES.get(trial.rule, MEAN),
    )
    return rehearsal(data.task, specification, participants)


class Watching(Reception):
    """Counts the rounds in which it warned; a bounded mean's radius may be so much of the clip."""

    def __init__(self, made: Rehearsal, radius: float | None) -> None:
        super().__init__(made.mechanism, made.participants, made.aggregation)
        self.warned = 0
        if radius is not None:
            sway = radius * made.mechanism.clip / made.mechanism.grids[0] / len(made.participants)
            self._expected = tuple(replace(each, sway=sway) for each in self._expected)

    def gathering(self, round_number: int, asked: int) -> Gathering:
        found = super().gathering(round_number, asked)
        close = found.close

        def closed() -> Gathered:
            gathered = close()
            self.warned += gathered.outlying > 0
            return gathered

        found.close = closed  # type: ignore[method-assign]
        return found


# Bad silos ----------------------------------------------------------------------------------------


def quiet(count: int) -> bytes:
    """Random bytes of which noise of 0 is made."""
    return (bytes(7) + b"\x80") * (count // 8)


class BadSilo:
    """One of the silos that want to ruin the model."""

    def __init__(
        self, made: Rehearsal, records: Records, place: int, trial: Trial, pooled: Floats
    ) -> None:
        turned = Records(records.features, -records.labels)
        own = turned if trial.attack == "labels" else records
        mechanism, participant = made.mechanism, made.participants[place]
        self._reporter = Reporter(mechanism, participant, own, model_of(made.task), quiet)
        self._mechanism, self._trial, self._pooled = mechanism, trial, pooled
        self._longest = 0.999 * longest_reports(mechanism, made.participants)[0]
        self._unseen = unseen(mechanism, len(made.participants))
        self._rng = np.random.default_rng([trial.seed, 9, place])

    def takes_part(self, round_number: int) -> bool:
        return self._reporter.takes_part(round_number)

    def values(self, question: RoundQuery, streams: Streams, kept: Integers | None) -> Integers:
        match self._trial.attack:
            case "turned":
                return self._stretched(-self._reporter.values(question, one_stream(quiet), kept))
            case "opposite":
                return -self._reporter.values(question, streams, kept)
            case "push":
                return self._stretched(self._pooled)
            case "short":
                return self._stretched(self._pooled, self._unseen)
            case "noise":
                return self._stretched(self._rng.standard_normal(self._mechanism.dimension))
            case _:
                return self._reporter.values(question, streams, kept)

    def _stretched(self, direction: Floats | Integers, length: float | None = None) -> Integers:
        """As long as is accepted, unless told otherwise."""
        if self._trial.rule == UNBOUNDED:
            return np.sign(direction).astype(np.int64) * self._mechanism.largest_value
        unit = direction / (np.linalg.norm(direction) or 1.0)
        return np.rint((length or self._longest) * unit).astype(np.int64)


def unseen(mechanism: Mechanism, silos: int) -> float:
    """How long a report without noise may be among alike silos whose answers are near 0: its
    squared distance from them is four fifths of what raises a warning, on average."""
    doubt = log(2 * silos * mechanism.rounds / FALSE_ALARMS)
    seen = noise_of(mechanism, 0, reports=2).longest(0.0, doubt)
    return sqrt(max(0.0, 0.8 * seen**2 - noise_of(mechanism, 0).mean_square))


# Other numbers of silos and rounds ----------------------------------------------------------------

SHAPES = ((3, 60), (25, 60), (100, 60), (10, 20), (10, 40))
SHAPE_RULES = ("mean", "bounded-mean", "geometric-median")
SHAPE_ATTACKS = ((None, 0), ("push", 1), ("push", 3))


def shaped(silos: int, rounds: int) -> tuple[Source, Source]:
    """Honest silos of which one is unlike the others; cohorts, to be attacked."""
    unlike = Source(f"unlike 1 of {silos}", 8.0, silos=silos, rounds=rounds)
    return unlike, Source("cohorts", 2.0, silos=silos, rounds=rounds)


def shape_trials(seeds: int) -> list[Trial]:
    found = []
    for shape in SHAPES:
        unlike, plain = shaped(*shape)
        for rule in SHAPE_RULES:
            found.append((unlike, rule, None, 0))
            found += [
                (plain, rule, *attack) for attack in SHAPE_ATTACKS if 3 * attack[1] <= shape[0]
            ]
    return [Trial(*each, seed) for each in found for seed in range(1, seeds + 1)]


def shape_table(results: "Results") -> Table:
    table = Table(title="other numbers of silos and rounds: error in %, " + ", ".join(SHAPE_RULES))
    cases = ("unlike 1, ε = 8: theirs", "cohorts, ε = 2: nobody", "push, 1 bad", "push, 3 bad")
    for column in ("silos", "rounds", *cases):
        table.add_column(column)
    for shape in SHAPES:
        unlike, plain = shaped(*shape)
        theirs = (
            [each.unlike_error or 0.0 for each in results.of(unlike, rule, None, 0)]
            for rule in SHAPE_RULES
        )
        cells = [_each(theirs)]
        for attack in SHAPE_ATTACKS:
            cells.append(_each(results.errors(plain, rule, *attack) for rule in SHAPE_RULES))
        table.add_row(*map(str, shape), *cells)
    return table


# What comes of it ---------------------------------------------------------------------------------


def trials_of(source: Source, seeds: int, *, attacked: bool, quick: bool) -> list[Trial]:
    rules = [name for name, rule in RULES.items() if rule.bad_silos < 2 or source.name != "charges"]
    rules += [] if quick or source.name == "charges" else RADII
    found = [Trial(source, rule, None, 0, 0) for rule in rules]
    for bad in range(1, 2 if quick else MOST_BAD + 1) if attacked else ():
        found.append(Trial(source, WITHOUT, None, bad, 0))
        found += [Trial(source, UNBOUNDED, attack, bad, 0) for attack in STRETCHED]
        found += [Trial(source, rule, attack, bad, 0) for rule in rules for attack in ATTACKS]
    return [
        Trial(each.source, each.rule, each.attack, each.bad, seed)
        for each in found
        for seed in range(1, seeds + 1)
    ]


class Results:
    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes

    def of(self, source: Source, rule: str, attack: str | None, bad: int) -> list[Outcome]:
        """In the order of seeds."""
        key = (source, rule, attack, bad)
        found = [
            each
            for each in self._outcomes
            if (each.trial.source, each.trial.rule, each.trial.attack, each.trial.bad) == key
        ]
        return sorted(found, key=lambda each: each.trial.seed)

    def errors(self, source: Source, rule: str, attack: str | None, bad: int) -> list[float]:
        return [each.error for each in self.of(source, rule, attack, bad)]


def cost_table(results: Results, sources: Iterable[Source]) -> Table:
    """All silos honest: the error of the mean, and what other rules have more, pair by pair."""
    table = Table(
        title="all silos honest: error of the mean in %, and what a rule has more, ± 95 %"
    )
    for column in ("data", *RULES):
        table.add_column(column)
    for source in sources:
        plain = results.errors(source, "mean", None, 0)
        cells = [source.title, _spread(plain, digits=2)]
        for rule in list(RULES)[1:]:
            own = results.errors(source, rule, None, 0)
            more = [one - other for one, other in zip(own, plain, strict=bool(own))]
            cells.append(_spread(more, digits=2, sign="+") if own else "")
        table.add_row(*cells)
    return table


def unlike_table(results: Results, sources: Sequence[Source], rules: Iterable[str]) -> Table:
    """All silos honest: the error on everybody's patients and on those of silos unlike most."""
    rules = list(rules)
    table = Table(title="all silos honest, some unlike the others: error in % on all / on theirs")
    for column in ("data", *rules, "rounds warned, %"):
        table.add_column(column)
    for source in sources:
        cells = [source.title]
        for rule in rules:
            every = results.of(source, rule, None, 0)
            theirs = [each.unlike_error or 0.0 for each in every]
            cells.append(f"{_spread([each.error for each in every])} / {_spread(theirs)}")
        usual = results.of(source, "bounded-mean", None, 0)
        table.add_row(*cells, _spread([100 * each.warned for each in usual], digits=0))
    return table


def attack_table(results: Results, source: Source, rules: Iterable[str]) -> Table:
    """Bad silos of ten, a column for each rule and a row for each attack."""
    rules = list(rules)
    table = Table(title=f"{source.title}: error in % with 1 / 2 / 3 bad silos of {SILOS}")
    for column in ("attack", *rules, UNBOUNDED, WITHOUT, "rounds warned, %"):
        table.add_column(column)
    cells = [_spread(results.errors(source, rule, None, 0)) for rule in rules]
    table.add_row("nobody", *cells)
    for attack in ATTACKS:
        cells = [attack]
        for rule in (*rules, UNBOUNDED):
            cells.append(_each(results.errors(source, rule, attack, bad) for bad in _bad()))
        cells.append(_each(results.errors(source, WITHOUT, None, bad) for bad in _bad()))
        warned = (
            [100 * each.warned for each in results.of(source, "bounded-mean", attack, bad)]
            for bad in _bad()
        )
        table.add_row(*cells, _each(warned, digits=0))
    return table


def _bad() -> range:
    return range(1, MOST_BAD + 1)


def _each(figures: Iterable[list[float]], digits: int = 1) -> str:
    return " / ".join(_spread(each, digits) for each in figures if each)


def _spread(figures: list[float], digits: int = 1, sign: str = "") -> str:
    """Mean, and half of its 95 % interval where there are several."""
    if not figures:
        return ""
    found = Spread.of(figures)
    margin = "" if found.margin is None else f" ± {found.margin:.{digits}f}"
    return f"{found.mean:{sign}.{digits}f}{margin}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="cohorts, 1 bad silo, 1 seed")
    parser.add_argument("--digits", type=Path, help="folder with the four IDX files of MNIST")
    parser.add_argument("--charges", type=Path, help="folder with insurance.csv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    attacked = [Source("cohorts", 2.0)]
    unlike = [
        Source(f"unlike {many} of {SILOS}", epsilon) for many in (1, 2, 5) for epsilon in (2.0, 8.0)
    ]
    only_cost = [Source("cohorts", 0.5), Source("cohorts", 8.0), Source("small cohorts", 2.0)]
    if options.quick:
        unlike, only_cost = unlike[1:2], []
    else:
        attacked.append(unlike[-2])
    if options.digits is not None:
        attacked.append(Source("digits", 3.0, options.digits.resolve()))
        only_cost.append(Source("digits", 0.75, options.digits.resolve()))
    if options.charges is not None:
        folder = options.charges.resolve()
        only_cost += [Source("charges", epsilon, folder) for epsilon in (0.5, 2.5)]
    seeds, rounds = (1, 20) if options.quick else (options.seeds, ROUNDS)
    trials = [
        each
        for source in dict.fromkeys([*attacked, *unlike, *only_cost])
        for each in trials_of(source, seeds, attacked=source in attacked, quick=options.quick)
    ]
    trials += [] if options.quick else shape_trials(seeds)
    console = Console(width=240)
    outcomes = list(run_all(partial(run_trial, rounds), trials, options.processes, console))
    results = Results(outcomes)
    family = ["mean", *RADII, "geometric-median"]
    family.insert(family.index("r = 0.1 C"), "bounded-mean")
    columns = [[*RULES]] if options.quick else [[*RULES], family]
    console.print(cost_table(results, dict.fromkeys([*attacked, *only_cost])))
    for rules in columns:
        console.print(unlike_table(results, unlike, rules))
    for source in attacked:
        for rules in columns:
            console.print(attack_table(results, source, rules))
    if not options.quick:
        console.print(shape_table(results))
    if options.json is not None:
        rows = [asdict(each) for each in outcomes]
        options.json.write_text(json.dumps(rows, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
