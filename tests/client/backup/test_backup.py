"""Backups: sealed, without records, made while the silo runs; and a restore that forgets nothing.

The privacy claim: whatever happens between a backup and its restore, and after it, the silo never
answers more than its operator's policy allows.
"""

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tarfile
import tomllib
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
import tomli_w
from silomix.commands.backup import _named_study
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.audit_log.verify_log import lines
from silomix_client.backup import backup, encrypted_file
from silomix_client.backup.backup import Since, collect, left_out, restore
from silomix_client.backup.encrypted_file import Unopenable
from silomix_client.config.silo_config import MAIN, SiloConfig, load
from silomix_client.errors import (
    AuditLogBroken,
    BudgetExhausted,
    LedgerBroken,
    NotApproved,
    SiloError,
)
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.ledger_tables import TABLES
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import Verified, verify
from silomix_core.accounting.budget import NOTHING, PrivacyLoss
from silomix_core.accounting.integers import Released
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host.durable import transaction
from silomix_protocol.keys import SigningKey, UnusableKey, fingerprint, write_secret
from support.processes import silomix
from support.silos import NOW, approval_of, approved_silo, asked, copied, study_file

LASTING = ("entries", "studies", "answers", "tallies")
PASSPHRASE = "a long enough passphrase"  # noqa: S105


def charge(ledger: Ledger, made: Consortium, number: int) -> None:
    body = sha256(b"%d" % number).digest()
    report = StoredReport(asked(made, number).descriptor, body, body * 2, (body,) * 3)
    ledger.account(made.study).charge(ledger.approval(made.study.identity), report, NOW)


def saved(config: SiloConfig) -> bytes:
    _, content = collect(config, "silo.toml", NOW)
    return content


def reopened(packed: bytes, folder: Path, since: Since) -> tuple[SiloConfig, Ledger]:
    config = load(restore(packed, folder, since, NOW).config)
    return config, Ledger(config.state, config.policy)


def studies_of(made: Consortium, count: int) -> list[Consortium]:
    """The same study under different names: other identities, the same cost."""
    text = study_file(made).decode()
    texts = [text.replace('name = "test"', f'name = "test {each}"', 1) for each in range(count)]
    return [replace(made, study=parse_study(each.encode())) for each in texts]


def content_of(made: Consortium) -> bytes:
    return (
        study_file(made)
        .decode()
        .replace('name = "test"', f'name = "{made.study.name}"', 1)
        .encode()
    )


# What a restored ledger may still answer ---------------------------------------------------------


class History:
    """One silo through losses and restores, and the truth that no single ledger knows."""

    def __init__(self, made: Consortium, folder: Path, seed: int) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.studies = studies_of(made, 6)
        self.config = load(made.silos[0])
        self.ledger = Ledger(self.config.state, self.config.policy)
        self.approved: list[Consortium] = []
        self.spent = NOTHING
        self.backups = [saved(self.config)]
        self.restores = 0

    def approve(self) -> None:
        study = self.random.choice(self.studies)
        try:
            self.ledger.approve(approval_of(study.study), content_of(study), NOW)
        except (BudgetExhausted, NotApproved):
            return
        self.approved.append(study)

    def answer(self) -> None:
        for study in self.approved:
            identity = study.study.identity
            if self.ledger.knows(identity) and not self.ledger.approval(identity).closed:
                number = self.ledger.account(study.study).last_round() + 1
                if number <= study.study.rounds:
                    charge(self.ledger, study, number)
                    _, event = self.ledger.approval(identity).event(number)
                    self.spent += PrivacyLoss(event.mu**2, Released.of(event.samples, event.noise))

    def back_up(self) -> None:
        self.backups.append(saved(self.config))

    def lose_and_restore(self) -> None:
        self.ledger.close()
        self.restores += 1
        since = Since()
        if self.random.random() < 0.8:
            since = Since(tuple((content_of(each), MAIN) for each in self.approved), complete=True)
        packed = self.random.choice(self.backups)
        folder = self.folder / f"restored-{self.restores}"
        self.config, self.ledger = reopened(packed, folder, since)


@pytest.mark.parametrize("seed", range(8))
def test_no_history_of_losses_and_restores_takes_the_total_beyond_the_policy(
    consortium: Consortium, tmp_path: Path, seed: int
) -> None:
    policy = consortium.silos[0].parent / "policy.toml"
    policy.write_text(
        "epsilon = 3.7\ndelta = 1e-5\nminimum_batch = 1\n"
    )  # about three studies of epsilon 2
    history = History(consortium, tmp_path, seed)
    steps = (history.approve, history.answer, history.answer, history.back_up)
    for _ in range(4):
        for _ in range(8):
            history.random.choice(steps)()
        history.lose_and_restore()
    for _ in range(12):
        history.approve()
        history.answer()
    budget = history.config.policy.budgets[MAIN]
    assert history.spent.value > 0
    assert budget.holds(history.spent), budget.epsilon(history.spent)
    assert budget.holds(history.ledger.total().loss)
    verify(history.ledger)
    history.ledger.close()


def test_a_study_that_was_open_is_closed_and_counts_in_full(
    consortium: Consortium, tmp_path: Path
) -> None:
    config, study = approved_silo(consortium), consortium.study.identity
    ledger = Ledger(config.state, config.policy)
    charge(ledger, consortium, 1)
    reserved = ledger.reserved().loss
    packed = saved(config)
    for number in (2, 3, 4, 5):
        charge(ledger, consortium, number)
    lost = ledger.total().loss
    ledger.close()
    _, again = reopened(packed, tmp_path / "new", Since(complete=True))
    with closing(again):
        assert again.approval(study).closed
        assert again.total().loss == again.reserved().loss == reserved == lost
        assert again.spending(study).rounds == consortium.study.rounds
        with pytest.raises(NotApproved, match="revoked study cannot be approved again"):
            again.approve(approval_of(consortium.study), study_file(consortium), NOW)
        verify(again)


def test_a_closed_study_counts_as_what_was_spent_on_it(
    consortium: Consortium, tmp_path: Path
) -> None:
    config, study = approved_silo(consortium), consortium.study.identity
    ledger = Ledger(config.state, config.policy)
    charge(ledger, consortium, 1)
    ledger.close_study(study, NOW)
    spent = ledger.total().loss
    ledger.close()
    _, again = reopened(saved(config), tmp_path / "new", Since(complete=True))
    with closing(again):
        assert again.total().loss == again.reserved().loss == spent


def test_a_study_of_the_forgotten_time_counts_in_full_when_it_is_named(
    consortium: Consortium, tmp_path: Path
) -> None:
    config = load(consortium.silos[0])
    packed = saved(config)
    since = Since(((study_file(consortium), MAIN),), complete=True)
    _, again = reopened(packed, tmp_path / "new", since)
    with closing(again):
        planned = approval_of(consortium.study).planned(config.policy.budgets[MAIN])
        assert again.total().loss == planned
        (other, *_) = studies_of(consortium, 1)
        with pytest.raises(BudgetExhausted, match="beyond your policy's"):
            again.approve(approval_of(other.study), content_of(other), NOW)


def test_a_later_study_counts_for_the_population_that_is_named(
    consortium: Consortium, tmp_path: Path
) -> None:
    config = load(consortium.silos[0])
    with config.policy_file.open("a") as policy:
        policy.write('[[populations]]\nname = "a:b"\ndata = "x.csv"\nepsilon = 4.0\ndelta = 1e-5\n')
    file = tmp_path / "study.toml"
    file.write_bytes(study_file(consortium))
    packed, new = saved(load(consortium.silos[0])), tmp_path / "new"
    with pytest.raises(NotApproved, match=r"several populations.*POPULATION:FILE"):
        restore(packed, new, Since([_named_study(str(file))], complete=True), NOW)
    with pytest.raises(NotApproved, match="names no population 'b'"):
        restore(packed, new, Since([_named_study(f"b:{file}")], complete=True), NOW)
    assert not new.exists()
    for number, (population, other) in enumerate(((MAIN, "a:b"), ("a:b", MAIN))):
        since = Since([_named_study(f"{population}:{file}")], complete=True)
        _, again = reopened(packed, tmp_path / f"new-{number}", since)
        with closing(again):
            assert again.total(population).loss.value > 0
            assert again.total(other).loss.value == 0


def test_without_the_operators_word_nothing_is_approved_any_more(
    consortium: Consortium, tmp_path: Path
) -> None:
    packed = saved(load(consortium.silos[0]))
    config, again = reopened(packed, tmp_path / "new", Since())
    with closing(again), pytest.raises(BudgetExhausted, match="put back from a backup"):
        again.approve(approval_of(consortium.study), study_file(consortium), NOW)
    # Nor after a backup of it was put back by somebody who was sure.
    _, later = reopened(saved(config), tmp_path / "newer", Since(complete=True))
    with closing(later), pytest.raises(BudgetExhausted, match="put back from a backup"):
        later.approve(approval_of(consortium.study), study_file(consortium), NOW)


def test_what_a_restore_wrote_cannot_be_changed_unnoticed(
    consortium: Consortium, tmp_path: Path
) -> None:
    _, again = reopened(saved(approved_silo(consortium)), tmp_path / "new", Since())
    with closing(again):
        again.database.execute("UPDATE tallies SET count = count - 1")
        with pytest.raises(LedgerBroken, match="sums do not follow"):
            verify(again)
        again.database.execute("UPDATE tallies SET count = count + 1")
        verify(again)
        again.database.execute(
            "UPDATE entries SET line = replace(line, '\"complete\":false', '\"complete\":true')"
        )
        with pytest.raises(LedgerBroken, match="was changed"):
            verify(again)


def test_the_policy_as_it_last_was_replaces_the_backups(
    consortium: Consortium, tmp_path: Path
) -> None:
    packed = saved(approved_silo(consortium))
    since = Since(complete=True, policy=b"epsilon = 7.5\ndelta = 1e-5\n")
    config, again = reopened(packed, tmp_path / "new", since)
    again.close()
    assert config.policy.budgets[MAIN].target.epsilon == 7.5


# The backup itself -------------------------------------------------------------------------------


def test_a_backup_is_of_one_moment_while_the_silo_answers(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = approved_silo(consortium)
    silo = Ledger(config.state, config.policy)
    charge(silo, consortium, 1)

    def verify_while_a_round_is_answered(ledger: Ledger) -> Verified:
        verified = verify(ledger)
        charge(silo, consortium, 2)
        return verified

    monkeypatch.setattr(backup, "verify", verify_while_a_round_is_answered)
    packed = saved(config)
    monkeypatch.undo()
    assert silo.account(consortium.study).last_round() == 2
    silo.close()
    restored = restore(packed, tmp_path / "new", Since(), NOW)  # checks that the head is its own
    assert restored.note.entries == 2  # approval and round 1


def test_a_backup_has_ledger_keys_and_configuration_and_no_records(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    with closing(Ledger(config.state, config.policy)) as ledger:
        charge(ledger, consortium, 1)
    with tarfile.open(fileobj=BytesIO(saved(config)), mode="r:gz") as archive:
        names = set(archive.getnames())
    assert names == {
        "backup.json",
        "ca.crt",
        "enrolment.toml",
        "node.key",
        "policy.toml",
        "sign.key",
        "silo.toml",
        "state/audit.jsonl",
        "state/ledger.sqlite",
        "tls.crt",
        "tls.key",
    }


def rows(database: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608


def test_no_byte_of_a_stored_report_is_in_a_backup(consortium: Consortium, tmp_path: Path) -> None:
    """Nor a token, a control variate or the secret that noise follows from, nor in a page that
    SQLite freed; the budget is the same."""
    config, study = approved_silo(consortium), consortium.study.identity
    parts = {name: sha256(name.encode()).digest() for name in ("payload", "onion", "trail")}
    parts |= {"key": b"k" * 31 + b"1", "token": b"t" * 31 + b"1", "kept": b"c" * 31 + b"1"}
    with closing(Ledger(config.state, config.policy)) as ledger:
        charge(ledger, consortium, 1)  # its report leaves a free page, perhaps
        report = StoredReport(
            asked(consortium, 2).descriptor,
            parts["payload"] * 50,
            parts["onion"] * 100,
            (parts["trail"],) * 3,
        )
        ledger.account(consortium.study).charge(ledger.approval(study), report, NOW)
        with transaction(ledger.database):
            ledger.database.execute(
                "INSERT INTO tokens VALUES (?, 3, ?, ?)", (study, parts["key"], parts["token"])
            )
            ledger.database.execute("INSERT INTO controls VALUES (?, ?)", (study, parts["kept"]))
        whole, reserved = ledger.database.serialize(), ledger.reserved().loss
        assert all(part in whole for part in parts.values())
        files = backup._unpacked(packed := saved(config))
        # the silo's own ledger is untouched
        assert ledger.account(consortium.study).stored(2) == report
        parts["secret"] = ledger.approval(study).partition
        assert parts["secret"] in whole
        lasting = {each: rows(ledger.database, each) for each in LASTING}
        lasting["studies"] = [(*row[:2], b"", *row[3:]) for row in lasting["studies"]]
    earlier = sha256(b"1").digest()
    for content in files.values():
        assert not any(part[:8] in content for part in (*parts.values(), earlier))
    (tmp_path / "copy").write_bytes(files["state/ledger.sqlite"])
    with closing(sqlite3.connect(tmp_path / "copy")) as copy:
        assert {each: rows(copy, each) for each in TABLES if rows(copy, each)} == lasting
    _, again = reopened(packed, tmp_path / "new", Since(complete=True))
    with closing(again):
        assert again.total().loss == again.reserved().loss == reserved
        verify(again)


def test_files_that_the_configuration_names_come_back(
    consortium: Consortium, tmp_path: Path
) -> None:
    """The database's address, the proxy's login and authority; what is elsewhere is named."""
    silo, elsewhere = consortium.silos[0], tmp_path / "elsewhere.url"
    write_secret(elsewhere, b"sqlite:///x")
    contents = {"way/out.login": b"user:word", "database.url": b"sqlite:///y", "inspection": b""}
    contents["inspection"] = (silo.parent / "ca.crt").read_bytes()
    (silo.parent / "way").mkdir()
    for name, content in contents.items():
        write_secret(silo.parent / name, content)
    network = {"proxy": "http://p.example:3128", "proxy_login": "way/out.login", "ca": "inspection"}
    data = {"kind": "sql", "url_file": "./database.url", "query": "SELECT 1"}
    table = {"name": "silo-1", "policy": "policy.toml", "data": data, "network": network}
    silo.write_text(tomli_w.dumps(table))
    other = {"name": "children", "epsilon": 1.0, "delta": 1e-6}
    policy = tomllib.loads((silo.parent / "policy.toml").read_text())
    policy["populations"] = [other | {"data": data | {"url_file": str(elsewhere)}}]
    (silo.parent / "policy.toml").write_text(tomli_w.dumps(policy))
    config = load(silo)
    assert left_out(config, "silo.toml") == [str(elsewhere)]
    restore(saved(config), tmp_path / "new", Since(), NOW)
    for name, content in contents.items():
        assert (tmp_path / "new" / name).read_bytes() == content
    assert not list((tmp_path / "new").rglob("elsewhere.url"))


def test_a_restored_audit_log_fits_its_ledger_and_says_what_was_counted(
    consortium: Consortium, tmp_path: Path
) -> None:
    """Also if the silo was answering: then an entry may have no line yet in the backup."""
    config, study = approved_silo(consortium), consortium.study
    with closing(Ledger(config.state, config.policy)) as ledger:
        charge(ledger, consortium, 1)  # its line is still to come
        packed = saved(config)
    before = list(lines(config.state))
    new, again = reopened(packed, tmp_path / "new", Since())
    with closing(again):
        audit_check.verify(new.state, again)
    after = list(lines(new.state))
    assert after[: len(before)] == before
    unlogged, counted, put_back = after[len(before) :]
    assert unlogged.event == "ledger_entries_unlogged"
    assert (counted.event, counted.fields["study"]) == (
        "study_counted_in_full",
        study.identity.hex(),
    )
    assert counted.fields["epsilon"] == pytest.approx(2.0, abs=1e-4)
    assert put_back.event == "ledger_put_back"
    assert (put_back.fields["studies_closed"], put_back.fields["budget"]) == (1, "counts as spent")
    assert {line.level for line in (unlogged, counted, put_back)} == {"warning"}


def test_a_changed_audit_log_is_not_backed_up(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    path = config.state / "audit.jsonl"
    path.write_text(path.read_text().replace("study_approved", "study_approver"))
    with pytest.raises(AuditLogBroken):
        saved(config)


def test_a_broken_ledger_is_not_backed_up(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    with closing(sqlite3.connect(config.state / "ledger.sqlite")) as database:
        database.execute("UPDATE entries SET line = replace(line, 'silo-1', 'silo-2')")
        database.commit()
    with pytest.raises(LedgerBroken):
        saved(config)


def test_a_backup_with_other_files_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    packed = saved(approved_silo(consortium))
    for name in (
        "../ca.crt",
        "state/../x.crt",
        "/etc/x.crt",
        "run.sh",
        "state/complaints/../x.json",
        "",
        ".",
        "./",
        "state",
    ):
        buffer = BytesIO()
        with (
            tarfile.open(fileobj=BytesIO(packed), mode="r:gz") as archive,
            tarfile.open(fileobj=buffer, mode="w:gz") as changed,
        ):
            for entry in archive:
                changed.addfile(entry, archive.extractfile(entry))
            changed.addfile(tarfile.TarInfo(name), BytesIO())
        with pytest.raises(Unopenable, match="no silo has"):
            restore(buffer.getvalue(), tmp_path / "new", Since(), NOW)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"silo": "silo-\x1b[2K1"}, Unopenable),
        ({"at": "yesterday"}, Unopenable),
        ({"head": "-"}, Unopenable),
        ({"entries": "1"}, Unopenable),
        ({"entries": 2}, LedgerBroken),
        ({"silo": "silo-2"}, LedgerBroken),
        ({"head": "0" * 64}, LedgerBroken),
    ],
)
def test_what_a_backup_says_of_itself_has_to_be_so(
    consortium: Consortium, tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    files = backup._unpacked(saved(approved_silo(consortium)))
    files["backup.json"] = json.dumps(json.loads(files["backup.json"]) | change).encode()
    with pytest.raises(error):
        restore(backup._packed(files), tmp_path / "new", Since(), NOW)
    assert not (tmp_path / "new").exists()


def test_a_restore_that_fails_leaves_nothing_behind(consortium: Consortium, tmp_path: Path) -> None:
    packed, new = saved(approved_silo(consortium)), tmp_path / "restored" / "new"
    with pytest.raises(SiloError):
        restore(packed, new, Since(policy=b"epsilon = 'none'\n"), NOW)
    assert list(new.parent.iterdir()) == []
    restore(packed, new, Since(), NOW)
    with pytest.raises(SiloError, match="into a new folder only"):
        restore(packed, new, Since(), NOW)


def test_only_the_passphrase_opens_a_backup_and_a_changed_one_does_not_open() -> None:
    sealed = encrypted_file.seal_with_passphrase(b"content", PASSPHRASE)
    assert not encrypted_file.needs_key(sealed)
    assert encrypted_file.open_with_passphrase(sealed, PASSPHRASE) == b"content"
    with pytest.raises(Unopenable, match="another passphrase"):
        encrypted_file.open_with_passphrase(sealed, PASSPHRASE + " ")
    with pytest.raises(Unopenable, match="was changed"):
        encrypted_file.open_with_passphrase(sealed[:-1] + bytes([sealed[-1] ^ 1]), PASSPHRASE)
    with pytest.raises(SiloError, match="at least 12 characters"):
        encrypted_file.seal_with_passphrase(b"content", "short")


def test_only_the_private_key_opens_what_was_sealed_to_its_public_half(tmp_path: Path) -> None:
    (tmp_path / "one.pub").write_text(encrypted_file.make_key(tmp_path / "one"))
    encrypted_file.make_key(tmp_path / "two")
    sealed = encrypted_file.seal_to_key(
        b"content", encrypted_file.load_public_key(tmp_path / "one.pub")
    )
    assert encrypted_file.needs_key(sealed)
    key = encrypted_file.load_key(tmp_path / "one")
    assert encrypted_file.open_with_key(sealed, key) == b"content"
    with pytest.raises(Unopenable):
        encrypted_file.open_with_key(sealed, encrypted_file.load_key(tmp_path / "two"))
    with pytest.raises(Unopenable):
        encrypted_file.open_with_key(sealed[:-1] + bytes([sealed[-1] ^ 1]), key)
    with pytest.raises(UnusableKey):
        encrypted_file.load_public_key(tmp_path / "one")


# The commands ------------------------------------------------------------------------------------


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


# Upgrades ----------------------------------------------------------------------------------------


def test_a_ledger_of_the_release_before_is_taken_over_and_one_of_a_later_release_is_not(
    consortium: Consortium, tmp_path: Path
) -> None:
    config = approved_silo(consortium)
    older = copied(consortium, tmp_path / "older")
    path = older.silos[0].parent / "state" / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as database:
        for column in ("receipt", "committed"):
            database.execute(f"ALTER TABLE reports ADD COLUMN {column} BLOB")
        database.execute("ALTER TABLE controls ADD COLUMN included INTEGER NOT NULL DEFAULT 0")
        database.execute("PRAGMA user_version = 4")
    with closing(Ledger(load(older.silos[0]).state, config.policy)) as ledger:
        verify(ledger)
        assert ledger.approval(consortium.study.identity).study == consortium.study
    with closing(sqlite3.connect(path)) as database:
        (new, taken_over) = (_columns(each) for each in (consortium.silos[0], older.silos[0]))
        assert taken_over == new
        database.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(LedgerBroken, match=r"format 7\), newer than this one .*install that rel"):
        Ledger(path.parent, config.policy)
    assert path.read_bytes() == before


def _columns(silo: Path) -> list[str]:
    """Those of the stored reports and control variates."""
    with closing(sqlite3.connect(silo.parent / "state" / "ledger.sqlite")) as database:
        return [
            f"{table}.{row[1]}"
            for table in ("reports", "controls")
            for row in database.execute(f"PRAGMA table_info({table})")
        ]
