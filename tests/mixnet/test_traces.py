"""What a mix leaves behind: nothing outside its database links a sender to a report, and after the
purge the database has forgotten it too.

Canaries go through real mixes: silos with unmistakable names, payloads with a marker, and reports
whose digests are known at every hop.  They are then looked for in logs, metrics, file names and
times, arguments, environment and the raw bytes of the state folder.  What the first mix keeps until
the purge (who sent which onion, for receipts) may be in the database and nowhere else.
"""

import os
import re
import sqlite3
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mixnet.real_mix import RealMix, real_mix, until
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.keys import write_secret
from silomix_protocol.rounds.onion import Onion, seal
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    abandon,
    collect,
    opened_payloads,
    opened_round,
    payload_length,
    refused_submission,
    run,
    submission,
    submit,
)

NAMES = ("silo-zebra-7391", "silo-quokka-5502", "silo-axolotl-8846")
MARKER = b"CANARY-payload-50d1"
RETENTION_S = 1.0
ROUNDS = 4


# A consortium with unmistakable names -------------------------------------------------------------


def renamed(made: Consortium) -> Consortium:
    """The same consortium, its silos called `NAMES`: folders, certificates and study file."""
    folder, content = made.folder, (made.folder / "study.toml").read_text(encoding="utf-8")
    key = serialization.load_pem_private_key((folder / "authority" / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate((folder / "authority" / "ca.crt").read_bytes())
    authority = Authority(certificate, key)
    for index, name in enumerate(NAMES):
        old = f"silo-{index + 1}"
        (folder / old).rename(folder / name)
        issued = authority.issue(name, (), datetime.now(UTC), serves=False)
        (folder / name / "tls.crt").write_bytes(issued.certificate)
        (folder / name / "tls.key").unlink()
        write_secret(folder / name / "tls.key", issued.key)
        content = content.replace(f'"{old}"', f'"{name}"')
    (folder / "study.toml").write_text(content, encoding="utf-8")
    return replace(made, study=parse_study(content.encode()))


# Rounds, good and bad -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What went through the chain: every canary that must not be found."""

    played: PlayedRound
    onions: dict[str, Onion]

    @property
    def digests(self) -> set[bytes]:
        return {digest for onion in self.onions.values() for digest in onion.trail}


async def good_round(made: Consortium, number: int) -> Sent:
    played = await opened_round(made, number)
    payload = MARKER.ljust(payload_length(made), b"\0")
    public, keys, digest = played.server_key.public, played.mix_keys, played.descriptor.digest
    onions = {name: seal(payload, public, keys, digest) for name in NAMES}
    for name, onion in onions.items():
        for _ in range(2):  # the second time the same receipt
            (receipt,) = await submit(
                made, name, submission(made, name, played.descriptor, onion.sealed)
            )
            assert receipt.status == mix_pb2.Receipt.ACCEPTED
        bodies = list((made.folder / "mix-1" / "state" / "batches").iterdir())
        assert len([path for path in bodies if path.name == digest.hex()]) <= 1
    batch = await collect(played)
    assert len(batch.reports) == len(NAMES)
    assert all(MARKER in each for each in await opened_payloads(played, batch))
    return Sent(played, onions)


async def bad_round(made: Consortium, number: int) -> Sent:
    """Refusals of every kind, garbage, a replaced report; then the round is abandoned."""
    played = await opened_round(made, number)
    length = len(
        seal(
            bytes(payload_length(made)),
            played.server_key.public,
            played.mix_keys,
            played.descriptor.digest,
        ).sealed
    )
    garbage = Onion(os.urandom(length), ())
    other = Onion(os.urandom(length), ())
    first = NAMES[0]
    for onion in (garbage, other):
        await submit(made, first, submission(made, first, played.descriptor, onion.sealed))
    short = submission(made, first, played.descriptor, b"short")
    await refused_submission(made, first, short)
    forged = submission(made, NAMES[1], played.descriptor, other.sealed, signed_by=NAMES[2])
    await refused_submission(made, NAMES[1], forged)
    unknown = replace(played.descriptor, encoded=b"unknown")
    await refused_submission(made, NAMES[2], submission(made, NAMES[2], unknown, other.sealed))
    for mix in made.study.mixes:
        await abandon(made, played.descriptor, mix.name)
    hashes = [Onion(each.sealed, (sha256(each.sealed).digest(),)) for each in (garbage, other)]
    return Sent(played, dict(zip(NAMES, hashes, strict=False)))


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Two mixes after several rounds: what they wrote before and after the purge."""

    mixes: tuple[RealMix, RealMix]
    sent: list[Sent]
    secrets: list[bytes]  # seal and release keys that the mixes had
    log: str
    metrics: str
    names: list[str]  # of files, while rounds were kept
    raw_before: dict[str, bytes]  # the databases' bytes, while rounds were kept
    raw_after: dict[str, bytes]
    names_after: list[str]
    handed_over: list[tuple[object, object]]  # (order, output digests) at the first mix
    arguments: bytes
    environment: bytes


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    made = make_consortium(
        tmp_path_factory.mktemp("traces") / "c", mixes=2, rounds=20, deadline_s=20.0
    )
    made = renamed(made)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(real_mix(made, hop, retention_s=RETENTION_S)) for hop in (0, 1)
        )
        yield run(_scene(made, (first, second)), timeout_s=60.0)


async def _scene(made: Consortium, mixes: tuple[RealMix, RealMix]) -> Aftermath:
    secrets: list[bytes] = []
    sent = []
    for number in range(1, ROUNDS + 1):
        opened = good_round if number != 2 else bad_round
        sent.append(await opened(made, number))
        secrets += [key for mix in mixes for key in _keys(mix)]
    names = [name for mix in mixes for name in _names(mix)]
    raw_before = {name: content for mix in mixes for name, content in _raw(mix).items()}
    handed_over = _rows(
        mixes[0],
        "SELECT rounds.sequence, reports.output FROM reports JOIN rounds "
        "ON rounds.digest = reports.digest WHERE rounds.delivered = 1",
    )
    await until(
        lambda: all(
            _rows(mix, "SELECT 1 FROM rounds WHERE state != 'purged'") == [] for mix in mixes
        ),
        "every round is purged",
    )
    purged = time.monotonic()
    await until(lambda: time.monotonic() > purged + 2 * RETENTION_S, "the log was cut short")
    processes = [Path(f"/proc/{mix.process.pid}") for mix in mixes]
    return Aftermath(
        mixes=mixes,
        sent=sent,
        secrets=secrets,
        log="".join(mix.log for mix in mixes),
        metrics="".join(mix.metrics for mix in mixes),
        names=names,
        raw_before=raw_before,
        raw_after={name: content for mix in mixes for name, content in _raw(mix).items()},
        names_after=[name for mix in mixes for name in _names(mix)],
        handed_over=[(order, outputs) for order, outputs in handed_over],
        arguments=b"".join((path / "cmdline").read_bytes() for path in processes),
        environment=b"".join((path / "environ").read_bytes() for path in processes),
    )


def _rows(mix: RealMix, query: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(f"file:{mix.state}/mix.sqlite?mode=ro", uri=True, timeout=10)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def _keys(mix: RealMix) -> list[bytes]:
    found = _rows(mix, "SELECT seal, release FROM keys")
    return [bytes(key) for row in found for key in row if isinstance(key, bytes)]


def _names(mix: RealMix) -> list[str]:
    return [str(path.relative_to(mix.state)) for path in mix.state.rglob("*")]


def _raw(mix: RealMix) -> dict[str, bytes]:
    """Every file of the state folder, byte for byte."""
    files = (path for path in mix.state.rglob("*") if path.is_file())
    return {f"{mix.name}/{path.name}": path.read_bytes() for path in files}


def spellings(secret: bytes) -> list[bytes]:
    """A value as it is, in hexadecimal and in base64, also cut short."""
    return [secret, secret.hex()[:16].encode(), b64encode(secret)[:16], repr(secret)[2:18].encode()]


# What must not be there ---------------------------------------------------------------------------


def test_the_canaries_were_there_to_be_found(after: Aftermath) -> None:
    """While rounds are kept, the first mix's database has who sent which onion, and keys."""
    kept = b"".join(content for name, content in after.raw_before.items() if "mix-1/" in name)
    assert any(name.encode() in kept for name in NAMES)
    assert any(onion.trail[0] in kept for each in after.sent for onion in each.onions.values())
    assert any(secret in kept for secret in after.secrets)
    assert len(after.secrets) > 2


def test_logs_and_metrics_name_no_silo_no_report_and_no_key(after: Aftermath) -> None:
    text = after.log + after.metrics
    assert " batch_sealed " in text
    assert not any(name.split("-")[1] in text for name in NAMES)
    assert MARKER.decode() not in text
    hidden = [digest for each in after.sent for digest in each.digests] + after.secrets
    for secret in hidden:
        assert not any(spelling in text.encode() for spelling in spellings(secret))


def test_log_lines_say_what_and_when_but_not_who(after: Aftermath) -> None:
    """No line for a report that was accepted: the times of the log are those of rounds, refusals
    and batches, and no field but these exists."""
    allowed = {
        "round",
        "attempt",
        "received",
        "forwarded",
        "dropped",
        "reason",
        "code",
        "state",
        "listen",
        "studies",
        "confirmed",
        "to",
    }
    fields = re.findall(r" ([a-z_]+)=", after.log)
    assert set(fields) <= allowed
    accepted = sum(len(each.onions) for each in after.sent)
    assert after.log.count("received=") < accepted


def test_metrics_count_by_reason_and_carry_no_times(after: Aftermath) -> None:
    labels = set(re.findall(r'(\w+)="', after.metrics))
    assert labels <= {"outcome", "reason"}
    now = time.time()
    samples = [line for line in after.metrics.splitlines() if not line.startswith("#")]
    values = [float(line.rsplit(" ", 1)[1]) for line in samples]
    assert not any(abs(value - now) < 3600 for value in values), "a counter's time of birth is one"


def test_bodies_are_one_file_for_each_batch(after: Aftermath) -> None:
    """So that no file's name or time belongs to one report."""
    rounds = {each.played.descriptor.digest.hex() for each in after.sent}
    known = {"batches", "mix.sqlite", "mix.sqlite-wal", "mix.sqlite-shm"}
    known |= {f"batches/{digest}" for digest in rounds}
    assert set(after.names) <= known


def test_what_a_mix_handed_over_it_cannot_put_in_order_again(after: Aftermath) -> None:
    assert after.handed_over
    assert all(order is None and output is None for order, output in after.handed_over)


def test_after_the_purge_the_state_folder_has_forgotten_everything(after: Aftermath) -> None:
    assert not any("batches/" in name for name in after.names_after)
    for name, content in after.raw_after.items():
        for silo in NAMES:
            assert silo.encode() not in content, name
        assert MARKER not in content, name
        for each in after.sent:
            for digest in each.digests:
                assert digest not in content, f"{name}: a report of {each.played.descriptor.round}"
        for secret in after.secrets:
            assert secret not in content, f"{name}: a private key"
            assert secret[:64] not in content, f"{name}: half a private key"


def test_arguments_and_environment_hold_no_secret(after: Aftermath) -> None:
    given = after.arguments + after.environment
    made = after.mixes[0].made
    secrets = [*after.secrets]
    secrets += [(made.folder / mix.name / "sign.key").read_bytes() for mix in made.study.mixes]
    for secret in secrets:
        assert not any(spelling in given for spelling in spellings(secret))
    assert b"PRIVATE KEY" not in given
    assert not any(name.encode() in given for name in NAMES)
