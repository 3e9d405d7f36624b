"""`silomix silo backup` and `restore` as an operator types them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from silomix_client.audit_log.verify_log import lines
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import SigningKey, fingerprint, write_secret
from support.backups import PASSPHRASE
from support.operator_commands import silomix
from support.silos import approved_silo


@pytest.mark.slow
def test_backup_and_restore_as_an_operator_types_them(
    consortium: Consortium, tmp_path: Path
) -> None:
    approved_silo(consortium)
    config, file, new = consortium.silos[0], tmp_path / "b", tmp_path / "new"
    write_secret(tmp_path / "p", PASSPHRASE.encode() + b"\n")
    by_passphrase = ("--passphrase-file", str(tmp_path / "p"))
    done = silomix("silo", "backup", str(config), str(file), *by_passphrase, cwd=tmp_path)
    assert done.stdout.startswith("saved            silo-1, 1 ledger entry, "), done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    again = silomix("silo", "backup", str(config), str(file), *by_passphrase, cwd=tmp_path)
    assert "File exists" in again.stderr
    done = silomix("silo", "restore", str(file), str(new), *by_passphrase, cwd=tmp_path)
    assert "test: counts as spent in full" in done.stdout, done.stderr
    assert "budget           counts as spent" in done.stdout
    assert {path.stat().st_mode & 0o077 for path in new.rglob("*")} == {0}
    shown = silomix("silo", "ledger", str(new / "silo.toml"), cwd=tmp_path)
    assert "5 of 5 rounds" in shown.stdout, shown.stderr
    assert "counted in full when the ledger was put back" in shown.stdout
    assert "so all of the budget counts as spent and nothing is approved any more" in shown.stdout
    made = [line for line in lines(config.parent / "state") if line.event == "backup_made"]
    assert [line.fields["file"] for line in made] == [str(file)]
    figures = silomix("silo", "ledger", str(new / "silo.toml"), "--json", "j", cwd=tmp_path)
    assert figures.returncode == 0, figures.stderr
    (put_back,) = json.loads((tmp_path / "j").read_text())["put_back"]
    assert put_back["complete"] is False
    checked = silomix("silo", "audit-log", "verify", str(new / "silo.toml"), cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr


def test_backups_to_a_key_need_nothing_secret_on_the_silos_machine(
    consortium: Consortium, tmp_path: Path
) -> None:
    approved_silo(consortium)
    silomix("silo", "backup-key", "office.key", cwd=tmp_path)
    private = (tmp_path / "office.key").rename(tmp_path / "elsewhere.key")
    config, new = str(consortium.silos[0]), tmp_path / "new"
    done = silomix("silo", "backup", config, "b", "--to", "office.key.pub", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    without = silomix("silo", "restore", "b", str(new), "--no-other-study", cwd=tmp_path)
    assert "give its private one as --key" in without.stderr
    options = ("--no-other-study", "--head", head_in(done.stdout), "--key", str(private))
    done = silomix("silo", "restore", "b", str(new), *options, cwd=tmp_path)
    assert "counts as spent in full" in done.stdout, done.stderr
    assert "budget  " not in done.stdout


def head_in(printed: str) -> str:
    (head,) = re.findall(r"(?m)^head +(\S+)$", printed)
    return str(head)


def answered(arguments: list[str], answer: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The command line at a terminal where this is typed."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer.encode() + b"\n")
        return subprocess.run(
            [sys.executable, "-m", "silomix", *arguments],
            cwd=cwd,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_an_older_backup_under_a_newer_name_is_seen_before_anything_is_written(
    consortium: Consortium, tmp_path: Path
) -> None:
    config, new = consortium.silos[0], tmp_path / "new"
    write_secret(tmp_path / "p", PASSPHRASE.encode())
    by_passphrase = ("--passphrase-file", "p")
    older = silomix("silo", "backup", str(config), "older", *by_passphrase, cwd=tmp_path)
    approved_silo(consortium)
    newer = silomix("silo", "backup", str(config), "newer", *by_passphrase, cwd=tmp_path)
    assert head_in(older.stdout) == "-", older.stderr
    head = head_in(newer.stdout)
    (tmp_path / "older").replace(tmp_path / "swapped")
    sure = [str(new), *by_passphrase, "--no-other-study"]
    for options, why in (
        (["--head", head], "another head"),
        (["--head", head[:15]], "at least the first 16 hex digits"),
        ([], "without a terminal, give --head"),
    ):
        done = silomix("silo", "restore", "swapped", *sure, *options, cwd=tmp_path)
        assert why in done.stderr
        assert done.returncode == 1
        assert not new.exists()
    done = answered(["silo", "restore", "swapped", *sure], "n", tmp_path)
    assert "silo-1 as of 20" in done.stdout
    assert "0 ledger entries\nhead             -\n" in done.stdout
    sign_key = SigningKey.load(config.parent / "sign.key").public
    assert f"sign.key         {fingerprint(sign_key).hex()}" in done.stdout
    assert "nothing was written" in done.stderr
    assert not new.exists()
    done = answered(["silo", "restore", "newer", *sure], "y", tmp_path)
    assert f"head {head[:16]}? [y/N]" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    again = [str(tmp_path / "again"), *sure[1:], "--head", head[:16].upper()]
    assert silomix("silo", "restore", "newer", *again, cwd=tmp_path).returncode == 0
