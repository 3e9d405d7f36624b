"""What the demo leaves behind: a table for people, summary.json for programs, one picture."""

import csv
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import ADJACENCY
from silomix_core.evaluation.calibration import Calibration
from silomix_core.evaluation.private import CELLS
from silomix_core.study.study import Study

PROTECTS_AGAINST = "the server, all mixes, the network and all other silos, colluding"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    silo: str
    records: int
    rounds_answered: int
    epsilon_spent: float


@dataclass(frozen=True, slots=True)
class Summary:
    test_error: float
    pooled_error: float
    majority_error: float
    epsilon: float
    delta: float
    adjacency: str
    protects_against: str
    ledgers: list[LedgerLine]
    rounds: int
    rounds_void: int
    reports_accepted: int
    reports_dropped: int
    reports_too_long: int  # of the dropped: longer than any silo's report
    rounds_outlying: int  # with a report far from most others
    seconds_per_round_median: float
    seconds_to_first_round: float
    seconds_total: float
    peak_rss_mb: dict[str, float]
    algorithm: str
    data: str
    study: str
    evaluation: dict[str, Any] | None = None  # by the silos' held-out records, if they have any
    calibration: Calibration | None = None  # on the public hold-out, of a model of two classes

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def table(summary: Summary) -> Table:
    result = Table(title="silomix demo", title_justify="left", show_header=False, min_width=60)
    result.add_column(style="bold")
    result.add_column()
    result.add_row("test error", f"{100 * summary.test_error:.2f} %")
    if (found := summary.evaluation) is not None:
        for name, text in _evaluated(found):
            result.add_row(name, text)
    if summary.calibration is not None:
        result.add_row("probabilities", _fit(summary.calibration))
    result.add_row("pooled, non-private", f"{100 * summary.pooled_error:.2f} %")
    result.add_row("always the same answer", f"{100 * summary.majority_error:.2f} %")
    result.add_row(
        "privacy",
        f"ε = {summary.epsilon:g}, δ = {summary.delta:g}, {summary.adjacency}, against "
        f"{summary.protects_against}",
    )
    for line in summary.ledgers:
        result.add_row(
            f"ledger of {line.silo}",
            f"ε spent {line.epsilon_spent:.4f} in {line.rounds_answered} rounds "
            f"({line.records} records)",
        )
    result.add_row(
        "reports", f"{summary.reports_accepted} accepted, {summary.reports_dropped} dropped"
    )
    for name, text in _suspicious(summary):
        result.add_row(name, text)
    result.add_row("rounds", f"{summary.rounds}, {summary.rounds_void} void")
    result.add_row("time per round", f"{1000 * summary.seconds_per_round_median:.1f} ms (median)")
    result.add_row(
        "time in all",
        f"{summary.seconds_total:.1f} s, first round after {summary.seconds_to_first_round:.1f} s",
    )
    peaks = ", ".join(f"{role} {peak:.0f}" for role, peak in sorted(summary.peak_rss_mb.items()))
    result.add_row("peak memory, MB", peaks)
    return result


def _fit(found: Calibration) -> str:
    """How well probabilities fit; a ratio or slope that the labels do not determine is left out."""
    parts = [f"Brier score {found.brier:.4f}, log loss {found.log_loss:.4f}"]
    if found.prevalence_ratio is not None:
        parts.append(f"their mean {found.prevalence_ratio:.2f} times the true share")
    if found.slope is not None:
        parts.append(f"slope {found.slope:.2f}")
    return ", ".join(parts) + " (1 is best)"


def _suspicious(summary: Summary) -> list[tuple[str, str]]:
    lines = []
    if summary.reports_too_long:
        lines.append(
            ("too long", f"{summary.reports_too_long} reports that no agreed software sends")
        )
    if summary.rounds_outlying:
        text = f"a report far from most others in {summary.rounds_outlying} rounds"
        lines.append(("outlying", text))
    return lines


def _evaluated(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows about the silos' evaluation, ± the noise's standard deviation; shares in percent."""
    where = "on the records that they held out (± is the noise)"
    if "mean_squared_error" in found:
        squared, absolute = found["mean_squared_error"], found["mean_absolute_error"]
        return [
            (
                "squared error, by the silos",
                f"{squared:.4g} ± {found['standard_error']:.2g} {where}",
            ),
            ("absolute error", f"{absolute:.4g} ± {found['absolute_standard_error']:.2g}"),
        ]
    return [
        (
            "by the silos",
            f"{100 * found['error']:.2f} % ± {100 * found['standard_error']:.2f} {where}",
        ),
        (
            "confusion, %",
            f"{_cells(found['confusion'])} (each ± {100 * found['cell_standard_error']:.2f})",
        ),
    ]


def _cells(confusion: dict[str, float] | list[list[float]]) -> str:
    """The confusion matrix as text: cells by name for two classes, a line per label for several."""
    if isinstance(confusion, dict):
        return ", ".join(f"{name.replace('_', ' ')} {100 * confusion[name]:.1f}" for name in CELLS)
    rows = [" ".join(f"{100 * cell:5.1f}" for cell in row) for row in confusion]
    return "\n".join(f"label {label}, predicted 0 …: {row}" for label, row in enumerate(rows))


def write_metrics(progress: list[dict[str, float]], path: Path) -> None:
    """Write the progress as CSV, one row per round."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(progress[0]))
        writer.writeheader()
        writer.writerows(progress)


def draw(progress: list[dict[str, float]], summary: Summary, study: Study, path: Path) -> None:
    """Draw error and ε by round."""
    from matplotlib.figure import Figure

    rounds = [int(line["round"]) for line in progress]
    smallest = min(silo.records for silo in study.silos)
    spent = _spent_by_round(study, len(rounds))
    figure = Figure(figsize=(8, 6.5))
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot(rounds, [100 * line["error"] for line in progress], color="tab:blue", label="model")
    top.axhline(100 * summary.pooled_error, color="tab:green", ls="--", label="pooled, non-private")
    top.axhline(100 * summary.majority_error, color="tab:gray", ls=":", label="always the same")
    top.plot([rounds[-1]], [100 * summary.test_error], "o", color="tab:blue", label="final model")
    top.set_ylabel("error on the public hold-out, %")
    top.set_ylim(bottom=0)
    top.legend(loc="upper right")
    top.set_title(
        f"{study.name}: {len(study.silos)} silos, {len(study.mixes)} mixes, {study.algorithm}"
    )
    bottom.plot(rounds, spent, color="tab:red", label=f"smallest silo (n = {smallest})")
    bottom.axhline(study.target.epsilon, color="black", ls="--", lw=1, label="ε of the study")
    bottom.set_ylabel(f"ε spent at δ = {study.target.delta:g}\n({ADJACENCY})")
    bottom.set_xlabel("round")
    bottom.set_ylim(bottom=0)
    bottom.legend(loc="lower right")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _spent_by_round(study: Study, rounds: int) -> list[float]:
    """The most ε that the smallest silo can have spent after each round, in its worst phase."""
    mechanism, answered = study.mechanism(), Counter[int]()
    silo = study.participant(min(study.silos, key=lambda each: each.records))
    spent = [0.0]
    for number in range(1, rounds + 1):
        phase = mechanism.phase_of(number)
        known = mechanism.phases[phase]
        answered[phase] = min(answered[phase] + known.steps, known.events)
        event = mechanism.event(silo, phase)
        spent.append(max(spent[-1], epsilon_of([(event, answered[phase])], silo.target.delta)))
    return spent[1:]
