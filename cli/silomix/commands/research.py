"""`silomix algorithms`, `plan`, `simulate`, `reproduce`, `audit`: before and beside a study."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show

from silomix.commands.options import (
    DataSet,
    Delta,
    LabelColumn,
    Weights,
    aggregation_options,
    goal_options,
    learning_options,
    minibatch_options,
    on_one_thread,
    with_options,
)

if TYPE_CHECKING:
    from functools import partial

    from silomix_core.mechanism.mechanism import Minibatch
    from silomix_core.reports.aggregation import Aggregation
    from silomix_core.study.specification import Specification
    from silomix_core.task.goal import Goal


@with_options(minibatch=minibatch_options)
def audit(
    *,
    trials: Annotated[
        int, typer.Option(help="Studies that are attacked: half on D, half on D'.")
    ] = 500,
    algorithm: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the studies run: any of `silomix algorithms`.",
        ),
    ] = "noisy-mb-sgd",
    loss: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="logistic, or hinge: then everybody but the canary is at the kink.",
        ),
    ] = "logistic",
    local_steps: Annotated[
        int | None, typer.Option(help="Noised steps of a silo in a round, where it walks.")
    ] = None,
    minibatch: "Minibatch",
    rounds: Annotated[int, typer.Option(help="Rounds of each study.")] = 4,
    epsilon: Annotated[
        float, typer.Option(help="ε that the silo claims for each study's whole transcript.")
    ] = 6.0,
    delta: Delta = 1e-5,
    silo_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Another build to audit: the command before `approve ...` and `run ...` "
            "(else this installation's `silomix silo`).",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.")
    ] = None,
    png: Annotated[Path, typer.Option(help="Where to put the picture.")] = Path(
        "silomix-audit.png"
    ),
) -> None:
    """Attack a real silo process and compare what leaks with what is claimed.

    In a scratch folder a silo approves and answers studies on made-up data, in processes started
    as an operator starts them.  Everybody around it (server, mixes, coordinator) is one attacker
    who knows every record but one, the canary, and must tell from the whole transcript which of
    two persons it is (D or D'): another label, another identifier, so that everybody else moves by
    one row, and more rows.  How often that succeeds gives a lower bound on the real μ and ε.
    Also checked: noise is never repeated or correlated, each round is in the ledger before its
    report leaves, and the ledger's events amount to the claimed ε.

    Where records are split into phases, the attacker is told which of them has the canary, and
    the other phases must not depend on it.  With --loss hinge everybody else's gradient hangs on
    the last bit of a score: it must not depend on who the canary is either.  Where batches are
    drawn (--sampling), who is in them stays the silo's secret, and how often and how far the
    canary moves a report is measured.

    VIOLATED (exit status 3) means that the claim is refuted: a silo that keeps it is called so
    with probability at most 0.1 %.  CONSISTENT (0) means that this attack, the strongest against
    the declared mechanism, did not refute it; that is evidence, no proof.  How large a loss of
    privacy it would have noticed, and how surely, is printed.  It cannot see a fault
    that shows only with other data, more rounds or other queries, nor a build that behaves
    differently when audited, nor what leaks through the time that a silo takes.

    The default ε is larger than you would use because few trials see most there; noise is
    calibrated by the same code for every ε.  No real silo's folder, data or ledger is touched.
    """
    try:
        from silomix_core.study.specification import Specification
        from silomix_lab.audit.canary import CLIP, RADIUS
        from silomix_lab.audit.run_audit import AuditOptions, run_audit
        from silomix_lab.choices.specification import target_of
    except ModuleNotFoundError as missing:
        raise Failure(f"the audit needs {missing.name}; install silomix[demo]") from missing

    options = AuditOptions(
        specification=Specification(
            algorithm=algorithm,
            most_rounds=rounds,
            radius=RADIUS,
            clip=CLIP,
            target=target_of(epsilon, delta),
            local_steps=local_steps,
            minibatch=minibatch,
        ),
        loss=loss,
        trials=trials,
        silo_command=silo_command,
        json=json,
        png=png,
    )
    sys.exit(run_audit(options))


def algorithms(
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """The algorithms that a study can name: what each does, its theorem, when to use it.

    Name one in the study file (algorithm.name), or try it: silomix demo --algorithm NAME.  How it
    gets one gradient from the reports of a round is the study's rule ([aggregation]): the bounded
    mean, which a bad silo cannot pull far away, unless the last column says "mean only".
    """
    from json import dumps

    from rich.console import Console
    from rich.table import Table
    from silomix_core.algorithms.catalogue import ALGORITHMS, AUTO
    from silomix_core.study.defaults import ADVICE, SUMMARY
    from silomix_lab.choices.aggregation_rule import is_mean_only

    if json:
        keys = ("name", "summary", "theorem", "advice", "needs_smooth")
        show(dumps([{key: getattr(each, key) for key in keys} for each in ALGORITHMS.values()]))
        return
    table = Table(show_lines=True)
    for column in ("name", "what it does", "theorem", "when to use it"):
        table.add_column(column, no_wrap=column == "name")
    table.add_row(AUTO, SUMMARY + ".", "", ADVICE)
    for each in ALGORITHMS.values():
        further = "" if each.needs_smooth else " Losses with kinks too."
        further += " Aggregation: mean only." if is_mean_only(each) else ""
        table.add_row(each.name, each.summary + ".", each.theorem + ".", each.advice + further)
    Console().print(table)


@on_one_thread
@with_options(goal=goal_options, learning=learning_options)
def simulate(
    *,
    algorithm: Annotated[
        str,
        typer.Option(
            help="Algorithms (silomix algorithms lists them); several: a,b,c.  auto sets its own "
            "rounds, clip and radius."
        ),
    ] = "noisy-mb-sgd",
    epsilon: Annotated[
        str, typer.Option(help="ε of every silo's whole transcript; several: 0.5,1,2,4.")
    ] = "0.5,1,2,4",
    central_epsilon: Annotated[
        str | None,
        typer.Option(
            help="For shuffled-mb-sgd, instead of --epsilon: ε towards a server behind an honest "
            "mix; the local one follows; several: 0.05,0.1."
        ),
    ] = None,
    delta: Delta = 1e-6,
    silos: Annotated[
        int | None, typer.Option(min=2, max=10_000, help="Hospitals (else 5, or as in --records).")
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(help="Records of each hospital: 300,4000*9 (else as the data has it)."),
    ] = None,
    participants: Annotated[
        int | None, typer.Option(help="Silos that a round asks (else all).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, at most as many.")] = 60,
    clip: Annotated[float, typer.Option(help="Bound on the norm of a record's gradient.")] = 0.25,
    radius: Annotated[
        float | None,
        typer.Option(help="Of the ball that the model is kept in (else 50; 10 for numbers)."),
    ] = None,
    ridge: Annotated[float, typer.Option(help="Of the public term ridge/2·‖w‖².")] = 0.0,
    learning: "partial[Specification]",
    goal: "Goal",
    data: DataSet = "cohorts",
    label: LabelColumn = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trials of each, on other splits.")] = 5,
    processes: Annotated[
        int | None, typer.Option(min=1, help="At a time (else as many as there are cores).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw error against ε here.")] = None,
) -> None:
    """Research: whole studies in one process, over algorithms, ε and seeds.

    The same code as on the network (the silos' arithmetic and noise, the coordinator's algorithm,
    the calibration), without processes, mixes and ledgers.  For example:

        silomix simulate --algorithm noisy-mb-sgd,localized-accelerated --seeds 10 --png sim.png

    The noise comes from a seeded generator, so that a run can be repeated: it protects nobody.
    Use made-up or public data.
    """
    from rich.console import Console

    try:
        from silomix_lab.choices.goal import usual_radius
        from silomix_lab.choices.silos import records_of
        from silomix_lab.choices.specification import target_of
        from silomix_lab.simulate import SimulateOptions, run_simulation
    except ModuleNotFoundError as missing:
        raise Failure(f"simulating needs {missing.name}; install silomix[demo]") from missing

    algorithms = tuple(dict.fromkeys(algorithm.split(",")))
    if central_epsilon is None:
        epsilons = _numbers("--epsilon", epsilon)
    else:
        epsilons = _numbers("--central-epsilon", central_epsilon)
    sizes = None if records is None else records_of(records)
    options = SimulateOptions(
        specification=learning(
            algorithm=algorithms[0],
            most_rounds=rounds,
            radius=radius or usual_radius(goal),
            clip=clip,
            target=target_of(epsilons[0], delta),
            ridge=ridge,
            participants=participants,
        ),
        algorithms=algorithms,
        epsilons=epsilons,
        is_central=central_epsilon is not None,
        data=data,
        label=label,
        silos=silos or (len(sizes) if sizes else 5),
        records=sizes,
        goal=goal,
        seeds=seeds,
        processes=processes,
        json=json,
        png=png,
    )
    run_simulation(options, Console())


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as bad:
        raise Failure(f"{option} {text!r}: use numbers separated by commas") from bad


@on_one_thread
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment; without it all are listed.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data that it needs.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each kind.")] = 20,
    part: Annotated[
        str | None, typer.Option(help="Only these parts of it; several: a,b (else all).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for table, picture and trials.")] = Path(
        "silomix-reproduce"
    ),
    processes: Annotated[
        int | None, typer.Option(min=1, help="At a time (else as many as there are cores).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.")
    ] = None,
) -> None:
    """Research: an experiment of the papers again, and which of its claims hold.

    Writes a table (NAME.md), the figures (NAME.json) and a picture (NAME.png) into --out.  Trials
    are kept there as they end: a run that was stopped goes on where it was, and a larger --trials
    adds to those of before.  For example:

        silomix reproduce loc --data mnist --trials 20
    """
    from rich.console import Console

    with failures():
        from silomix_lab.reproduce.experiment import ExperimentRequest
        from silomix_lab.reproduce.run_experiment import run_experiment, show_experiments

        if name is None:
            show_experiments(Console())
            return
        parts = tuple(part.split(",")) if part else ()
        run_experiment(
            name, ExperimentRequest(data, trials, parts, out, processes), json, Console()
        )


@on_one_thread
@with_options(minibatch=minibatch_options, aggregation=aggregation_options)
def plan_study(
    *,
    records: Annotated[
        str, typer.Option(help="Records of each silo: 1734, or where they differ 300,4000*9.")
    ],
    silos: Annotated[
        int | None, typer.Option(help="Hospitals, if --records is one number.")
    ] = None,
    weights: Weights = None,
    dimension: Annotated[
        int, typer.Option(help="Coordinates of the model, its bias included: features + 1.")
    ],
    epsilon: Annotated[
        str, typer.Option(help="ε of every silo's whole transcript; several: 0.5,1,2,4.")
    ],
    delta: Annotated[
        float | None, typer.Option(help="δ that goes with it (else 1/records²).")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help="Rounds; several: 20,60,100 (else 10 to 200).")
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Bound on the norm of a record's gradient (else the better of usual ones)."
        ),
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(help="Algorithm (silomix algorithms lists them); auto sets rounds and clip."),
    ] = "noisy-mb-sgd",
    minibatch: "Minibatch",
    minimum_batch: Annotated[
        int | None,
        typer.Option(help="Fewest reports that a batch may have (else 80 % of the silos)."),
    ] = None,
    aggregation: "Aggregation | None",
    radius: Annotated[float, typer.Option(help="Of the ball that the model is kept in.")] = 50.0,
    seeds: Annotated[int, typer.Option(help="Simulated runs to average over.")] = 5,
    no_simulation: Annotated[
        bool, typer.Option("--no-simulation", help="Noise and figures only: at once.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Draw error against ε and rounds here (else silomix-plan.png)."),
    ] = None,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw nothing.")] = False,
) -> None:
    """Before a study: how much noise, what error, and which ε to tell whom.

    Only public numbers go in; no data is read.  For example:

        silomix plan --records 1734 --silos 25 --dimension 50
                     --epsilon 0.5,1,2,4 --rounds 20,60,100 --png plan.png

    For each ε and number of rounds you see σ, the noise on each coordinate of
    a report; what the papers' formula would need; and the error that the real
    algorithm makes on synthetic records of that shape.  One pair is recommended.
    For it the privacy figures follow: against everybody, against a server behind
    an honest mix, against outsiders who see only models, each with its δ and
    whom it trusts, or with the reason why nothing is claimed.
    """
    from rich.console import Console
    from silomix_core.algorithms.catalogue import AUTO
    from silomix_lab.planning.planner import PlanOptions, plan_request, run_plan

    request = plan_request(
        algorithm=algorithm,
        records=records,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        clip=clip,
        radius=radius,
        seeds=seeds,
        silos=silos,
        weights=weights,
        dimension=dimension,
        minibatch=minibatch,
        minimum_batch=minimum_batch,
        named_rule=aggregation,
        simulation=not no_simulation,
    )
    options = PlanOptions(
        request=request,
        finds_clip=clip is None and algorithm != AUTO,
        json=json,
        png=png,
        picture=not no_picture,
    )
    run_plan(options, Console())
