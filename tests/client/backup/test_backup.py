"""Backups: sealed, without records, made while the silo runs; a restore that forgets nothing."""

import json
import sqlite3
import tarfile
import tomllib
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
import tomli_w
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.audit_log.verify_log import lines
from silomix_client.backup import backup, encrypted_file
from silomix_client.backup.backup import Since, left_out, restore
from silomix_client.backup.encrypted_file import Unopenable
from silomix_client.config.silo_config import load
from silomix_client.errors import AuditLogBroken, LedgerBroken, SiloError
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.ledger_tables import TABLES
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import Verified, verify
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host.durable import transaction
from silomix_protocol.keys import UnusableKey, write_secret
from support.backups import PASSPHRASE, charge, reopened, saved
from support.silos import NOW, approved_silo, asked, copied

LASTING = ("entries", "studies", "answers", "tallies")


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


@pytest.mark.slow
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
