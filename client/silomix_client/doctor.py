"""`silomix silo doctor`: everything that must be right before a silo can answer, one by one.

Reads and connects; writes nothing and changes nothing, also beside a running silo.  Every finding
is for the silo's operator, says what was seen, and what to do about it if it is not right.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from silomix_core.study import Study
from silomix_protocol.keys import SigningKey, UnusableKey, load_node_key, read_secret
from silomix_protocol.route import ignore_environment
from silomix_protocol.tls import Identity

from silomix_client.approve import Review, review
from silomix_client.audit_check import check_chain, check_named
from silomix_client.authority_check import enrolment_of, look_at_list, question_authority
from silomix_client.config import SiloConfig
from silomix_client.entries import Approval
from silomix_client.errors import BadRecords, BudgetExhausted, SiloError
from silomix_client.findings import Finding, Surroundings, Verdict
from silomix_client.keystream import KEY_BYTES
from silomix_client.ledger import Ledger
from silomix_client.ledger_check import verify
from silomix_client.neglect import Neglect
from silomix_client.network import Network
from silomix_client.probes import (
    Answer,
    Fault,
    Target,
    ask_web,
    check_proxy,
    check_tls,
    connect,
    described,
    greet,
)
from silomix_client.snapshot import FOLDER as SNAPSHOTS
from silomix_client.snapshot import unchanged

_MB = 10**6
_LEAST_FREE, _LITTLE_FREE = 100 * _MB, 1000 * _MB
_AHEAD_S, _BEHIND_S = 4.0, 290.0  # Flower refuses a node from 5 s ahead and 305 s behind on
_NOTABLE_S = 2.0
_LAST_PART = 0.2  # of a certificate's life: it should have been renewed by then
_KEYS = ("tls.key", "sign.key", "node.key")


def examine(
    config: SiloConfig, content: bytes | None = None, machine: Surroundings | None = None
) -> Iterator[Finding]:
    """Look at everything, for the study in `content` and for all that are approved."""
    machine = machine or Surroundings()
    ignore_environment()
    yield from _keys(config)
    yield from _certificates(config, machine)
    yield from look_at_list(config, machine)
    yield from _disk(config, machine)
    approvals, findings = _budget_and_snapshots(config)
    yield from findings
    studies = [each.study for each in approvals]
    if content is not None:
        study, findings = _offered(config, content, approvals)
        yield from findings
        studies += [study] if study is not None else []
    elif not studies:
        advice = "give the study file as second argument, or approve a study first"
        yield Finding(
            Verdict.WARNING, "study", "none is approved: no server and mix to try", advice
        )
    yield from _connections(config, studies, machine)


# Keys and certificates ---------------------------------------------------------------------------


def _keys(config: SiloConfig) -> Iterator[Finding]:
    wrong = False
    for name in _KEYS:
        path = config.folder / name
        try:
            read_secret(path)
            if name == "sign.key":
                SigningKey.load(path)
            elif name == "node.key":
                load_node_key(path)
        except UnusableKey as error:
            wrong = True
            seen, _, advice = str(error).partition("; run: ")
            yield Finding(
                Verdict.FAILED, "keys", seen, advice or "put it back, or join the consortium again"
            )
    if not wrong:
        yield Finding(Verdict.OK, "keys", f"{', '.join(_KEYS)}: there, readable by you only")


def _certificates(config: SiloConfig, machine: Surroundings) -> Iterator[Finding]:
    try:
        own = x509.load_pem_x509_certificate((config.folder / "tls.crt").read_bytes())
        authority = x509.load_pem_x509_certificate((config.folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        seen = f"tls.crt or ca.crt cannot be read: {error}"
        yield Finding(Verdict.FAILED, "certificate", seen, "join the consortium again")
        return
    for certificate, name in ((own, "tls.crt"), (authority, "ca.crt")):
        yield _validity(certificate, name, machine)
    problem = _mismatch(own, authority, config)
    if problem:
        yield Finding(Verdict.FAILED, "certificate", problem, "renew it, or join again")


def _validity(certificate: x509.Certificate, name: str, machine: Surroundings) -> Finding:
    now = datetime.fromtimestamp(machine.now(), UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    until = f"{name}: valid until {end:%Y-%m-%d %H:%M} UTC"
    if now > end:
        seen = f"{name}: expired on {end:%Y-%m-%d %H:%M} UTC"
        return Finding(Verdict.FAILED, "certificate", seen, "renew it; check this machine's clock")
    if now < begin:
        seen = f"{name}: not valid before {begin:%Y-%m-%d %H:%M} UTC"
        return Finding(Verdict.FAILED, "certificate", seen, "check this machine's clock")
    if end - now < _LAST_PART * (end - begin):
        return Finding(Verdict.WARNING, "certificate", until, "renew it before then")
    return Finding(Verdict.OK, "certificate", until)


def _mismatch(own: x509.Certificate, authority: x509.Certificate, config: SiloConfig) -> str:
    names = [each.value for each in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [config.name]:
        return f"tls.crt is for {names}, silo.toml says {config.name!r}"
    try:
        own.verify_directly_issued_by(authority)
    except Exception:
        return "tls.crt was not issued by ca.crt"
    try:
        key = load_pem_private_key(read_secret(config.folder / "tls.key"), None)
    except (UnusableKey, ValueError, TypeError):
        return ""  # said among the keys
    return "" if key.public_key() == own.public_key() else "tls.key does not belong to tls.crt"


# This machine ------------------------------------------------------------------------------------


def _disk(config: SiloConfig, machine: Surroundings) -> Iterator[Finding]:
    folder = config.folder / "state"
    if not folder.is_dir():
        folder = config.folder
    if not os.access(folder, os.W_OK | os.X_OK):
        seen = f"{folder} cannot be written to"
        yield Finding(Verdict.FAILED, "disk", seen, "give it to the user that runs the silo")
        return
    free = machine.free_bytes(folder)
    seen = f"{free // _MB} MB free in {folder}"
    if free < _LEAST_FREE:
        advice = f"free at least {_LEAST_FREE // _MB} MB: without, no round can be charged"
        yield Finding(Verdict.FAILED, "disk", seen, advice)
    elif free < _LITTLE_FREE:
        yield Finding(Verdict.WARNING, "disk", seen, f"have {_LITTLE_FREE // _MB} MB free")
    else:
        yield Finding(Verdict.OK, "disk", seen)


def _budget_and_snapshots(config: SiloConfig) -> tuple[list[Approval], list[Finding]]:
    """The open studies of the ledger, and whether each can be answered."""
    if not (config.folder / "state" / "ledger.sqlite").exists():
        return [], [Finding(Verdict.OK, "budget", "nothing was spent yet: there is no ledger")]
    try:
        ledger = Ledger(config.state, config.policy)
    except SiloError as error:
        return [], [Finding(Verdict.FAILED, "budget", str(error), "put state/ back from a backup")]
    try:
        checked = check_chain(config.state)
        verify(ledger)
        check_named(ledger, checked)
        approvals = [each for each in ledger.approvals() if not each.closed]
        findings = [finding for each in approvals for finding in _approved(config, ledger, each)]
        return approvals, [*findings, *_spent(ledger)]
    except SiloError as error:
        advice = "answer nothing with it; compare with a backup and `silomix silo ledger`"
        return [], [Finding(Verdict.FAILED, "budget", str(error), advice)]
    finally:
        ledger.close()


def _approved(config: SiloConfig, ledger: Ledger, approval: Approval) -> Iterator[Finding]:
    study = approval.study
    try:
        unchanged(study.identity, approval.snapshot, config.state / SNAPSHOTS)
        yield Finding(Verdict.OK, f"data {study.short_id}", "the approved snapshot is unchanged")
    except SiloError as error:
        advice = "put state/ back from a backup, or revoke the study (silomix silo revoke)"
        yield Finding(Verdict.FAILED, f"data {study.short_id}", str(error), advice)
    following = ledger.last_round(study.identity) + 1
    if following > study.rounds:
        return
    try:
        ledger.check(approval, following)
    except SiloError as error:
        advice = "raise epsilon in policy.toml if you mean to, or revoke a study"
        yield Finding(Verdict.FAILED, f"budget {study.short_id}", str(error), advice)
    if Neglect(config.state, study.identity).stops:
        seen = "this silo stopped answering: its reports went missing"
        advice = "ask who lost them (silomix silo complaints); then silomix silo resume"
        yield Finding(Verdict.FAILED, f"reports {study.short_id}", seen, advice)


def _spent(ledger: Ledger) -> Iterator[Finding]:
    for name, budget in ledger.policy.budgets.items():
        total, target = ledger.total(name), budget.target
        of = f" of population {name}" if name else ""
        seen = (
            f"epsilon {total.epsilon():.4g}{of} spent in {total.rounds} rounds, your policy allows "
            f"{target.epsilon:g} at delta {target.delta:g}"
        )
        yield Finding(Verdict.OK, "budget", seen)


def _offered(
    config: SiloConfig, content: bytes, approvals: list[Approval]
) -> tuple[Study | None, list[Finding]]:
    """A study that may not be approved yet: could it be?"""
    try:
        study = Study.parse(content)
    except ValueError as error:
        advice = "ask the study lead for the right file"
        return None, [Finding(Verdict.FAILED, "study", f"not a study: {error}", advice)]
    if study.identity in {each.study.identity for each in approvals}:
        return None, []
    try:
        reviewed = review(config, content)
    except BadRecords as error:
        advice = "correct the data or its description in silo.toml (docs: data)"
        return study, [Finding(Verdict.FAILED, "data", str(error), advice)]
    except (SiloError, UnusableKey) as error:
        advice = "ask the study lead for a study that your policy and keys fit"
        return study, [Finding(Verdict.FAILED, "study", str(error), advice)]
    found = [Finding(Verdict.OK, "data", f"{len(reviewed.records)} people fit {study.short_id}")]
    return study, [*found, _room(config, reviewed)]


def _room(config: SiloConfig, reviewed: Review) -> Finding:
    """Whether the policy has room for all of the study; tried on a copy of nothing."""
    approval = Approval(
        study=reviewed.study,
        silo=config.name,
        snapshot=b"",
        partition=bytes(KEY_BYTES),
        population=reviewed.population,
    )
    known = config.folder / "state" / "ledger.sqlite"
    with tempfile.TemporaryDirectory() as empty:
        ledger = Ledger(config.state if known.exists() else Path(empty), config.policy)
        try:
            ledger.reserve(approval)
        except BudgetExhausted as error:
            advice = "decline the study, close another, or raise epsilon in policy.toml"
            return Finding(Verdict.FAILED, "budget", str(error), advice)
        except SiloError as error:
            return Finding(Verdict.FAILED, "study", str(error), "see `silomix silo ledger`")
        finally:
            ledger.close()
    return Finding(Verdict.OK, "budget", f"your policy has room for {reviewed.study.short_id}")


# Connections -------------------------------------------------------------------------------------


def _connections(
    config: SiloConfig, studies: Iterable[Study], machine: Surroundings
) -> Iterator[Finding]:
    targets, enrolled = _targets(config, studies), enrolment_of(config.folder)
    if not targets and enrolled is None:
        return
    if config.network.proxy is not None:
        try:
            check_proxy(config.network.proxy)
            yield Finding(Verdict.OK, "proxy", f"{config.network.proxy.address} takes connections")
        except Fault as fault:
            yield _failed(fault, "proxy")
            return
    answers: list[Answer] = []
    if enrolled is not None:
        findings, answer = question_authority(config, enrolled, machine)
        yield from findings
        answers += [answer] if answer is not None else []
    for target, study in targets:
        try:
            words, answer = _try(config, target, study)
        except Fault as fault:
            yield _failed(fault, f"{fault.step} {target.party}")
            continue
        except (OSError, UnusableKey) as error:
            yield Finding(Verdict.FAILED, f"tls {target.party}", str(error), "see keys above")
            continue
        answers.append(answer)
        yield Finding(Verdict.OK, f"connection {target.party}", words)
    yield _clock(answers, machine, time.monotonic())


def _targets(config: SiloConfig, studies: Iterable[Study]) -> list[tuple[Target, Study]]:
    """Every address that this silo dials for a study, once."""
    found = dict[tuple[str, str], tuple[Target, Study]]()
    for study in studies:
        server, mix = study.server, study.mixes[0]
        for target in (
            Target(server.name, server.fleet_address, web=True),
            _grpc(server.name, server.channel_address, config.network),
            _grpc(mix.name, mix.address, config.network),
        ):
            found.setdefault((target.party, target.address), (target, study))
    return list(found.values())


def _grpc(party: str, address: str, network: Network) -> Target:
    return Target(party, network.address(party, address), inspected=party in network.inspected)


def _try(config: SiloConfig, target: Target, study: Study) -> tuple[str, Answer]:
    network = config.network
    with connect(target, network) as stream:
        secured, inspector = check_tls(stream, target, config.folder, network)
        with secured:
            answer = ask_web(secured, target) if target.web else None
    if answer is None:
        identity = Identity.load(config.name, config.folder)
        sign_key = SigningKey.load(config.folder / "sign.key")
        answer = greet(target, study, network, identity, sign_key)
    kind = "leases" if target.web else "reports"
    if not target.web and target.party == study.server.name:
        kind = "rounds"
    return described(kind, target, network, answer, inspector), answer


def _clock(answers: list[Answer], machine: Surroundings, now: float) -> Finding:
    """Against those who told their time: the farthest counts."""
    here = machine.now()
    ahead = [here - each.clock - (now - each.asked) for each in answers if each.clock is not None]
    if not ahead:
        advice = "see the connections; compare with a clock you trust (date -u)"
        return Finding(Verdict.WARNING, "clock", "nobody answers who could tell the time", advice)
    farthest = max(ahead, key=abs)
    side = "ahead of" if farthest > 0 else "behind"
    seen = f"{abs(farthest):.0f} s {side} the others" if abs(farthest) >= 1 else "right"
    advice = "set this machine's clock by a time server (timedatectl set-ntp true)"
    if farthest > _AHEAD_S or farthest < -_BEHIND_S:
        return Finding(Verdict.FAILED, "clock", seen, advice)
    if abs(farthest) > _NOTABLE_S:
        return Finding(Verdict.WARNING, "clock", seen, advice)
    return Finding(Verdict.OK, "clock", seen)


def _failed(fault: Fault, subject: str) -> Finding:
    return Finding(Verdict.FAILED, subject, fault.seen, fault.advice)
