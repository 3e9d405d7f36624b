"""`silomix`: every command, each a few lines over the package that does the work.

Imports wait until a command runs: a silo never loads the server, and `--help` is quick.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from silomix_server.children import end_with_parent

app = typer.Typer(
    help="One model from everybody's records, trusting nobody with them.\n\n"
    "Start with: silomix demo.  By hand: consortium init, study show, silo approve, mix run, "
    "silo run, server run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks with local variables would show secrets
    add_completion=False,
)
silo = typer.Typer(help="A hospital: approve studies, answer them, see the ledger.")
mix = typer.Typer(help="A mix: permutes encrypted reports, sees neither sender nor content.")
server = typer.Typer(help="The server: runs a study on Flower.")
study = typer.Typer(help="Study files.")
consortium = typer.Typer(help="Set up a sample consortium.")
for name, group in (
    ("silo", silo),
    ("mix", mix),
    ("server", server),
    ("study", study),
    ("consortium", consortium),
):
    app.add_typer(group, name=name, no_args_is_help=True)

Config = Annotated[Path, typer.Argument(help="This party's TOML file.")]
StudyFile = Annotated[Path, typer.Argument(help="The study file.")]


class Failure(Exception):
    """A problem that the user can act on: printed without a traceback."""


def run() -> None:
    """The console script: errors a user can act on become one line and exit status 1."""
    end_with_parent()
    try:
        app()
    except Failure as failure:
        print(f"silomix: {failure}", file=sys.stderr)
        sys.exit(1)


@app.command()
def demo(
    silos: Annotated[int, typer.Option(min=2, max=200, help="Hospitals.")] = 5,
    mixes: Annotated[int, typer.Option(min=1, max=20, help="Mixes in the chain.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the algorithm.")] = 40,
    epsilon: Annotated[float, typer.Option(help="ε of every silo's whole transcript.")] = 2.0,
    delta: Annotated[float, typer.Option(help="δ that goes with it.")] = 1e-6,
    algorithm: Annotated[str, typer.Option(help="Algorithm of the study.")] = "noisy-mb-sgd",
    data: Annotated[
        str, typer.Option(help="cohorts, breast-cancer or a CSV file with a header.")
    ] = "cohorts",
    label: Annotated[str | None, typer.Option(help="Label column of a CSV file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data split, never of noise.")] = 1,
    minimum_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest reports that a batch may have (else 80 % of the silos)."),
    ] = None,
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
    from silomix.demo.run import DemoOptions, run_demo

    with failures():
        options = DemoOptions(
            silos=silos,
            mixes=mixes,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            data=data,
            label=label,
            seed=seed,
            minimum_batch=minimum_batch,
            lease_rounds=lease_rounds,
            out=out,
            json=json,
            plain=plain,
        )
        sys.exit(run_demo(options))


@silo.command("approve")
def silo_approve(
    config: Config,
    study_file: StudyFile,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """Look at a study, check it against your data and keys, and approve it by its hash.

    CONFIG is this silo's silo.toml, STUDY_FILE the study that its lead sent.
    """
    from datetime import UTC, datetime

    from silomix_client.approve import approve, review
    from silomix_client.config import load

    from silomix.describe import describe_study

    with failures():
        settings = load(config)
        reviewed = review(settings, _read(study_file))
        print(describe_study(reviewed.study))
        print(f"your records     {len(reviewed.records)}, frozen at approval")
        print(
            f"your loss        epsilon {reviewed.epsilon:.4f} over the whole study; "
            f"your policy allows {settings.policy.lifetime.epsilon:g} in all"
        )
        if not yes and not typer.confirm("Approve this study?"):
            raise Failure("not approved; nothing was written")
        approve(settings, reviewed, datetime.now(UTC))
        print(f"approved         {reviewed.study.identity.hex()}")


@silo.command("run")
def silo_run(config: Config) -> None:
    """Answer the approved studies until stopped (Ctrl-C or SIGTERM).

    CONFIG is this silo's silo.toml.
    """
    with failures():
        from silomix_client.config import load
        from silomix_client.run import run as run_silo

        run_silo(load(config))


@silo.command("ledger")
def silo_ledger(config: Config) -> None:
    """What was approved and what privacy was spent on it.  CONFIG is this silo's silo.toml."""
    from silomix_client.config import load
    from silomix_client.ledger import Ledger

    with failures():
        settings = load(config)
        lifetime = settings.policy.lifetime
        ledger = Ledger(settings.state, lifetime)
        for approval in ledger.approvals():
            spent = ledger.spending(approval.study.identity)
            target = approval.study.target
            print(
                f"study {approval.study.short_id} {approval.study.name}: "
                f"{spent.rounds} of {approval.study.rounds} rounds, "
                f"epsilon {spent.epsilon(target.delta):.4f} of {target.epsilon:g} "
                f"at delta {target.delta:g}"
            )
        total = ledger.spending()
        print(
            f"all studies: epsilon {total.epsilon(lifetime.delta):.4f} of {lifetime.epsilon:g} "
            f"at delta {lifetime.delta:g}\n"
            "(record-level, one record replaced; against the server, the mixes and all other silos)"
        )
        ledger.close()


@mix.command("run")
def mix_run(config: Config) -> None:
    """Serve as a mix until stopped (Ctrl-C or SIGTERM).  CONFIG is this mix's mix.toml."""
    with failures():
        from silomix_shuffler.config import load
        from silomix_shuffler.run import run as run_mix

        run_mix(load(config))


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


@study.command("show")
def study_show(study_file: StudyFile) -> None:
    """What a study asks, of whom, at which privacy; and its hash."""
    from silomix_protocol.files import named, read_study

    from silomix.describe import describe_study

    with failures():
        with named(study_file, Failure):
            study = read_study(study_file)
        print(describe_study(study))


@consortium.command("init")
def consortium_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    silos: Annotated[int, typer.Option(min=2, max=200, help="Hospitals.")] = 3,
    mixes: Annotated[int, typer.Option(min=1, max=20, help="Mixes in the chain.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the study.")] = 40,
    epsilon: Annotated[float, typer.Option(help="ε of every silo's transcript.")] = 2.0,
    delta: Annotated[float, typer.Option(help="δ that goes with it.")] = 1e-6,
) -> None:
    """Make folders for a server, mixes and silos, with keys, configurations and sample data."""
    from silomix.demo.run import DemoOptions, prepare

    with failures():
        options = DemoOptions(
            silos=silos, mixes=mixes, rounds=rounds, epsilon=epsilon, delta=delta, out=folder
        )
        made, _ = prepare(options)
        print(f"made {folder}; first each silo's operator looks and approves:\n")
        for path in made.silos:
            print(f"  silomix silo approve {path} {folder / 'study.toml'}")
        print("\nthen, each in a terminal of its own:\n")
        for path in made.mixes:
            print(f"  silomix mix run {path}")
        for path in made.silos:
            print(f"  silomix silo run {path}")
        print(f"  silomix server run {made.server}")


@contextmanager
def failures() -> Iterator[None]:
    """Our own errors and the machine's become a `Failure`; a bug keeps its traceback."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("silomix") and not isinstance(error, Failure):
            raise Failure(str(error)) from error
        raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
