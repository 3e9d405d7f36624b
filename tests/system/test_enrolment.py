"""Enrolment with real processes: a study in which certificates change and a silo is revoked."""

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from silomix_lab.consortium.create import Consortium
from silomix_protocol.certificates.certificates import Life
from silomix_protocol.enrolment.enrolment import Enrolment, renew
from silomix_protocol.keys import SigningKey
from support.authorities import authority_process, office, shown_certificate
from support.children import child
from support.consortia import make_consortium
from support.hostile import Script, Siege, besieged, lease_of, opening, whole_round
from support.mixes import mix_process, run
from support.processes import approve_all, progress, running, silomix, spending, wait_until
from support.silos import asked

_FILES = ("tls.crt", "tls.key", "sign.key", "node.key")


def with_authority(made: Consortium, **keys: float) -> None:
    """Set these keys of authority.toml; parties fetch their lists anew."""
    lines = made.authority.read_text().splitlines()
    kept = [line for line in lines if line.partition(" ")[0] not in keys]
    made.authority.write_text("\n".join([*kept, *(f"{k} = {v}" for k, v in keys.items())]) + "\n")
    for party in (made.server, *made.mixes, *made.silos):
        (party.parent / "revoked.crl").unlink()


def renewed(made: Consortium, name: str) -> int:
    """Renew a party's certificate under its running processes; the new number."""
    asyncio.run(renew(Enrolment.load(made.folder / name)))
    return certificate(made.folder / name).serial_number


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())


def shown(made: Consortium, address: str) -> int:
    return shown_certificate(address, made.silos[0].parent)


def test_a_study_goes_on_while_certificates_are_renewed_and_a_silo_is_revoked(
    tmp_path: Path,
) -> None:
    made = make_consortium(
        tmp_path / "c", mixes=1, rounds=5000, epsilon=5.0, lease_rounds=10, wait_for_silos_s=90.0
    )
    with_authority(made, list_hours=40 / 3600)
    approve_all(made)
    study = made.study
    with authority_process(made.authority), running(made) as system:
        system.wait_for_round(3)
        server = renewed(made, "server")
        mix, _, _ = renewed(made, "mix-1"), renewed(made, "silo-1"), renewed(made, "silo-2")
        assert shown(made, study.mixes[0].address) == mix
        assert shown(made, study.server.channel_address) == server
        wait_until(lambda: shown(made, study.server.fleet_address) == server, "Flower's SuperLink")
        system.wait_for_more_rounds(25)  # leases that begin with the new certificates
        lines = progress(made)
        assert {line["accepted"] for line in lines} == {3.0}, "nobody was dropped"
        assert not any(line["void"] for line in lines)
        revoked = silomix(
            "authority", "revoke", str(made.authority), "silo-3", "--yes", cwd=tmp_path
        )
        assert revoked.returncode == 0, revoked.stderr
        wait_until(
            lambda: progress(made)[-1]["accepted"] == 2, f"silo-3 is out {system.all_logs()}"
        )
        there = len(progress(made))
        system.wait_for_more_rounds(25)  # leases for which nobody waits for it
        lines = progress(made)[there:]
        assert {line["accepted"] for line in lines} == {2.0}
        closed = [line["closed_at"] for line in lines]
        assert max(after - before for before, after in pairwise(closed)) < 60.0
        assert certificate(made.folder / "silo-3").not_valid_after_utc > datetime.now(UTC)
        assert all(silo.state == "running" for silo in system.silos)


def test_a_running_mix_renews_by_itself_and_warns_when_it_cannot(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1)
    life_s = 6.0
    with_authority(made, certificate_days=life_s / 86_400, list_hours=1.0)
    folder = made.mixes[0].parent

    async def scene() -> None:
        async with mix_process(made.mixes[0]) as mix:

            def told(event: str) -> bool:
                return any(f" {event} " in line for line in mix.log)

            async def until(event: str) -> None:
                async with asyncio.timeout(60):
                    while not told(event):  # noqa: ASYNC110 it is another process that says it
                        await asyncio.sleep(0.05)

            await until("certificate_renewed")
            found = certificate(folder)
            assert (Life.of(found).expires - Life.of(found).issued).total_seconds() == life_s
            authority.close()
            await until("certificate_expired")
            assert told("certificate_not_renewed")

    with ExitStack() as authority:
        authority.enter_context(authority_process(made.authority))
        asyncio.run(renew(Enrolment.load(folder)))  # the first of the short ones
        run(scene(), 120.0)


def test_an_authority_killed_after_it_issued_gives_the_same_certificate_again(
    tmp_path: Path,
) -> None:
    """And nothing secret is in what the processes say or in what they were started with."""
    with office(tmp_path) as here:
        invitation = here.invite()
        invitation.save(tmp_path / "invitation")
        config = here.config.folder / "authority.toml"
        dying = child("authorities", "serve_and_die", str(config))
        try:
            answers = lambda: silomix("join", "invitation", "--into", "silo-1", cwd=tmp_path)  # noqa: E731
            wait_until(lambda: answers().returncode == 1 and dying.poll() is not None, "it died")
        finally:
            dying.kill()
            dying.communicate()
        issued = here.register.latest_certificate("silo-1")
        assert issued is not None
        assert not (tmp_path / "silo-1" / "tls.crt").exists()
        with authority_process(config) as log:
            joined = answers()
            assert joined.returncode == 0, joined.stderr
            told = joined.stdout + joined.stderr + log.read_text()
        assert (tmp_path / "silo-1" / "tls.crt").read_bytes() == issued.pem
        secrets = [(tmp_path / "silo-1" / name).read_bytes() for name in _FILES[1:]]
        written = (tmp_path / "invitation").read_text()
        (secret,) = (line for line in written.splitlines() if line.startswith("secret"))
        assert secret.split('"')[1] not in told
        assert not any(key.hex() in told or str(key)[2:-1] in told for key in secrets)
        assert invitation.key.raw.hex() not in told


def test_a_silo_refuses_a_server_and_a_mix_that_a_dishonest_authority_certified(
    tmp_path: Path,
) -> None:
    """Impostors with true certificates of these names, but not the keys that the study pins.

    The connections stand; nothing is answered, nothing charged, nothing sent.
    """
    made, impostor = make_consortium(tmp_path / "c"), SigningKey.generate()
    approve_all(made)
    question = asked(made, 1)
    forged = question.descriptor.to_wire()
    forged.signature = impostor.sign("descriptor", forged.descriptor)

    async def refused(siege: Siege, script: Script) -> str:
        outcome = await siege.lease(lease_of(made), script)
        assert outcome.reply["ending"] == "refused", outcome.log
        assert (outcome.frames, outcome.onions) == (0, [])
        assert spending(made)[0].rounds == 0
        return outcome.log

    async def scene() -> None:
        async with besieged(made) as siege:
            log = await refused(siege, opening(made, forged, question.query))
            assert "the signature on this descriptor is not valid" in log
            (made.folder / "mix-1" / "sign.key").unlink()
            impostor.save(made.folder / "mix-1" / "sign.key")  # which vouches for round keys
            log = await refused(siege, whole_round(made, question))
            assert "query_refused" in log
            assert "signature" in log

    run(scene(), 120.0)
