"""`silomix`: every command, each a few lines over the package that does the work.

Imports wait until a command runs: a silo never loads the server, and `--help` is quick.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps as dump_json
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


@app.command()
def audit(
    trials: Annotated[
        int, typer.Option(help="Studies that are attacked: half on D, half on D'.")
    ] = 500,
    rounds: Annotated[int, typer.Option(help="Rounds of each study.")] = 4,
    epsilon: Annotated[
        float, typer.Option(help="ε that the silo claims for each study's whole transcript.")
    ] = 6.0,
    delta: Annotated[float, typer.Option(help="δ that goes with it.")] = 1e-5,
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
    two values it has (D or D').  How often that succeeds gives a lower bound on the real μ and ε.
    Also checked: noise is never repeated or correlated, each round is in the ledger before its
    report leaves, and the ledger's events amount to the claimed ε.

    VIOLATED (exit status 3) means that the claim is refuted: a silo that keeps it is called so
    with probability at most 0.1 %.  CONSISTENT (0) means that this attack, the strongest against
    the declared mechanism, did not refute it; that is evidence, no proof.  It cannot see a fault
    that shows only with other data, more rounds or other queries, nor a build that behaves
    differently when audited, nor what leaks through the time that a silo takes.

    The default ε is larger than you would use because few trials see most there; noise is
    calibrated by the same code for every ε.  No real silo's folder, data or ledger is touched.
    """
    with failures():
        try:
            from silomix.audit.run import AuditOptions, run_audit
        except ModuleNotFoundError as missing:
            raise Failure(f"the audit needs {missing.name}; install silomix[demo]") from missing

        options = AuditOptions(
            trials=trials,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            silo_command=silo_command,
            json=json,
            png=png,
        )
        sys.exit(run_audit(options))


@app.command("plan")
def plan_study(
    records: Annotated[int, typer.Option(help="Records of each silo (of the smallest one).")],
    silos: Annotated[int, typer.Option(help="Hospitals.")],
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
    clip: Annotated[float, typer.Option(help="Bound on the norm of a record's gradient.")] = 0.5,
    algorithm: Annotated[str, typer.Option(help="Algorithm of the study.")] = "noisy-mb-sgd",
    sampling: Annotated[
        str, typer.Option(help="Batches: full, poisson or without-replacement.")
    ] = "full",
    ratio: Annotated[
        float | None, typer.Option(help="Share of the records in a batch, unless full.")
    ] = None,
    minimum_batch: Annotated[
        int | None,
        typer.Option(help="Fewest reports that a batch may have (else 80 % of the silos)."),
    ] = None,
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
    from os import environ

    environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported; threads only wait
    from rich.console import Console

    from silomix.plan import PlanOptions, run_plan

    with failures():
        options = PlanOptions(
            records=records,
            silos=silos,
            dimension=dimension,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            clip=clip,
            algorithm=algorithm,
            sampling=sampling,
            ratio=ratio,
            minimum_batch=minimum_batch,
            radius=radius,
            seeds=seeds,
            simulation=not no_simulation,
            json=json,
            png=png,
            picture=not no_picture,
        )
        run_plan(options, Console())


@silo.command("approve")
def silo_approve(
    config: Config,
    study_file: StudyFile,
    population: Annotated[
        str, typer.Option(help="Which population of your policy it is about (else the main one).")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """Look at a study, check it against your data and keys, and approve it by its hash.

    CONFIG is this silo's silo.toml, STUDY_FILE the study that its lead sent.
    """
    from datetime import UTC, datetime

    from silomix_client.approve import approve, review
    from silomix_client.config import load

    from silomix.describe import describe_offer, describe_study

    with failures():
        settings = load(config)
        reviewed = review(settings, _read(study_file), population)
        print(describe_study(reviewed.study))
        print(describe_offer(reviewed, settings))
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
def silo_ledger(
    config: Config,
    head: Annotated[
        str | None,
        typer.Option(help="A head that you noted earlier: check that it is still in the chain."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.")
    ] = None,
) -> None:
    """What was approved, what privacy was spent on it, and whether the ledger is intact.

    CONFIG is this silo's silo.toml.  Every entry is checked against the one before it, every
    charge against the study it was made for.  The last line shows the chain's head (silos log it
    with every round): note it somewhere else and give it as --head later, and a ledger that was
    rolled back or replaced is found.
    """
    from silomix_client.config import load
    from silomix_client.ledger import Ledger
    from silomix_client.ledger_check import check_snapshots, verify

    from silomix.describe import describe_ledger, ledger_figures

    with failures():
        settings = load(config)
        ledger = Ledger(settings.state, settings.policy)
        verified = verify(ledger, head)
        check_snapshots(ledger)
        print(describe_ledger(ledger, settings))
        print(f"verified {verified.entries} entries, head {verified.head.hex() or '-'}")
        if json is not None:
            chain = {"entries": verified.entries, "head": verified.head.hex()}
            _write_json(json, ledger_figures(ledger, settings) | {"chain": chain})
        ledger.close()


@silo.command("close")
def silo_close(
    config: Config,
    study_id: Annotated[str, typer.Argument(help="Identity of the study, or its beginning.")],
) -> None:
    """Answer a study no more, and free what it had reserved but not spent.

    CONFIG is this silo's silo.toml, STUDY_ID as `silomix silo ledger` shows it.
    """
    from datetime import UTC, datetime

    from silomix_client.config import load
    from silomix_client.ledger import Ledger
    from silomix_client.snapshot import forget

    with failures():
        settings = load(config)
        ledger = Ledger(settings.state, settings.policy)
        found = [
            each.study
            for each in ledger.approvals()
            if each.study.identity.hex().startswith(study_id.lower())
        ]
        if len(found) != 1:
            raise Failure(f"{len(found)} approved studies begin with {study_id!r}")
        ledger.close_study(found[0].identity, datetime.now(UTC))
        ledger.close()
        forget(found[0].identity, settings.state / "snapshots")
        print(f"closed           {found[0].identity.hex()}")


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


def _write_json(path: Path, content: object) -> None:
    path.write_text(dump_json(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
