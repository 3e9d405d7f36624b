"""A silo in a test: approved and asked; and what the server and the mixes would see of it."""

import csv
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256, shake_256
from itertools import count
from math import floor, isqrt, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import MAIN, Policy, SiloConfig, load
from silomix_client.data.snapshot import thaw
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.token_store import HeldToken
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.round_request import RoundRequest, read_round_request
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.discrete_gaussian import RandomBytes, Streams
from silomix_core.mechanism.report_format import decode_report
from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SEAL_KEY_BYTES, SealKey, SigningKey
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.round_keys import KeyBook, sign_list
from silomix_protocol.rounds.statements import (
    sign_abandonment,
    sign_closing,
    sign_commitment,
    sign_voided,
)
from silomix_protocol.rounds.tokens import TOKEN_BYTES, Issuer, blind, issuer

from support.rounds import TOKEN_SEED, Round, make_round

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def no_noise(_label: bytes = b"") -> RandomBytes:
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
    return replace(made, study=parse_study(text.encode()))


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
    keystream: Streams | None = None,
    *,
    tokens: bool = True,
) -> StudyDesk:
    """The desk as `silo run` builds it: approval from the ledger, records from the snapshot.

    With `tokens` for all rounds to come, as if every stretch had been announced.
    """
    approval = ledger.approval(study.identity)
    if tokens and study.batching.tokens:
        give_tokens(ledger, study)
    records = thaw(study.identity, approval.snapshot, config.state / "snapshots")
    return StudyDesk(config.name, approval, records, ledger, lambda: NOW, keystream)


def written(config: SiloConfig) -> tuple[list[str], dict[str, bytes]]:
    """What the silo has on disk: the ledger's rows and the other files' bytes.

    Not the audit log, which also tells what was refused, nor how it stands with the other parties,
    which every connection changes.
    """
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
        if path.is_file() and not path.name.startswith(("ledger.", "audit.", "links."))
    }
    return rows, files


def consortium_of(config: SiloConfig) -> Consortium:
    """The consortium around a silo's folder."""
    return consortium_of_folder(config.folder.parent)


def consortium_of_folder(folder: Path) -> Consortium:
    """The consortium in a folder, as `consortium.create` lays it out."""
    study = parse_study((folder / "study.toml").read_bytes())
    return Consortium(
        folder=folder,
        study=study,
        server=folder / "server" / "server.toml",
        mixes=tuple(folder / mix.name / "mix.toml" for mix in study.mixes),
        silos=tuple(folder / silo.name / "silo.toml" for silo in study.silos),
    )


# The server's side -------------------------------------------------------------------------------


def server_key(made: Consortium) -> SigningKey:
    return SigningKey.load(made.server.parent / "sign.key")


def silo_key(made: Consortium, place: int = 0) -> SigningKey:
    return SigningKey.load(made.silos[place].parent / "sign.key")


def mix_key(made: Consortium, hop: int) -> SigningKey:
    return SigningKey.load(made.mixes[hop].parent / "sign.key")


def token_issuer(study: Study) -> Issuer:
    return issuer(TOKEN_SEED, study.identity)


def give_tokens(ledger: Ledger, study: Study, rounds: Iterable[int] | None = None) -> None:
    """Tokens into the silo's wallet: for all rounds to come, unless some are named."""
    to_come = range(ledger.account(study).last_round() + 1, study.rounds + 1)
    missing = set(to_come if rounds is None else rounds) - ledger.account(study).rounds_with_token()
    if missing:
        issuing = token_issuer(study)
        held = {}
        for number in missing:
            token, key = blind(), issuing.public_key(number)
            evaluated = issuing.evaluate(number, token.blinded)
            held[number] = HeldToken(key, token.finish(evaluated, key))
        ledger.account(study).keep_tokens(held)


def query_at(
    point: NDArray[np.float64] | list[float],
    control: NDArray[np.float64] | list[float] | None = None,
) -> bytes:
    message = round_pb2.Query(point=np.asarray(point, dtype="<f8").tobytes())
    if control is not None:
        message.control = np.asarray(control, dtype="<f8").tobytes()
    return bytes(message.SerializeToString(deterministic=True))


def round_of(
    made: Consortium,
    number: int,
    attempt: int = 1,
    *,
    query: bytes | None = None,
    variant: bytes = b"",
) -> Round:
    """An attempt of a round with the secrets of server and mixes: the same keys at every call,
    others for another `variant`."""
    study, places = made.study, count()
    name = study.identity + bytes([attempt]) + number.to_bytes(4, "big") + variant

    def make_key() -> SealKey:
        stream = shake_256(name + bytes([next(places)]))
        return SealKey.from_raw(stream.digest(SEAL_KEY_BYTES))

    return make_round(
        study,
        server_key(made),
        number,
        attempt,
        query=query_at(np.zeros(study.task.dimension)) if query is None else query,
        make_key=make_key,
    )


def asked(
    made: Consortium,
    round_number: int,
    point: NDArray[np.float64] | list[float] | None = None,
    *,
    attempt: int = 1,
    abandoned: Iterable[round_pb2.Abandonment] = (),
    variant: bytes = b"",
) -> RoundRequest:
    """What an honest server asks in a round: descriptor, query and keys, as the desk gets them.

    No two rounds ask about the same point, unless one is given.
    """
    origin = np.zeros(made.study.task.dimension)
    origin[0] = (round_number - 1) * 2.0**-40
    mechanism = made.study.mechanism()
    has_control = (
        round_number <= mechanism.rounds
        and mechanism.phases[mechanism.phase_of(round_number)].control
    )
    control = np.zeros_like(origin) if has_control else None
    query = query_at(origin if point is None else point, control)
    attempted = round_of(made, round_number, attempt, query=query, variant=variant)
    return RoundRequest(
        descriptor=attempted.descriptor,
        query=query,
        server_key=attempted.server.public,
        mix_keys=tuple(attempted.mix_keys),
        abandoned=tuple(abandoned),
    )


def abandonments(
    made: Consortium, digest: RoundDigest, mixes: Iterable[int] | None = None
) -> list[round_pb2.Abandonment]:
    """What every mix (or those at these places) states about D."""
    places = range(len(made.study.mixes)) if mixes is None else mixes
    return [sign_abandonment(digest, "too few", mix_key(made, place)) for place in places]


def committed_list(
    made: Consortium, digest: RoundDigest, reports: Iterable[bytes]
) -> channel_pb2.RoundCommitted:
    """The list of these reports, as every mix stands by it."""
    listed = b"".join(reports)
    list_hash = sha256(listed).digest()
    keys = [mix_key(made, hop) for hop in range(len(made.study.mixes))]
    signatures = [sign_commitment(digest, list_hash, key) for key in keys]
    return channel_pb2.RoundCommitted(digest=digest, list=listed, signatures=signatures)


def endings(made: Consortium, digest: RoundDigest) -> list[round_pb2.Ending]:
    """What every mix states about a batch that it made void."""
    hops = range(len(made.study.mixes))
    return [sign_voided(digest, "told to", b"", mix_key(made, hop)) for hop in hops]


def closed_round(
    made: Consortium,
    descriptor: Descriptor,
    *,
    void: bool = False,
    ended: Iterable[round_pb2.Ending] | None = None,
) -> channel_pb2.RoundClosed:
    """The server's word about a round; if void, with every mix's unless `ended` says otherwise."""
    if ended is None:
        ended = endings(made, descriptor.digest) if void else ()
    return sign_closing(descriptor.digest, ended, server_key(made), void=void)


def hostile(
    made: Consortium, asks: bytes, key: SigningKey | None = None, **fields: object
) -> round_pb2.SignedDescriptor:
    """Round 1's descriptor with some fields replaced, correctly signed unless `key` is given.

    The keys it names are those of the round that it says it is.
    """
    number, attempt = fields.get("round", 1), fields.get("attempt", 1)
    assert isinstance(number, int)
    assert isinstance(attempt, int)
    known = 1 <= number <= made.study.rounds and 1 <= attempt <= 8
    honest = round_of(made, *((number, attempt) if known else (1, 1)), query=asks).descriptor
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


def key_lists_of(
    made: Consortium, first: int, rounds: int, attempt: int = 1
) -> list[round_pb2.KeyList]:
    """What every mix states about its keys for these rounds."""
    keys = [round_of(made, first + each, attempt).mix_keys for each in range(rounds)]
    return [
        sign_list(made.study, attempt, first, [each[hop] for each in keys], mix_key(made, hop))
        for hop in range(len(made.study.mixes))
    ]


def stretch_of(
    made: Consortium, first: int = 1, rounds: int | None = None
) -> channel_pb2.StretchOpened:
    """What an honest server announces before these rounds (all of the study's)."""
    length = made.study.rounds - first + 1 if rounds is None else rounds
    keys = []
    if made.study.batching.tokens:
        issuing = token_issuer(made.study)
        keys = [issuing.public_key(first + each) for each in range(length)]
    return channel_pb2.StretchOpened(
        first_round=first, lists=key_lists_of(made, first, length), token_keys=keys
    )


def tokens_for(study: Study, request: channel_pb2.TokenRequest) -> channel_pb2.TokenReply:
    """What an honest server answers to a silo's first request."""
    issuing, first = token_issuer(study), request.first_round
    evaluated = [
        issuing.evaluate(first + place, each) if each else b""
        for place, each in enumerate(request.blinded)
    ]
    return channel_pb2.TokenReply(first_round=first, evaluated=evaluated)


def round_opened(
    made: Consortium,
    signed: round_pb2.SignedDescriptor,
    query: bytes,
    abandoned: Iterable[round_pb2.Abandonment] = (),
) -> channel_pb2.RoundOpened:
    """The message that opens a round, with the keys of the round that the descriptor says it is."""
    message = round_pb2.RoundDescriptor.FromString(signed.descriptor)
    number = message.round if 1 <= message.round <= made.study.rounds else 1
    attempt = message.attempt if 1 <= message.attempt <= 8 else 1
    attempted = round_of(made, number, attempt)
    return channel_pb2.RoundOpened(
        descriptor=signed,
        query_bytes=len(query),
        server_key=attempted.server.public,
        mix_keys=attempted.mix_keys,
        lists=key_lists_of(made, number, 1, attempt) if attempt > 1 else [],
        abandoned=abandoned,
    )


def respond(
    made: Consortium, desk: StudyDesk, signed: round_pb2.SignedDescriptor, query: bytes
) -> StoredReport:
    """What the round channel does with a message of the server, after its stretch was announced."""
    book = KeyBook(made.study)
    book.add(key_lists_of(made, 1, made.study.rounds))
    return desk.answer(
        read_round_request(round_opened(made, signed, query), query, made.study, book)
    )


def opened(made: Consortium, report: StoredReport) -> NDArray[np.int64]:
    """The integers that the server reads."""
    return decode_report(plaintext(made, report), made.study.mechanism())


def plaintext(made: Consortium, report: StoredReport) -> bytes:
    """What the server reads after every mix took its layer off and its gate away."""
    descriptor = report.descriptor
    attempted = round_of(made, descriptor.round, descriptor.attempt)
    layer = report.onion
    for hop, mix in enumerate(attempted.mixes):
        layer = open_layer(layer, mix.seal, hop, descriptor.digest)
    payload = replace(attempted, descriptor=descriptor).open_with_token(layer)
    start = TOKEN_BYTES if made.study.batching.tokens else 0
    return payload[start:]


# An independent, slow update: Python integers, one record at a time ------------------------------


def exact_mean_at_zero(data: Path, study: Study) -> list[int]:
    """The clipped gradients' sum at w = 0 over the silos' average number of records, in grid units,
    from the CSV and the documents alone.

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
    grid, records = study.mechanism().grids[0], [silo.records for silo in study.silos]
    count = sum(records) / len(records)
    return [round(entry / (unit * residual_unit * count * grid)) for entry in total]
