"""Options and arguments that several commands take, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="This party's TOML file.")]
StudyFile = Annotated[Path, typer.Argument(help="The study file.")]
Loss = Annotated[
    str,
    typer.Option(
        help="logistic, hinge, multinomial; for numbers squared, huber, absolute, quantile."
    ),
]
LabelBounds = Annotated[
    str | None,
    typer.Option(metavar="LOW,HIGH", help="Public bounds of a label that is a number."),
]
Level = Annotated[float | None, typer.Option(help="Of the quantile loss: 0.5 is the median.")]
Threshold = Annotated[
    float | None,
    typer.Option(help="Of the Huber loss, in the label's unit: where errors become outliers."),
]
Classes = Annotated[int | None, typer.Option(help="Of the multinomial loss: labels 0, 1, 2 …")]
Hidden = Annotated[
    int | None, typer.Option(help="Units of a hidden layer: a network instead of a linear model.")
]
Momentum = Annotated[
    float | None,
    typer.Option(help="Heavy ball of noisy-mb-sgd and one-pass-mb-sgd: 0 for none (else 0.8)."),
]
Averaging = Annotated[
    str | None,
    typer.Option(help="Of the same: weighted-tail (unless given), weighted or tail."),
]
AggregationRule = Annotated[
    str | None,
    typer.Option(
        "--aggregation",
        help="How a round's reports become one: mean, bounded-mean (unless given, where it can "
        "be), trimmed-mean or geometric-median.",
    ),
]
BadSilos = Annotated[
    int | None, typer.Option(min=1, help="Of a trimmed mean: how many bad silos it holds off.")
]

Sampling = Annotated[
    str,
    typer.Option(help="Records of a silo in a round: full (all), poisson or without-replacement."),
]
Ratio = Annotated[float | None, typer.Option(help="Share of the records in a batch, unless full.")]
Gate = Annotated[
    bool, typer.Option(help="Open a batch only after its minimum of silos confirmed it.")
]
Tokens = Annotated[
    bool, typer.Option(help="Count only reports with a token, one for each silo and round.")
]
