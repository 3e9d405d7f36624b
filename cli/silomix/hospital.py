"""`silomix silo …`: what a hospital's operator types."""

from json import dumps as dump_json
from pathlib import Path
from typing import Annotated

import typer

from silomix.failures import Failure, failures

silo = typer.Typer(help="A hospital: approve studies, answer them, see the ledger.")

Config = Annotated[Path, typer.Argument(help="This party's TOML file.")]
StudyFile = Annotated[Path, typer.Argument(help="The study file.")]


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


def _write_json(path: Path, content: object) -> None:
    path.write_text(dump_json(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
