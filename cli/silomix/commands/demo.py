"""`silomix demo`: a whole consortium on this machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from silomix_protocol.host.failure import failures

from silomix.commands.options import (
    AggregationRule,
    Averaging,
    BadSilos,
    Classes,
    Gate,
    Hidden,
    LabelBounds,
    Level,
    Loss,
    Momentum,
    Ratio,
    Sampling,
    Threshold,
    Tokens,
)


def demo(
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
    delta: Annotated[float, typer.Option(help="δ that goes with it.")] = 1e-6,
    algorithm: Annotated[
        str,
        typer.Option(help="Algorithm (silomix algorithms lists them); auto sets rounds and clip."),
    ] = "noisy-mb-sgd",
    data: Annotated[
        str, typer.Option(help="cohorts, breast-cancer or a CSV file with a header.")
    ] = "cohorts",
    label: Annotated[str | None, typer.Option(help="Label column of a CSV file.")] = None,
    loss: Loss = "logistic",
    label_bounds: LabelBounds = None,
    level: Level = None,
    threshold: Threshold = None,
    classes: Classes = None,
    hidden: Hidden = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data split, never of noise.")] = 1,
    participants: Annotated[
        int | None, typer.Option(min=2, help="Silos that a round asks, in turns (else all).")
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Of a silo in a round, where it takes them (else 5)."),
    ] = None,
    momentum: Momentum = None,
    averaging: Averaging = None,
    aggregation: AggregationRule = None,
    bad_silos: BadSilos = None,
    evaluation: Annotated[
        float | None,
        typer.Option(
            help="Share of each silo's records that is held out and, with noise, evaluates the "
            "final model (else none)."
        ),
    ] = None,
    sampling: Sampling = "full",
    ratio: Ratio = None,
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
    from silomix_lab.choices.aggregation_rule import aggregation_of
    from silomix_lab.choices.descent import descent_of
    from silomix_lab.choices.goal import Goal, bounds
    from silomix_lab.choices.minibatch import minibatch
    from silomix_lab.demo.run_demo import DemoOptions, run_demo

    with failures():
        options = DemoOptions(
            silos=silos,
            mixes=mixes,
            rounds=rounds,
            epsilon=epsilon,
            central_epsilon=central_epsilon,
            delta=delta,
            algorithm=algorithm,
            data=data,
            label=label,
            goal=Goal(loss, bounds(label_bounds), level, threshold, classes, hidden),
            seed=seed,
            participants=participants,
            local_steps=local_steps,
            descent=descent_of(momentum, averaging),
            aggregation=aggregation_of(aggregation, bad_silos),
            evaluation=evaluation,
            minibatch=minibatch(sampling, ratio),
            minimum_batch=minimum_batch,
            gate=gate,
            tokens=tokens,
            lease_rounds=lease_rounds,
            out=out,
            json=json,
            plain=plain,
        )
        sys.exit(run_demo(options))
