"""A silo in a test: approved, asked, killed; and what the server and the mixes would see of it."""

import csv
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from math import floor, isqrt, sqrt
from pathlib import Path
from types import FrameType

import numpy as np
from numpy.typing import NDArray
from silomix.consortium import Consortium
from silomix_client import ledger as ledger_module
from silomix_client.answer import StudyDesk
from silomix_client.approve import approve, review
from silomix_client.config import MAIN, Policy, SiloConfig, load
from silomix_client.entries import Approval
from silomix_client.errors import SiloError
from silomix_client.keystream import fresh_keystream
from silomix_client.ledger import Ledger, StoredReport
from silomix_client.ledger_check import verify
from silomix_client.snapshot import thaw
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.noise import RandomBytes
from silomix_core.report import decode_report
from silomix_core.study import Study
from silomix_proto import round_pb2
from silomix_protocol.descriptor import Descriptor, RoundDigest, check, issue
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.onion import SERVER_HOP, open_layer

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def no_noise() -> RandomBytes:
    """A stream of medians, whose discrete Gaussian samples are all zero."""
    return lambda count: (bytes(7) + b"\x80") * (count // 8)


# A consortium and one of its silos ---------------------------------------------------------------


def copied(made: Consortium, folder: Path) -> Consortium:
    """The same consortium, same keys and ports, in another folder."""
    shutil.copytree(made.folder, folder)

    def moved(path: Path) -> Path:
        return folder / path.relative_to(made.folder)

    return replace(
        made,
        folder=folder,
        server=moved(made.server),
        mixes=tuple(moved(path) for path in made.mixes),
        silos=tuple(moved(path) for path in made.silos),
    )


def altered(made: Consortium, *changes: tuple[str, str]) -> Consortium:
    """The same consortium with another study: text of its file replaced."""
    path = made.folder / "study.toml"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return replace(made, study=Study.parse(text.encode()))


def study_file(made: Consortium) -> bytes:
    return (made.folder / "study.toml").read_bytes()


def approved_silo(made: Consortium, index: int = 0) -> SiloConfig:
    """The silo's configuration, after its operator approved the consortium's study."""
    config = load(made.silos[index])
    approve(config, review(config, study_file(made)), NOW)
    return config


def allowing(lifetime: PrivacyTarget, accountant: Accountant = Accountant.GAUSSIAN) -> Policy:
    """A policy with this lifetime budget for everybody."""
    return Policy({MAIN: Budget(lifetime, accountant)})


def approval_of(study: Study, silo: str | None = None) -> Approval:
    """An approval without data: for tests of the ledger alone."""
    return Approval(study, silo or study.silos[0].name, b"", bytes(32))


def open_ledger(config: SiloConfig, lifetime: PrivacyTarget | None = None) -> Ledger:
    return Ledger(config.state, allowing(lifetime) if lifetime else config.policy)


def open_desk(
    config: SiloConfig,
    study: Study,
    ledger: Ledger,
    keystream: Callable[[], RandomBytes] = fresh_keystream,
) -> StudyDesk:
    """The desk as `silo run` builds it: approval from the ledger, records from the snapshot."""
    approval = ledger.approval(study.identity)
    records = thaw(study.identity, approval.snapshot, config.state / "snapshots")
    return StudyDesk(config.name, approval, records, ledger, lambda: NOW, keystream)


def written(config: SiloConfig) -> tuple[list[str], dict[str, bytes]]:
    """Everything that the silo has on disk: the ledger's rows and the other files' bytes."""
    state = config.folder / "state"
    database = state / "ledger.sqlite"
    rows: list[str] = []
    if database.exists():
        connection = sqlite3.connect(database)
        rows = [line for line in connection.iterdump() if line.startswith("INSERT")]
        connection.close()
    files = {
        str(path.relative_to(state)): path.read_bytes()
        for path in sorted(state.rglob("*"))
        if path.is_file() and not path.name.startswith("ledger.")
    }
    return rows, files


# The server's side -------------------------------------------------------------------------------


def server_key(made: Consortium) -> SigningKey:
    return SigningKey.load(made.server.parent / "sign.key")


def query_at(point: NDArray[np.float64] | list[float]) -> bytes:
    encoded = np.asarray(point, dtype="<f8").tobytes()
    return bytes(round_pb2.Query(point=encoded).SerializeToString(deterministic=True))


def asked(
    made: Consortium, round_number: int, point: NDArray[np.float64] | list[float] | None = None
) -> tuple[Descriptor, bytes]:
    """What an honest server asks in a round: a signed descriptor for all silos, and its query."""
    study = made.study
    query = query_at(np.zeros(study.task.dimension) if point is None else point)
    names = tuple(silo.name for silo in study.silos)
    return issue(study, round_number, names, query, server_key(made)), query


def hostile(
    made: Consortium, asks: bytes, key: SigningKey | None = None, **fields: object
) -> round_pb2.SignedDescriptor:
    """Round 1's descriptor with some fields replaced, correctly signed unless `key` is given."""
    names = tuple(silo.name for silo in made.study.silos)
    honest = issue(made.study, 1, names, asks, server_key(made))
    message = round_pb2.RoundDescriptor.FromString(honest.encoded)
    for name, value in fields.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    encoded = message.SerializeToString(deterministic=True)
    signature = (key or server_key(made)).sign("descriptor", encoded)
    return round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)


def respond(desk: StudyDesk, signed: round_pb2.SignedDescriptor, query: bytes) -> StoredReport:
    """What the round channel does with a message of the server."""
    return desk.answer(check(signed, desk.study), query)


def opened(made: Consortium, onion: bytes, digest: RoundDigest) -> NDArray[np.int64]:
    """The integers that the server reads after every mix took its layer off."""
    layer = onion
    for hop, path in enumerate(made.mixes):
        layer = open_layer(layer, SealKey.load(path.parent / "seal.key"), hop, digest)
    key = SealKey.load(made.server.parent / "seal.key")
    return decode_report(open_layer(layer, key, SERVER_HOP, digest), made.study.mechanism())


# An independent, slow update: Python integers, one record at a time ------------------------------


def exact_mean_at_zero(data: Path, study: Study) -> list[int]:
    """The clipped mean gradient at w = 0 in grid units, from the CSV and the documents alone.

    At zero every logistic residual is exactly −y/2.  A record's gradient is an integer vector in
    units of 2⁻¹⁶·2⁻²⁰; its residual is capped where the norm would exceed the clip, taking the
    norm of the features one too large, as docs/decisions/0005-integer-noise.md says.
    """
    task, unit, residual_unit = study.task, 2**16, 2**20
    total = [0] * task.dimension
    with data.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        vector = []
        for feature in task.features:
            value = float(row[feature.name]) if row[feature.name] else feature.missing
            value = min(max(value, feature.low), feature.high)
            scaled = (2 * value - (feature.low + feature.high)) / (feature.high - feature.low)
            vector.append(round(scaled / sqrt(len(task.features)) * unit))
        vector.append(round(task.bias * unit))
        norm = isqrt(sum(entry * entry for entry in vector)) + 1
        cap = floor(study.clip * unit * residual_unit) // norm
        size = min(residual_unit // 2, cap)
        residual = -size if row[task.label] == "1" else size
        for index, entry in enumerate(vector):
            total[index] += residual * entry
    grid = study.mechanism().grids[0]
    return [round(entry / (unit * residual_unit * len(rows) * grid)) for entry in total]


# Children that die or race -----------------------------------------------------------------------


def answer_and_die(silo_toml: str, moment: str) -> None:
    """Answer round 1 and kill this very process with SIGKILL at `moment`."""
    config = load(Path(silo_toml))
    made = _consortium_of(config)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    descriptor, query = asked(made, 1)
    fatal = {"before the row is written": "INSERT INTO entries", "before the commit": "COMMIT"}
    charging: list[str] = []

    def watch(statement: str) -> None:
        if statement.startswith("INSERT INTO entries"):
            charging.append(statement)
        if charging and moment in fatal and statement.startswith(fatal[moment]):
            os.kill(os.getpid(), signal.SIGKILL)

    ledger.database.set_trace_callback(watch)
    if moment == "before the charge":
        setattr(ledger, "charge", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010
    report = desk.answer(descriptor, query)
    (config.folder / "sent").write_bytes(report.onion)
    if moment == "after the charge":
        os.kill(os.getpid(), signal.SIGKILL)


def answer_all_rounds(silo_toml: str, epsilon: float) -> None:
    """Try every round of every approved study, in turn, under a lifetime ε.

    Prints which were answered, as "study round", with the SHA-256 of each report.
    """
    config = load(Path(silo_toml))
    made = _consortium_of(config)
    lifetime = PrivacyTarget(epsilon, config.policy.budgets[MAIN].target.delta)
    ledger = open_ledger(config, lifetime)
    studies = [approval.study for approval in ledger.approvals()]
    desks = [open_desk(config, study, ledger) for study in studies]
    sent: dict[str, str] = {}
    for round_number in range(1, made.study.rounds + 1):
        for study, desk in zip(studies, desks, strict=True):
            descriptor, query = asked(replace(made, study=study), round_number)
            try:
                report = desk.answer(descriptor, query)
            except SiloError:
                continue
            sent[f"{study.short_id} {round_number}"] = sha256(report.onion).hexdigest()
    ledger.close()
    print(json.dumps(sent))


def _consortium_of(config: SiloConfig) -> Consortium:
    """The consortium around a silo's folder, as `consortium.create` lays it out."""
    folder = config.folder.parent
    study = Study.parse((folder / "study.toml").read_bytes())
    return Consortium(
        folder=folder,
        study=study,
        server=folder / "server" / "server.toml",
        mixes=tuple(folder / mix.name / "mix.toml" for mix in study.mixes),
        silos=tuple(folder / silo.name / "silo.toml" for silo in study.silos),
    )


# Killed at every line ----------------------------------------------------------------------------


def answer_killed_at(silo_toml: str, line: int, largest_row: int) -> bool:
    """Answer round 1 in a child that gets SIGKILL before its `line`-th line; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            _answer_until(silo_toml, line, largest_row)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _answer_until(silo_toml: str, line: int, largest_row: int) -> None:
    config = load(Path(silo_toml))
    made = _consortium_of(config)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    descriptor, query = asked(made, 1)
    ledger_module._LARGEST_ROW = largest_row
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object] | None:
        nonlocal left
        if Path(frame.f_code.co_filename).name not in _WATCHED:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    report = desk.answer(descriptor, query)
    sys.settrace(None)
    (config.folder / "sent").write_bytes(report.onion)
    os.kill(os.getpid(), signal.SIGKILL)  # sent, but nobody has heard of it


_WATCHED = ("answer.py", "ledger.py", "chain.py", "snapshot.py")


def kill_at_every_line(folder: str, largest_row: int) -> None:
    """Kill a silo before each line between the query and the report; print what was found.

    After each death the ledger must be whole; a report that was sent must be charged, and a round
    that is asked again must be charged once and answered with the bytes that were stored.
    """
    lines = charged = 0
    while True:
        lines += 1
        scratch = Path(folder).with_name(f"killed-{lines}")
        shutil.copytree(folder, scratch)
        silo_toml = scratch / "silo-1" / "silo.toml"
        assert answer_killed_at(str(silo_toml), lines, largest_row)
        config = load(silo_toml)
        sent = config.folder / "sent"
        ledger = open_ledger(config)
        verify(ledger)
        rounds = ledger.total().rounds
        assert rounds in (0, 1), f"{rounds} charges after line {lines}"
        assert rounds == 1 or not sent.exists(), f"sent without a charge, line {lines}"
        made = _consortium_of(config)
        descriptor, query = asked(made, 1)
        stored = ledger.stored(made.study, 1, descriptor.digest)
        assert (stored is not None) == (rounds == 1)
        again = open_desk(config, made.study, ledger).answer(descriptor, query)
        assert stored is None or again == stored, f"fresh noise for a charged round, line {lines}"
        assert ledger.total().rounds == 1
        assert verify(ledger).entries == 2
        ledger.close()
        charged += rounds
        finished = sent.exists()
        if finished:
            assert sent.read_bytes() == again.onion
        shutil.rmtree(scratch)
        if finished:
            print(json.dumps({"lines": lines, "charged": charged}))
            return
        assert lines < 1000
