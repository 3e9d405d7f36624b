"""Noble et al. repeated: what the rounds and the trials come to."""

from collections.abc import Sequence

from rich.console import Console

from silomix_lab.reproduce.experiment import Experiment, ExperimentRequest, Findings
from silomix_lab.reproduce.noble2022.accuracies import NobleResults
from silomix_lab.reproduce.noble2022.accuracy_tables import accuracy_table, notes_of, rows_of
from silomix_lab.reproduce.noble2022.claims import accuracy_claims
from silomix_lab.reproduce.noble2022.paper_rounds import (
    ROUNDS_NOTE,
    PaperCell,
    all_cells,
    as_row,
    round_tables,
    rounds_claim,
)
from silomix_lab.reproduce.noble2022.picture import draw
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    FULL,
    LEVELS,
    REDUCED,
    ROUNDS,
    UNLESS_TOLD,
    Size,
)
from silomix_lab.reproduce.noble2022.trial import run_trials


def run(request: ExperimentRequest, console: Console) -> Findings:
    parts = request.parts or UNLESS_TOLD
    sizes = [size for size in (REDUCED, FULL) if size.name in parts]
    cells = all_cells() if ROUNDS in parts else []
    results = NobleResults(run_trials(sizes, request, console), request.trials) if sizes else None
    return findings(cells, sizes, results)


def findings(
    cells: Sequence[PaperCell], sizes: Sequence[Size], results: NobleResults | None
) -> Findings:
    tables = list(round_tables(cells)) if cells else []
    claims = [rounds_claim(cells)] if cells else []
    notes = [ROUNDS_NOTE] if cells else []
    figures: dict[str, object] = {"rounds": [as_row(each) for each in cells]}
    if results is not None:
        tables += [accuracy_table(results, size, level) for size in sizes for level in LEVELS]
        claims += [claim for size in sizes for claim in accuracy_claims(results, size)]
        notes += notes_of(results, sizes)
        figures["rows"] = [row for size in sizes for row in rows_of(results, size)]
        figures["trials"] = results.trials
    return Findings(
        tables=tuple(tables),
        notes=tuple(notes),
        claims=tuple(claims),
        figures=figures,
        draw=lambda path: draw(cells, sizes, results, path),
    )


EXPERIMENT = Experiment(
    name="scaf",
    paper="Noble, Bellet, Dieuleveut (2022), §5 and App. D",
    shows="DP-SCAFFOLD against DP-FedAvg on synthetic users that differ, and the rounds of Table 1",
    needs=None,
    parts=(ROUNDS, REDUCED.name, FULL.name),
    run=run,
)
