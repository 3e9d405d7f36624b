"""How an experiment is run, and its findings shown and written: NAME.md, NAME.json, NAME.png."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown
from silomix_protocol.host.failure import Failure

from silomix_lab.reproduce.experiment import (
    ClaimVerdict,
    Experiment,
    ExperimentRequest,
    Findings,
    ResultTable,
)
from silomix_lab.reproduce.experiments import EXPERIMENTS

_COLOURS = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.FAILS: "red",
    ClaimVerdict.UNDECIDED: "yellow",
}


def show_experiments(console: Console) -> None:
    """Print all experiments, with what they need."""
    table = Shown(show_lines=True)
    for column in ("name", "paper", "what it shows", "needs", "parts"):
        table.add_column(column)
    for each in EXPERIMENTS.values():
        table.add_row(
            each.name, each.paper, each.shows, each.needs or "nothing", ", ".join(each.parts)
        )
    console.print(table)


def run_experiment(
    name: str, request: ExperimentRequest, json_file: Path | None, console: Console
) -> None:
    experiment = _known(name, request)
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise Failure(f"--json {json_file}: there is no such folder")
    request.out.mkdir(parents=True, exist_ok=True)
    findings = experiment.run(request, console)
    for table in findings.tables:
        console.print(_shown(table))
    for note in findings.notes:
        console.print(note, highlight=False)
    for claim in findings.claims:
        colour = _COLOURS[claim.verdict]
        console.print(f"[{colour}]{claim.verdict.value}[/]: {claim.says}", highlight=False)
        console.print(f"    {claim.measured}", highlight=False)
    written = _write(experiment, findings, request.out)
    if json_file is not None:
        json_file.write_text(_as_json(experiment, findings), encoding="utf-8")
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True, highlight=False)


def _known(name: str, request: ExperimentRequest) -> Experiment:
    if name not in EXPERIMENTS:
        raise Failure(f"no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    for part in request.parts:
        if part not in experiment.parts:
            raise Failure(f"{name} has no part {part!r}; it has {', '.join(experiment.parts)}")
    if experiment.needs is not None and request.data is None:
        raise Failure(f"{name} needs --data FOLDER with {experiment.needs}")
    return experiment


def _shown(table: ResultTable) -> Shown:
    shown = Shown(title=table.title)
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _write(experiment: Experiment, findings: Findings, folder: Path) -> list[Path]:
    text, figures, picture = (folder / f"{experiment.name}.{end}" for end in ("md", "json", "png"))
    text.write_text(_as_markdown(experiment, findings), encoding="utf-8")
    figures.write_text(_as_json(experiment, findings), encoding="utf-8")
    try:
        findings.draw(picture)
    except ModuleNotFoundError as missing:
        raise Failure(f"the picture needs {missing.name}; install silomix[demo]") from missing
    return [text, figures, picture]


def _as_json(experiment: Experiment, findings: Findings) -> str:
    claims = [
        {"says": each.says, "verdict": each.verdict.value, "measured": each.measured}
        for each in findings.claims
    ]
    figures = {"experiment": experiment.name, "paper": experiment.paper, **findings.figures}
    return json.dumps(figures | {"claims": claims}, indent=2, ensure_ascii=False) + "\n"


def _as_markdown(experiment: Experiment, findings: Findings) -> str:
    lines = [f"# {experiment.paper}", "", experiment.shows, ""]
    for table in findings.tables:
        lines += [f"**{table.title}**", "", _row(table.columns)]
        lines += [_row(("---",) * len(table.columns)), *map(_row, table.rows), ""]
    lines += [line for note in findings.notes for line in (note, "")]
    lines += ["| claim | | measured |", "|---|---|---|"]
    lines += [_row((each.says, each.verdict.value, each.measured)) for each in findings.claims]
    return "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
