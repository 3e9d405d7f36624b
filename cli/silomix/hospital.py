"""`silomix silo …`: what a hospital's operator types."""

from json import dumps as dump_json
from pathlib import Path
from string import hexdigits
from typing import Annotated

import typer

from silomix.failures import Failure, failures

silo = typer.Typer(help="A hospital: approve studies, answer them, see the ledger.")

_HASH_DIGITS = 64
_LEAST_HEAD = 16  # what the silo's log shows of a head
_LEAST_STUDY = 8

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
        print(describe_study(reviewed.study) + "\n")
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
        typer.Option(
            help="A head that you noted earlier, 16 hex digits of it or more: check that it is "
            "still in the chain."
        ),
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

    from silomix.describe import counted, describe_ledger, ledger_figures

    with failures():
        if head is not None and not _is_hex(head, _LEAST_HEAD):
            raise Failure(
                f"--head {head!r}: give at least the first {_LEAST_HEAD} hex digits of a head, as "
                "this command and the silo's log show it"
            )
        if json is not None:
            _check_writable("--json", json)
        settings = load(config)
        ledger = Ledger(settings.state, settings.policy)
        verified = verify(ledger, head)
        check_snapshots(ledger)
        print(describe_ledger(ledger, settings))
        if head is not None:
            found = f"entry {verified.earlier} of {verified.entries}"
            print(f"head {head.lower()[:_LEAST_HEAD]}… found: {found}")
        entries = counted(verified.entries, "entry", "entries")
        print(f"verified {entries}, head {verified.head.hex() or '-'}")
        if json is not None:
            chain = {"entries": verified.entries, "head": verified.head.hex()}
            _write_json(json, ledger_figures(ledger, settings) | {"chain": chain})
        ledger.close()


@silo.command("close")
def silo_close(
    config: Config,
    study_id: Annotated[
        str, typer.Argument(help="Identity of the study: its first 8 hex digits or more.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """Answer a study no more, and free what it had reserved but not spent.

    CONFIG is this silo's silo.toml, STUDY_ID as `silomix silo ledger` shows it.  A closed study
    cannot be approved again.
    """
    from datetime import UTC, datetime

    from silomix_client.config import load
    from silomix_client.ledger import Ledger
    from silomix_client.snapshot import forget

    from silomix.describe import describe_closing

    with failures():
        if not _is_hex(study_id, _LEAST_STUDY):
            raise Failure(
                f"{study_id!r}: give at least the first {_LEAST_STUDY} hex digits of the study's "
                "identity, as `silomix silo ledger` shows it"
            )
        settings = load(config)
        ledger = Ledger(settings.state, settings.policy)
        found = [
            each
            for each in ledger.approvals()
            if each.study.identity.hex().startswith(study_id.lower())
        ]
        if len(found) != 1:
            raise Failure(f"{len(found)} approved studies begin with {study_id!r}")
        study = found[0].study
        if found[0].closed:
            raise Failure("this study is already closed")
        print(describe_closing(ledger, found[0]))
        if not yes and not typer.confirm("Close this study?"):
            raise Failure("not closed; nothing was written")
        ledger.close_study(study.identity, datetime.now(UTC))
        ledger.close()
        forget(study.identity, settings.state / "snapshots")
        print(f"closed           {study.identity.hex()}")


@silo.command("complaints")
def silo_complaints(config: Config) -> None:
    """The reports of this silo that went missing, and who has to explain each.

    CONFIG is this silo's silo.toml.  Every line ends with a file that anybody with the study file
    can check (`silomix study complaint`); show it only to whom you want to convince, since it
    tells which report was yours.
    """
    from silomix_client.complaints import FOLDER, saved
    from silomix_client.config import load
    from silomix_client.ledger import Ledger

    from silomix.describe import describe_saved

    with failures():
        settings = load(config)
        complaints = saved(settings.state / FOLDER)
        ledger = Ledger(settings.state, settings.policy)
        studies = {each.study.identity: each.study for each in ledger.approvals()}
        ledger.close()
        for each in complaints:
            print(describe_saved(each, studies.get(each.study)))
        if not complaints:
            print("no report of this silo went missing")


def _is_hex(text: str, least: int) -> bool:
    """The beginning of a SHA-256 in hex, long enough to mean one thing only."""
    return least <= len(text) <= _HASH_DIGITS and set(text) <= set(hexdigits)


def _check_writable(option: str, path: Path) -> None:
    """Said before the work is done, not after it."""
    if not path.resolve().parent.is_dir():
        raise Failure(f"{option} {path}: there is no such folder")
    if path.is_dir():
        raise Failure(f"{option} {path}: is a folder")


def _write_json(path: Path, content: object) -> None:
    path.write_text(dump_json(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
