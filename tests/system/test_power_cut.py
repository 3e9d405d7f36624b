"""All machines lose their power in the middle of a study, and with it what was not synced.

Real processes, killed together; then every file has only what its process synced.  When the power
is back, every party starts and the study goes on to its end.
"""

import os
import signal
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from silomix.main import app
from silomix.text.first_config import write_skeleton
from silomix_authority.config import load as load_authority
from silomix_authority.register import Register
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.backup.backup import Since, collect, record_backup, restore
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_core.study.reader import parse_study
from silomix_protocol.certificates import certificates
from silomix_protocol.certificates.files import CertificateFiles
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.enrolment import Enrolment, accept_membership
from silomix_protocol.enrolment.membership import Invitation
from silomix_protocol.keys import SigningKey, write_secret
from silomix_server.config import load as load_server
from silomix_server.mixes.token_desk import SEED, TokenDesk
from silomix_server.study.results import append_progress, finished_model, progress, save_model
from support.authorities import SILO, office
from support.consortia import make_consortium
from support.power import Disk, Loss, environment, traced
from support.processes import Running, approve_all, running, spending, wait_until
from support.silos import NOW, approved_silo, asked, open_desk, open_ledger
from typer.testing import CliRunner

ROUNDS, BETWEEN = 24, 8


def test_a_study_goes_on_after_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that empties files, then one that loses names."""
    made = make_consortium(
        tmp_path / "c", records=(40, 50), rounds=ROUNDS, epsilon=5.0, deadline_s=3.0
    )
    approve_all(made)
    for name, value in environment(made.folder, tmp_path / "memory").items():
        monkeypatch.setenv(name, value)
    disk = Disk(made.folder, tmp_path / "memory")
    for loss in Loss:
        with running(made) as system:
            system.wait_for_round(BETWEEN)  # of those since the last cut, which took the others
            kill_all(system)
        lost = disk.cut(loss)
        assert lost, "nothing was lost: is anything traced?"
    with running(made) as system:
        assert system.server_status() == 0, (lost, system.all_logs())
    assert finished_model(load_server(made.server))
    for entry in spending(made):
        assert 0 < entry.rounds <= ROUNDS
    for config in map(load_silo, made.silos):
        ledger = Ledger(config.state, config.policy)
        verify(ledger)
        audit_check.verify(config.state, ledger)
        ledger.close()


def kill_all(system: Running) -> None:
    """At once, without a last word; the server's own processes too."""
    children = [pid for _, pid in system.processes.members()]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for process in system.processes.running:
        process.child.wait(10)
    wait_until(lambda: not any(_is_there(pid) for pid in children), "all are gone")


def _is_there(pid: int) -> bool:
    """Not a zombie either."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


# One party at a time, in this process -----------------------------------------------------------


@pytest.fixture(params=Loss)
def loss(request: pytest.FixtureRequest) -> Loss:
    found = request.param
    assert isinstance(found, Loss)
    return found


def test_an_authority_and_its_new_member_are_whole_after_a_power_cut(
    tmp_path: Path, loss: Loss
) -> None:
    root = tmp_path / "parties"
    root.mkdir()
    with traced(root, tmp_path / "memory") as disk, office(root) as here:
        invitation = here.invite(SILO)
        invitation.save(root / "invitation")
        keys = here.keys(SILO)
        answer = here.join(invitation, keys)
        accept_membership(invitation, keys, answer, root / SILO.name, here.now)
        config = write_skeleton(SILO, root / SILO.name)
    disk.cut(loss)
    assert Invitation.load(root / "invitation").key.public == invitation.key.public
    again = load_authority(root / "authority" / "authority.toml")
    with closing(Register(again.state)) as register:
        assert [party.member for party in register.parties()] == [SILO]
    assert again.authority().pem == invitation.authority
    enrolled = Enrolment.load(root / SILO.name)
    assert (enrolled.member, enrolled.revocations.current is not None) == (SILO, True)
    Identity.load(SILO.name, root / SILO.name)
    assert SigningKey.load(root / SILO.name / "sign.key").public == keys.sign.public
    assert load_silo(config).name == SILO.name


def test_a_renewed_certificate_and_its_key_belong_together_after_a_power_cut(
    tmp_path: Path, loss: Loss
) -> None:
    with office(tmp_path) as here:
        invitation, keys = here.invite(SILO), here.keys(SILO)
        folder = tmp_path / SILO.name
        accept_membership(invitation, keys, here.join(invitation, keys), folder, here.now)
        with traced(folder, tmp_path / "memory") as disk:
            files = CertificateFiles(folder)
            csr = certificates.request(SILO.name, files.next_key())
            question = here.renewal(SILO.name, keys.sign, csr)
            files.replace(here.desk.renew(question, here.now).certificate)
        disk.cut(loss)
        Identity.load(SILO.name, folder)
        assert files.settled


def test_an_approval_a_backup_and_a_restored_silo_are_whole_after_a_power_cut(
    tmp_path: Path, loss: Loss
) -> None:
    root = tmp_path / "c"
    made = make_consortium(root)
    with traced(root, tmp_path / "memory") as disk:
        config = approved_silo(made)
        with closing(open_ledger(config)) as ledger:
            open_desk(config, made.study, ledger).answer(asked(made, 1))
        note, packed = collect(config, "silo.toml", NOW)
        record_backup(config, note, root / "backup")
        write_secret(root / "backup", packed)
        restored = restore(packed, root / "again", Since(complete=True), NOW)
    disk.cut(loss)
    with closing(open_ledger(config)) as ledger:
        verify(ledger)
        open_desk(config, made.study, ledger, tokens=False).answer(asked(made, 1))
        open_desk(config, made.study, ledger).answer(asked(made, 2))
    assert (root / "backup").read_bytes() == packed
    again = load_silo(restored.config)
    with closing(open_ledger(again)) as ledger:
        verify(ledger)
        audit_check.verify(again.state, ledger)


def test_a_roster_and_the_study_made_of_it_are_whole_after_a_power_cut(
    tmp_path: Path, loss: Loss
) -> None:
    made = make_consortium(tmp_path / "c")
    outline = tomllib.loads((made.folder / "study.toml").read_text())
    for party in (outline["server"], *outline["mixes"], *outline["silos"]):
        for key in [key for key in party if key.endswith(("_key", "address"))]:
            del party[key]
    (tmp_path / "outline").write_text(tomli_w.dumps(outline))
    folder = tmp_path / "lead"
    folder.mkdir()
    roster, study = folder / "roster.toml", folder / "study.toml"
    commands = [
        ("authority", "roster", made.authority, "--out", roster),
        ("study", "assemble", tmp_path / "outline", roster, "--out", study),
    ]
    with traced(folder, tmp_path / "memory") as disk:
        for command in commands:
            done = CliRunner().invoke(app, list(map(str, command)))
            assert done.exit_code == 0, done.output
    content = roster.read_bytes()
    disk.cut(loss)
    assert roster.read_bytes() == content
    assert parse_study(study.read_bytes()).silos == made.study.silos


def test_what_a_server_keeps_is_whole_after_a_power_cut(tmp_path: Path, loss: Loss) -> None:
    root = tmp_path / "c"
    made = make_consortium(root)
    with traced(root, tmp_path / "memory") as disk:
        config = load_server(made.server)
        for number in (1, 2):
            append_progress(config.state, {"round": number})
        TokenDesk(made.study, config.state).close()
        seed = (config.state / SEED).read_bytes()
        save_model(config.state, made.study, np.zeros(made.study.task.dimension))
    disk.cut(loss)
    TokenDesk(made.study, config.state).close()
    assert (config.state / SEED).read_bytes() == seed
    assert finished_model(config)
    assert progress(config.state) == []  # the journal has them
