"""`silomix demo`: a whole consortium on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silomix.commands.options import (
    DataSet,
    Delta,
    Gate,
    LabelColumn,
    Tokens,
    goal_options,
    learning_options,
    with_options,
)

if TYPE_CHECKING:
    from functools import partial

    from silomix_core.study.specification import Specification
    from silomix_core.task.goal import Goal


@with_options(goal=goal_options, learning=learning_options)
def demo(
    *,
    silos: Annotated[int, typer.Option(min=2, max=200, help="Hospitals.")] = 5,
    mixes: Annotated[int, typer.Option(min=1, max=20, help="Mixes in the chain.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, at most as many.")] = 40,
    epsilon: Annotated[float, typer.Option(help="ε of every silo's whole transcript.")] = 2.0,
    central_epsilon: Annotated[
        float | None,
        typer.Option(
            help="For shuffled-mb-sgd, instead of --epsilon: ε towards a server behind an honest "
            "mix; the local one follows."
        ),
    ] = None,
    delta: Delta = 1e-6,
    algorithm: Annotated[
        str,
        typer.Option(help="Algorithm (silomix algorithms lists them); auto sets rounds and clip."),
    ] = "noisy-mb-sgd",
    data: DataSet = "cohorts",
    label: LabelColumn = None,
    goal: "Goal",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data split, never of noise.")] = 1,
    participants: Annotated[
        int | None, typer.Option(min=2, help="Silos that a round asks, in turns (else all).")
    ] = None,
    learning: "partial[Specification]",
    minimum_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest reports that a batch may have (else 80 % of the silos)."),
    ] = None,
    gate: Gate = True,
    tokens: Tokens = True,
    lease_rounds: Annotated[
        int, typer.Option(min=1, help="Rounds per Flower message (1: Flower dispatches each).")
    ] = 50,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("silomix-demo"),
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write summary.json here.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a display.")] = False,
) -> None:
    """Run a whole consortium on this machine: server, mixes and hospitals as real processes.

    Everything goes into one folder (--out, an earlier demo there is replaced): each party's keys,
    data and log, the model, summary.json, the metrics of every round and a picture.
    """
    from silomix_core.study.defaults import usual_minimum
    from silomix_core.study.specification import Batching
    from silomix_lab.choices.goal import usual_radius
    from silomix_lab.choices.specification import target_of
    from silomix_lab.demo.run_demo import CLIP, DemoOptions, run_demo

    minimum = minimum_batch or usual_minimum(participants or silos)
    options = DemoOptions(
        out=out,
        specification=learning(
            algorithm=algorithm,
            most_rounds=rounds,
            radius=usual_radius(goal),
            clip=CLIP,
            target=target_of(epsilon if central_epsilon is None else central_epsilon, delta),
            participants=participants,
            batching=Batching(minimum, gate=gate, tokens=tokens),
        ),
        is_central=central_epsilon is not None,
        silos=silos,
        mixes=mixes,
        data=data,
        label=label,
        goal=goal,
        seed=seed,
        lease_rounds=lease_rounds,
        json=json,
        plain=plain,
    )
    sys.exit(run_demo(options))
