"""`silomix`: every command, each a few lines over the package that does the work.

Imports wait until a command runs: a silo never loads the server, and `--help` is quick.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from silomix_protocol.logs import printable
from silomix_server.children import end_with_parent

from silomix import backup
from silomix.data_commands import silo_check
from silomix.doctor_command import doctor, status
from silomix.enrolment import assemble, authority, join, renew
from silomix.failures import Failure, failures
from silomix.health import authority_health, server_health
from silomix.hospital import Config, StudyFile, silo
from silomix.mixing import mix
from silomix.research import (
    Averaging,
    Classes,
    Hidden,
    LabelBounds,
    Level,
    Loss,
    Momentum,
    Ratio,
    Sampling,
    Threshold,
    algorithms,
    audit,
    plan_study,
    reproduce,
    simulate,
)

app = typer.Typer(
    help="One model from everybody's records, trusting nobody with them.\n\n"
    "Start with: silomix demo.  By hand: consortium init, study show, silo approve, mix run, "
    "silo run, server run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks with local variables would show secrets
    add_completion=False,
)
server = typer.Typer(help="The server: runs a study on Flower.")
study = typer.Typer(help="Study files.")
consortium = typer.Typer(help="Set up a sample consortium.")
for name, group in (
    ("silo", silo),
    ("mix", mix),
    ("server", server),
    ("study", study),
    ("authority", authority),
    ("consortium", consortium),
):
    app.add_typer(group, name=name, no_args_is_help=True)
backup.register(silo)


def run() -> None:
    """The console script: errors a user can act on become one line and exit status 1."""
    end_with_parent()
    try:
        app()
    except Failure as failure:
        lines = str(failure).split("\n")
        print("silomix: " + "\n".join(printable(line) for line in lines), file=sys.stderr)
        sys.exit(1)


Gate = Annotated[
    bool, typer.Option(help="Open a batch only after its minimum of silos confirmed it.")
]
Tokens = Annotated[
    bool, typer.Option(help="Count only reports with a token, one for each silo and round.")
]


@app.command()
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
        int | None, typer.Option(min=2, help="Silos that a round asks, drawn anew (else all).")
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Of a silo in a round, where it takes them (else 5)."),
    ] = None,
    momentum: Momentum = None,
    averaging: Averaging = None,
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
    from silomix.batches import minibatch
    from silomix.demo.goal import Goal, bounds
    from silomix.demo.run import DemoOptions, run_demo
    from silomix.descent import descent_of

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


silo.command("check")(silo_check)
silo.command("doctor")(doctor)
silo.command("status")(status)
app.command("algorithms")(algorithms)
app.command("plan")(plan_study)
app.command("simulate")(simulate)
app.command("reproduce")(reproduce)
app.command("audit")(audit)
app.command("join")(join)
app.command("renew")(renew)
study.command("assemble")(assemble)


@server.command("run")
def server_run(config: Config) -> None:
    """Run the configured study: SuperLink, coordinator, leases, until the model is there.

    CONFIG is its server.toml.  Run it again after an interruption and it goes on with the next
    round.
    """
    with failures():
        from silomix_server.config import load
        from silomix_server.run import run as run_server

        run_server(load(config))


server.command("health")(server_health)
authority.command("health")(authority_health)


@study.command("show")
def study_show(study_file: StudyFile) -> None:
    """What a study asks, of whom, at which privacy; and its hash."""
    from silomix_protocol.files import named, read_study

    from silomix.describe import describe_study

    with failures():
        with named(study_file, Failure):
            study = read_study(study_file)
        print(describe_study(study))


@study.command("complaint")
def study_complaint(
    study_file: StudyFile,
    file: Annotated[Path, typer.Argument(help="The complaint: a file of state/complaints/.")],
) -> None:
    """Check a silo's complaint that its report went missing, and say who has to explain it.

    Anybody with the study file can check it.  What the server was sent shows that the first mix
    had the report and that the silo misses it; it does not say where it went missing.  The copy of
    the silo's operator does; who is shown it can tell which report was the silo's.
    """
    from silomix_protocol.files import named, read_study

    from silomix.complaint import describe_complaint, read_complaint

    with failures():
        with named(study_file, Failure):
            study = read_study(study_file)
        print(describe_complaint(read_complaint(file, study)))


@consortium.command("init")
def consortium_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    silos: Annotated[int, typer.Option(min=2, max=200, help="Hospitals.")] = 3,
    mixes: Annotated[int, typer.Option(min=1, max=20, help="Mixes in the chain.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the study.")] = 40,
    epsilon: Annotated[float, typer.Option(help="ε of every silo's transcript.")] = 2.0,
    delta: Annotated[float, typer.Option(help="δ that goes with it.")] = 1e-6,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the server and each mix will run, for real machines: NAME=HOST, such as "
            "server=server.example.org and mix-1=192.0.2.7 (else all on this machine)."
        ),
    ] = None,
    gate: Gate = True,
    tokens: Tokens = True,
) -> None:
    """Make folders for a server, mixes and silos, with keys, configurations and sample data.

    Each folder has all that its machine needs, and a README.txt with the commands to type there.
    """
    from silomix.demo.run import DemoOptions, prepare
    from silomix.machines import addresses_of, furnish

    with failures():
        options = DemoOptions(
            silos=silos,
            mixes=mixes,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            gate=gate,
            tokens=tokens,
            out=folder,
        )
        made, _ = prepare(options, addresses_of(host or [], mixes))
        furnish(made, alone=bool(host))
        print(f"made {folder}; first each silo's operator looks and approves:\n")
        for path in made.silos:
            print(f"  silomix silo approve {path} {path.parent / 'study.toml'}")
        print("\nthen, each in a terminal of its own:\n")
        for path in made.mixes:
            print(f"  silomix mix run {path}")
        for path in made.silos:
            print(f"  silomix silo run {path}")
        print(f"  silomix server run {made.server}")
        print("\nand, to renew certificates, invite and revoke:\n")
        print(f"  silomix authority run {made.authority}")
        if host:
            print("\nor each folder on its machine: copy it there and do what its README.txt says")
