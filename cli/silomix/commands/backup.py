"""`silomix silo backup`, `restore` and `backup-key`: ledger and keys, sealed, and back again."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show, shown

from silomix.commands.options import Config
from silomix.commands.silo import LEAST_HEAD, is_hex

if TYPE_CHECKING:
    from silomix_client.backup.backup import Note

Sealed = Annotated[Path, typer.Argument(help="The backup.")]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="A file that holds the passphrase and only you can read (else it is asked)."),
]


_NO_HEAD = "-"  # the head of a ledger without an entry


def register(silo: typer.Typer) -> None:
    silo.command("backup")(silo_backup)
    silo.command("restore")(silo_restore)
    silo.command("backup-key")(silo_backup_key)


def silo_backup(
    config: Config,
    file: Annotated[Path, typer.Argument(help="A new file.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Seal it to this public key (of backup-key) instead of a passphrase."),
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Save ledger, keys and configuration in one encrypted file, also while the silo runs.

    CONFIG is this silo's silo.toml.  The file holds no records.  Make one after every approval: a
    backup does not know the studies that were approved after it.
    """
    from datetime import UTC, datetime

    from silomix_client.backup import encrypted_file
    from silomix_client.backup.backup import collect, left_out, record_backup
    from silomix_client.config.silo_config import load
    from silomix_protocol.keys import write_secret

    from silomix.text.study_and_ledger import counted

    with failures():
        if to is not None and passphrase_file is not None:
            raise Failure("give --to or --passphrase-file, not both")
        public = None if to is None else encrypted_file.load_public_key(to)
        settings = load(config)
        note, content = collect(settings, config.name, datetime.now(UTC))
        if public is not None:
            sealed = encrypted_file.seal_to_key(content, public)
        else:
            passphrase = _passphrase(passphrase_file, confirm=True)
            sealed = encrypted_file.seal_with_passphrase(content, passphrase)
        write_secret(file, sealed)
        record_backup(settings, note, file)
        entries = counted(note.entries, "ledger entry", "ledger entries")
        show(f"saved            {note.silo}, {entries}, {len(sealed)} bytes")
        show(f"head             {note.head or _NO_HEAD}")
        for name in left_out(settings, config.name):
            show(f"left out         {name}: not in the silo's folder; save it yourself")


def silo_restore(
    file: Sealed,
    folder: Annotated[Path, typer.Argument(help="A new folder for the silo.")],
    study: Annotated[
        list[str] | None,
        typer.Option(
            help="A study that was approved after the backup was made: its file; if your policy "
            "has [[populations]], POPULATION:FILE, or :FILE for the main one (may be given several "
            "times)."
        ),
    ] = None,
    no_other_study: Annotated[
        bool,
        typer.Option(
            "--no-other-study",
            help="You know that no other study was approved after the backup was made; otherwise "
            "all of the policy's budget counts as spent.  You are asked whether it is the backup "
            "that you mean, unless you give --head.",
        ),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            help="The head that `silo backup` printed, 16 hex digits of it or more (- if it "
            "printed that): another backup is refused.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="The policy as it last was, if it changed after the backup was made."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The private key, if it was sealed to a public one.")
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put a silo back from a backup, with nothing forgotten that counts.

    Nobody knows what the lost silo answered after the backup: every study that was open then is
    closed and counts as spent in full.  Data is not in a backup; silo.toml says where it has to be.
    Make sure that the old silo never runs again, and that this is the backup you think it is: an
    older one, under whatever name, knows less.
    """
    from datetime import UTC, datetime

    from silomix_client.backup.backup import Since, describe, restore

    from silomix.text.study_and_ledger import counted

    with failures():
        if head is not None and head != _NO_HEAD and not is_hex(head, LEAST_HEAD):
            raise Failure(
                f"--head {head!r}: give at least the first {LEAST_HEAD} hex digits of the head, as "
                "`silomix silo backup` printed it"
            )
        content = _opened(file, key, passphrase_file)
        described = describe(content)
        note = described.note
        entries = counted(note.entries, "ledger entry", "ledger entries")
        show(f"backup           {note.silo} as of {note.at}, {entries}")
        show(f"head             {note.head or _NO_HEAD}")
        show(f"sign.key         {described.sign_key}")
        _check_head(note, head, ask=no_other_study)
        since = Since(
            studies=[_named_study(each) for each in study or ()],
            complete=no_other_study,
            policy=None if policy is None else policy.read_bytes(),
        )
        restored = restore(content, folder, since, datetime.now(UTC))
        show(f"restored         {note.silo} as of {note.at}, {entries}")
        for each in restored.given_up:
            show(f"closed           {each.short_id} {each.name}: counts as spent in full")
        if not no_other_study:
            show("budget           counts as spent: studies may have been approved since then;")
            show("                 if you know which, restore again into another folder with")
            show("                 --study FILE for each of them, and --no-other-study")
        show(f"look at it       silomix silo ledger {restored.config}")


def silo_backup_key(
    file: Annotated[Path, typer.Argument(help="A new file for the private key.")],
) -> None:
    """Make a key for backups; keep FILE away from the silo's machine, and FILE.pub on it."""
    from silomix_client.backup.encrypted_file import make_key
    from silomix_protocol.host.durable import write_durably

    with failures():
        public = file.with_name(file.name + ".pub")
        if public.exists():
            raise Failure(f"{public}: exists")
        write_durably(public, make_key(file).encode("ascii") + b"\n", mode=0o644)
        show(f"private key      {file}: opens backups; keep it elsewhere, and do not lose it")
        show(f"public key       {public}: for `silomix silo backup --to`")


def _opened(file: Path, key: Path | None, passphrase_file: Path | None) -> bytes:
    from silomix_client.backup import encrypted_file

    sealed = file.read_bytes()
    if not encrypted_file.needs_key(sealed):
        passphrase = _passphrase(passphrase_file, confirm=False)
        return encrypted_file.open_with_passphrase(sealed, passphrase)
    if key is None:
        raise Failure(f"{file} was sealed to a public key; give its private one as --key")
    return encrypted_file.open_with_key(sealed, encrypted_file.load_key(key))


def _check_head(note: "Note", head: str | None, *, ask: bool) -> None:
    """Refuse a backup that the operator does not mean, by the head that was noted or a question."""
    found = note.head or _NO_HEAD
    if head is not None:
        if not found.startswith(head.lower()):
            raise Failure(f"the backup has another head than {head}; nothing was written")
        return
    if not ask:
        return
    if not sys.stdin.isatty():
        raise Failure("--no-other-study: without a terminal, give --head too; nothing was written")
    question = f"No other study was approved after {note.at}, head {found[:LEAST_HEAD]}?"
    if not typer.confirm(shown(question)):
        raise Failure("not restored; nothing was written")


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    from silomix_protocol.keys import read_secret

    if file is not None:
        return read_secret(file).decode("utf-8").rstrip("\n")
    asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
    return asked


def _named_study(text: str) -> tuple[bytes, str | None]:
    """A study file, and the population that it was approved for, if that is said."""
    if Path(text).exists() or ":" not in text:
        return Path(text).read_bytes(), None
    if text.startswith(":"):
        return Path(text[1:]).read_bytes(), ""
    population, _, name = text.rpartition(":")
    return Path(name).read_bytes(), population
