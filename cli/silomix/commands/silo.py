"""`silomix silo …`: what a hospital's operator types."""

from contextlib import closing
from hashlib import sha256
from json import dumps as dump_json
from pathlib import Path
from string import hexdigits
from typing import TYPE_CHECKING, Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show

from silomix.commands.audit_log import audit_log as audit_log_commands
from silomix.commands.options import Config, StudyFile
from silomix.text.literal_help import Commands

if TYPE_CHECKING:
    from silomix_client.approval.review import Offer
    from silomix_client.ledger.entries import Approval
    from silomix_client.ledger.ledger import Ledger

silo = Commands(help="A hospital: review and approve studies, answer them, see the ledger.")
silo.add_typer(audit_log_commands, name="audit-log", no_args_is_help=True)

_HASH_DIGITS = 64
LEAST_HEAD = 16  # what the silo's log shows of a head
_LEAST_STUDY = 8

Population = Annotated[
    str, typer.Option(help="Which population of your policy it is about (else the main one).")
]

StudyPrefix = Annotated[
    str, typer.Argument(help="Identity of the study: its first 8 hex digits or more.")
]


@silo.command("review")
def silo_review(
    config: Config,
    study_file: StudyFile,
    population: Population = "",
) -> None:
    """A study as a letter: what it asks of your people, what it costs, who takes part.

    CONFIG is this silo's silo.toml, STUDY_FILE the study that its lead sent.  Writes nothing; exit
    status 1 if the study cannot be approved.
    """
    from silomix_client.approval.review import look
    from silomix_client.config.silo_config import load

    from silomix.text.letter import letter

    with failures():
        settings = load(config)
        offer = look(settings, _read(study_file), population)
        show(letter(offer, settings))
        if offer.reviewed is None:
            raise Failure(_reasons(offer))
        command = f"silomix silo approve {config} {study_file}"
        if population:
            command += f" --population {population}"
        show(f"\nTo approve it:\n  {command} \\\n    --hash {offer.study.identity.hex()}")


@silo.command("approve")
def silo_approve(
    config: Config,
    study_file: StudyFile,
    population: Population = "",
    hash_: Annotated[
        str | None,
        typer.Option(
            "--hash",
            help="The study's hash, 64 hex digits as `silo review` shows it: approve this study "
            "and no other, without asking again.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """Look at a study, check it against your policy, data and keys, and approve it by its hash.

    CONFIG is this silo's silo.toml, STUDY_FILE the study that its lead sent.
    """
    from datetime import UTC, datetime

    from silomix_client.approval.approve import approve, note_refusal
    from silomix_client.approval.review import look
    from silomix_client.audit_log.log import audit_log
    from silomix_client.config.silo_config import load

    from silomix.text.letter import letter

    with failures():
        settings, content = load(config), _read(study_file)
        if hash_ is not None:
            _check_hash(hash_, content, study_file)
        offer = look(settings, content, population)
        show(letter(offer, settings))
        if offer.reviewed is None:
            if offer.objections:
                with audit_log(settings) as log:
                    note_refusal(log, offer.study, "; ".join(offer.objections))
            raise Failure(_reasons(offer))
        if not yes and hash_ is None and not typer.confirm("\nApprove this study?"):
            raise Failure("not approved; nothing was written")
        approve(settings, offer.reviewed, datetime.now(UTC))
        show(f"\napproved         {offer.study.identity.hex()}")


@silo.command("run")
def silo_run(config: Config) -> None:
    """Answer the approved studies until stopped (Ctrl-C or SIGTERM).

    CONFIG is this silo's silo.toml.
    """
    with failures():
        from silomix_client.config.silo_config import load
        from silomix_client.process import run as run_silo

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
    rolled back or replaced is found.  Exit status 1 also if a mix, the server or the authority
    showed the silo that it is not the last one.
    """
    from silomix_client.config.silo_config import load
    from silomix_client.ledger.ledger import Ledger
    from silomix_client.ledger.verify_ledger import check_snapshots, verify
    from silomix_client.ledger.witnessed_height import check_evidence
    from silomix_protocol.host.durable import one_moment

    from silomix.text.study_and_ledger import counted, describe_ledger, ledger_figures

    with failures():
        if head is not None and not is_hex(head, LEAST_HEAD):
            raise Failure(
                f"--head {head!r}: give at least the first {LEAST_HEAD} hex digits of a head, as "
                "this command and the silo's log show it"
            )
        if json is not None:
            _check_writable("--json", json)
        settings = load(config)
        with closing(Ledger(settings.state, settings.policy)) as ledger:
            with one_moment(ledger.database):  # a silo may be answering
                verified = verify(ledger, head)
                described = describe_ledger(ledger, settings)
                figures = None if json is None else ledger_figures(ledger, settings)
            check_snapshots(ledger)
        show(described)
        if head is not None:
            found = f"entry {verified.earlier} of {verified.entries}"
            show(f"head {head.lower()[:LEAST_HEAD]}… found: {found}")
        entries = counted(verified.entries, "entry", "entries")
        show(f"verified {entries}, head {verified.head.hex() or '-'}")
        if json is not None and figures is not None:
            chain = {"entries": verified.entries, "head": verified.head.hex()}
            _write_json(json, figures | {"chain": chain})
        with closing(Ledger(settings.state, settings.policy)) as ledger:
            check_evidence(settings, ledger)  # the ledger may be whole and yet an earlier one


@silo.command("revoke")
def silo_revoke(
    config: Config,
    study_id: StudyPrefix,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """Take an approval back: from the next round on the study is answered no more.

    CONFIG is this silo's silo.toml, STUDY_ID as `silomix silo ledger` shows it.  What it had
    reserved but not spent is free again, its frozen data is deleted.  A revoked study cannot be
    approved again.
    """
    from datetime import UTC, datetime

    from silomix_client.approval.approve import revoke
    from silomix_client.config.silo_config import load
    from silomix_client.ledger.ledger import Ledger

    from silomix.text.study_and_ledger import describe_revoking

    with failures():
        settings = load(config)
        with closing(Ledger(settings.state, settings.policy)) as ledger:
            found = _named(ledger, study_id)
            study = found.study
            show(describe_revoking(ledger, found))
        if not yes and not typer.confirm("Revoke this study?"):
            raise Failure("not revoked; nothing was written")
        revoke(settings, study, datetime.now(UTC))
        show(f"revoked          {study.identity.hex()}")


@silo.command("resume")
def silo_resume(config: Config, study_id: StudyPrefix) -> None:
    """Answer a study again that this silo stopped answering because its reports went missing.

    Ask first who lost them (`silomix silo complaints`).  CONFIG is this silo's silo.toml,
    STUDY_ID as `silomix silo ledger` shows it.  A running silo takes part again from the next
    lease on.
    """
    from silomix_client.approval.approve import resume
    from silomix_client.config.silo_config import load
    from silomix_client.ledger.ledger import Ledger

    with failures():
        settings = load(config)
        with closing(Ledger(settings.state, settings.policy)) as ledger:
            study = _named(ledger, study_id).study
        counted = resume(settings, study)
        show(f"resumed          {study.identity.hex()}" if counted else "nothing had gone missing")


@silo.command("complaints")
def silo_complaints(config: Config) -> None:
    """The reports of this silo that went missing, and who has to explain each.

    CONFIG is this silo's silo.toml.  Every line ends with a file that anybody with the study file
    can check (`silomix study complaint`); show it only to whom you want to convince, since it
    tells which report was yours.
    """
    from silomix_client.config.silo_config import load
    from silomix_client.ledger.ledger import Ledger
    from silomix_client.rounds.complaint_files import FOLDER, saved

    from silomix.text.study_and_ledger import describe_saved

    with failures():
        settings = load(config)
        complaints = saved(settings.state / FOLDER)
        ledger = Ledger(settings.state, settings.policy)
        studies = {each.study.identity: each.study for each in ledger.approvals()}
        ledger.close()
        for each in complaints:
            show(describe_saved(each, studies.get(each.study)))
        if not complaints:
            show("no report of this silo went missing")


def _check_hash(given: str, content: bytes, path: Path) -> None:
    """Refuse a file whose hash is not the one given: all of the hash, not its beginning."""
    if len(given) != _HASH_DIGITS or not set(given) <= set(hexdigits):
        raise Failure(
            f"--hash {given!r}: give all {_HASH_DIGITS} hex digits, as `silomix silo review` "
            "shows them"
        )
    found = sha256(content).hexdigest()
    if found != given.lower():
        raise Failure(f"{path} has the hash {found}: it is not the study that you reviewed")


def _reasons(offer: "Offer") -> str:
    return "; ".join([*offer.objections, *([offer.data_problem] if offer.data_problem else [])])


def is_hex(text: str, least: int) -> bool:
    """Whether a text is the beginning of a SHA-256 in hex, long enough to mean one thing only."""
    return least <= len(text) <= _HASH_DIGITS and set(text) <= set(hexdigits)


def _check_writable(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, before the work is done, not after it."""
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


def _named(ledger: "Ledger", study_id: str) -> "Approval":
    """The approval of the one open study whose identity begins with `study_id`."""
    if not is_hex(study_id, _LEAST_STUDY):
        raise Failure(
            f"{study_id!r}: give at least the first {_LEAST_STUDY} hex digits of the study's "
            "identity, as `silomix silo ledger` shows it"
        )
    found = [
        each
        for each in ledger.approvals()
        if each.study.identity.hex().startswith(study_id.lower())
    ]
    if len(found) != 1:
        raise Failure(f"{len(found)} approved studies begin with {study_id!r}")
    if found[0].closed:
        raise Failure("this study is already revoked")
    return found[0]
