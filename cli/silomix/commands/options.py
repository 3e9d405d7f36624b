"""Options and arguments that several commands take, each declared once.

A group of options is a function of them that makes what they say together, such as of a loss and
its parameters the `Goal` of a study.  A command takes groups by `with_options`: its help has the
options of every group, and it is given what the groups made.
"""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter, signature
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from silomix_protocol.host.failure import failures

if TYPE_CHECKING:  # commands start without the core
    from silomix_core.mechanism.mechanism import Minibatch
    from silomix_core.reports.aggregation import Aggregation
    from silomix_core.study.specification import Specification
    from silomix_core.task.goal import Goal

Config = Annotated[Path, typer.Argument(help="This party's TOML file.")]
StudyFile = Annotated[Path, typer.Argument(help="The study file.")]
Delta = Annotated[float, typer.Option(help="δ that goes with it.")]
DataSet = Annotated[str, typer.Option(help="cohorts, breast-cancer or a CSV file with a header.")]
LabelColumn = Annotated[str | None, typer.Option(help="Label column of a CSV file.")]
Gate = Annotated[
    bool, typer.Option(help="Open a batch only after its minimum of silos confirmed it.")
]
Tokens = Annotated[
    bool, typer.Option(help="Count only reports with a token, one for each silo and round.")
]
AggregationRule = Annotated[
    str | None,
    typer.Option(
        help="How a round's reports become one: mean, bounded-mean (unless given, where it can "
        "be), trimmed-mean or geometric-median."
    ),
]
BadSilos = Annotated[
    int | None, typer.Option(min=1, help="Of a trimmed mean: how many bad silos it holds off.")
]
Sampling = Annotated[
    str,
    typer.Option(help="Records of a silo in a round: full (all), poisson or without-replacement."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="What silos count by: records (unless given: all records of all silos alike) or "
        "equal (all silos alike)."
    ),
]
Ratio = Annotated[float | None, typer.Option(help="Share of the records in a batch, unless full.")]


def goal_options(
    loss: Annotated[
        str,
        typer.Option(
            help="logistic, hinge, multinomial; for numbers squared, huber, absolute, quantile."
        ),
    ] = "logistic",
    label_bounds: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Public bounds of a label that is a number."),
    ] = None,
    level: Annotated[
        float | None, typer.Option(help="Of the quantile loss: 0.5 is the median.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Of the Huber loss, in the label's unit: where errors become outliers."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Of the multinomial loss: labels 0, 1, 2 …")
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(help="Units of a hidden layer: a network instead of a linear model."),
    ] = None,
) -> "Goal":
    from silomix_lab.choices.goal import goal_of

    return goal_of(
        loss, label_bounds, level=level, threshold=threshold, classes=classes, hidden=hidden
    )


def minibatch_options(sampling: Sampling = "full", ratio: Ratio = None) -> "Minibatch":
    from silomix_lab.choices.minibatch import minibatch

    return minibatch(sampling, ratio)


def aggregation_options(
    aggregation: AggregationRule = None, bad_silos: BadSilos = None
) -> "Aggregation | None":
    from silomix_lab.choices.aggregation_rule import aggregation_of

    return aggregation_of(aggregation, bad_silos)


def learning_options(
    local_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Of a silo in a round, where it takes them (else 5)."),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(help="Heavy ball of noisy-mb-sgd and one-pass-mb-sgd: 0 for none (else 0.8)."),
    ] = None,
    averaging: Annotated[
        str | None,
        typer.Option(help="Of the same: weighted-tail (unless given), weighted or tail."),
    ] = None,
    weights: Weights = None,
    draw: Annotated[
        str,
        typer.Option(
            help="With --participants, how a round's silos are drawn: in turns, so that a silo "
            "pays for its turns alone, or independent, as in the papers, where it pays for all."
        ),
    ] = "turns",
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
) -> "partial[Specification]":
    """A specification to which the command adds what is left."""
    from silomix_core.study.specification import Specification
    from silomix_lab.choices.descent import descent_of
    from silomix_lab.choices.silos import draw_of, weighting_of
    from silomix_lab.choices.specification import held_out_of

    return partial(
        Specification,
        local_steps=local_steps,
        descent=descent_of(momentum, averaging),
        draw=draw_of(draw),
        named_weighting=weighting_of(weights),
        named_aggregation=aggregation_options(aggregation, bad_silos),
        held_out=held_out_of(evaluation),
        minibatch=minibatch_options(sampling, ratio),
    )


def with_options(
    **groups: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the options of these groups, and be given what each group makes of them as
    the argument of that name."""

    def taking(command: Callable[..., None]) -> Callable[..., None]:
        options = {name: signature(group).parameters for name, group in groups.items()}
        shown: list[Parameter] = []
        for name, parameter in signature(command).parameters.items():
            shown.extend(options[name].values() if name in groups else [parameter])

        def run(**typed: Any) -> None:
            with failures():
                for name, group in groups.items():
                    typed[name] = group(**{each: typed.pop(each) for each in options[name]})
                command(**typed)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
        )
        return run

    return taking


def on_one_thread(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command do its linear algebra on one thread: it has processes, more would only wait."""

    @wraps(command)
    def run(**typed: Any) -> None:
        environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported
        command(**typed)

    return run
