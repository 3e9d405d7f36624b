"""`silomix silo doctor`: everything that must be right before a silo can answer, one by one.

Reads and connects; writes nothing and changes nothing, also beside a running silo.  Every finding
is for the silo's operator, says what was seen, and what to do about it if it is not right.
"""

import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study
from silomix_proto import ledger_pb2
from silomix_protocol.connections.route import ignore_environment
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host.free_disk import LEAST_FREE_BYTES
from silomix_protocol.host.state_folder import state_of
from silomix_protocol.keys import SigningKey, UnusableKey, load_node_key, read_secret

from silomix_client.approval.approve import Review, review
from silomix_client.audit_log.verify_log import at_one_moment, check_chain, check_named
from silomix_client.config.silo_config import SiloConfig
from silomix_client.doctor.authority_checks import enrolment_of, look_at_list, question_authority
from silomix_client.doctor.finding import Finding, Severity, Surroundings
from silomix_client.doctor.ledger_height import look_at_heights
from silomix_client.doctor.probes import (
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
from silomix_client.errors import BadRecords, BudgetExhausted, SiloBusy, SiloError
from silomix_client.ledger.database import has_ledger
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger, ledger_or_empty
from silomix_client.ledger.verify_ledger import snapshot_problem, verify
from silomix_client.network.outbound import OutboundNetwork
from silomix_client.random_stream import KEY_BYTES
from silomix_client.rounds.stop_rule import StopRule

_MB = 10**6
_LITTLE_FREE = 1000 * _MB
_AHEAD_S, _BEHIND_S = 4.0, 290.0  # Flower refuses a node from 5 s ahead and 305 s behind on
_NOTABLE_S = 2.0
_LAST_PART = 0.2  # of a certificate's life: it should have been renewed by then
_KEYS = ("tls.key", "sign.key", "node.key")


def examine(
    config: SiloConfig, content: bytes | None = None, machine: Surroundings | None = None
) -> Iterator[Finding]:
    """Examine everything, for the study in `content` and for all that are approved."""
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
            Severity.WARNING, "study", "none is approved: no server and mix to try", advice
        )
    heights: list[tuple[str, ledger_pb2.LedgerHeight]] = []
    yield from _connections(config, studies, machine, heights)
    yield from look_at_heights(config, heights)


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
                Severity.FAILED, "keys", seen, advice or "put it back, or join the consortium again"
            )
    if not wrong:
        yield Finding(Severity.OK, "keys", f"{', '.join(_KEYS)}: there, readable by you only")


def _certificates(config: SiloConfig, machine: Surroundings) -> Iterator[Finding]:
    try:
        own = x509.load_pem_x509_certificate((config.folder / "tls.crt").read_bytes())
        authority = x509.load_pem_x509_certificate((config.folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        seen = f"tls.crt or ca.crt cannot be read: {error}"
        yield Finding(Severity.FAILED, "certificate", seen, "join the consortium again")
        return
    for certificate, name in ((own, "tls.crt"), (authority, "ca.crt")):
        yield _validity(certificate, name, machine)
    problem = _mismatch(own, authority, config)
    if problem:
        yield Finding(Severity.FAILED, "certificate", problem, "renew it, or join again")


def _validity(certificate: x509.Certificate, name: str, machine: Surroundings) -> Finding:
    now = datetime.fromtimestamp(machine.now(), UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    until = f"{name}: valid until {end:%Y-%m-%d %H:%M} UTC"
    if now > end:
        seen = f"{name}: expired on {end:%Y-%m-%d %H:%M} UTC"
        return Finding(Severity.FAILED, "certificate", seen, "renew it; check this machine's clock")
    if now < begin:
        seen = f"{name}: not valid before {begin:%Y-%m-%d %H:%M} UTC"
        return Finding(Severity.FAILED, "certificate", seen, "check this machine's clock")
    if end - now < _LAST_PART * (end - begin):
        return Finding(Severity.WARNING, "certificate", until, "renew it before then")
    return Finding(Severity.OK, "certificate", until)


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
        return ""  # a finding about the keys says it
    return "" if key.public_key() == own.public_key() else "tls.key does not belong to tls.crt"


# This machine ------------------------------------------------------------------------------------


def _disk(config: SiloConfig, machine: Surroundings) -> Iterator[Finding]:
    folder = state_of(config.folder)
    if not folder.is_dir():
        folder = config.folder
    if not os.access(folder, os.W_OK | os.X_OK):
        seen = f"{folder} cannot be written to"
        yield Finding(Severity.FAILED, "disk", seen, "give it to the user that runs the silo")
        return
    free = machine.free_bytes(folder)
    seen = f"{free // _MB} MB free in {folder}"
    if free < LEAST_FREE_BYTES:
        advice = f"free at least {LEAST_FREE_BYTES // _MB} MB: below, no round is answered"
        yield Finding(Severity.FAILED, "disk", seen, advice)
    elif free < _LITTLE_FREE:
        yield Finding(Severity.WARNING, "disk", seen, f"have {_LITTLE_FREE // _MB} MB free")
    else:
        yield Finding(Severity.OK, "disk", seen)


def _budget_and_snapshots(config: SiloConfig) -> tuple[list[Approval], list[Finding]]:
    """The open studies of the ledger, and findings on whether each can be answered."""
    if not has_ledger(state_of(config.folder)):
        return [], [Finding(Severity.OK, "budget", "nothing was spent yet: there is no ledger")]
    try:
        ledger = Ledger(config.state, config.policy)
    except SiloError as error:
        return [], [Finding(Severity.FAILED, "budget", str(error), "put state/ back from a backup")]
    try:
        with at_one_moment(config.state, ledger) as end:  # a silo may be answering
            checked = check_chain(config.state, end=end)
            verify(ledger)
            check_named(ledger, checked)
            approvals = [each for each in ledger.approvals() if not each.closed]
            room = [finding for each in approvals for finding in _next_round(config, ledger, each)]
            room += _spent(ledger)
        data = [finding for each in approvals for finding in _frozen(ledger, each)]
        return approvals, [*data, *room]
    except SiloBusy as error:
        return [], [Finding(Severity.WARNING, "budget", str(error), "look, then ask again")]
    except SiloError as error:
        advice = "answer nothing with it; compare with a backup and `silomix silo ledger`"
        return [], [Finding(Severity.FAILED, "budget", str(error), advice)]
    finally:
        ledger.close()


def _frozen(ledger: Ledger, approval: Approval) -> Iterator[Finding]:
    subject = f"data {approval.study.short_id}"
    if problem := snapshot_problem(ledger, approval):
        advice = "put state/ back from a backup, or revoke the study (silomix silo revoke)"
        yield Finding(Severity.FAILED, subject, problem, advice)
    else:
        yield Finding(Severity.OK, subject, "the approved snapshot is unchanged")


def _next_round(config: SiloConfig, ledger: Ledger, approval: Approval) -> Iterator[Finding]:
    study = approval.study
    following = ledger.account(study).last_round() + 1
    if following > study.rounds:
        return
    try:
        ledger.account(study).check(approval, following)
    except SiloError as error:
        advice = "raise epsilon in policy.toml if you mean to, or revoke a study"
        yield Finding(Severity.FAILED, f"budget {study.short_id}", str(error), advice)
    if StopRule(config.state, study.identity).stops:
        seen = "this silo stopped answering: its reports went missing"
        advice = "ask who lost them (silomix silo complaints); then silomix silo resume"
        yield Finding(Severity.FAILED, f"reports {study.short_id}", seen, advice)


def _spent(ledger: Ledger) -> Iterator[Finding]:
    for name, budget in ledger.policy.budgets.items():
        total, target = ledger.total(name), budget.target
        of = f" of population {name}" if name else ""
        seen = (
            f"epsilon {total.epsilon():.4g}{of} spent in {total.rounds} rounds, your policy allows "
            f"{target.epsilon:g} at delta {target.delta:g}"
        )
        yield Finding(Severity.OK, "budget", seen)


def _offered(
    config: SiloConfig, content: bytes, approvals: list[Approval]
) -> tuple[Study | None, list[Finding]]:
    """The study, if it is valid and not approved yet, and findings on whether it could be."""
    try:
        study = parse_study(content)
    except ValueError as error:
        advice = "ask the study lead for the right file"
        return None, [Finding(Severity.FAILED, "study", f"not a study: {error}", advice)]
    if study.identity in {each.study.identity for each in approvals}:
        return None, []
    try:
        reviewed = review(config, content)
    except BadRecords as error:
        advice = "correct the data or its description in silo.toml (docs: data)"
        return study, [Finding(Severity.FAILED, "data", str(error), advice)]
    except (SiloError, UnusableKey) as error:
        advice = "ask the study lead for a study that your policy and keys fit"
        return study, [Finding(Severity.FAILED, "study", str(error), advice)]
    found = [Finding(Severity.OK, "data", f"{len(reviewed.records)} people fit {study.short_id}")]
    return study, [*found, _room(config, reviewed)]


def _room(config: SiloConfig, reviewed: Review) -> Finding:
    """Find whether the policy has room for all of the study; nothing is reserved."""
    approval = Approval(
        study=reviewed.study,
        silo=config.name,
        snapshot=b"",
        partition=bytes(KEY_BYTES),
        population=reviewed.population,
    )
    try:
        with ledger_or_empty(config) as ledger:
            ledger.check_new(approval)
    except BudgetExhausted as error:
        advice = "decline the study, close another, or raise epsilon in policy.toml"
        return Finding(Severity.FAILED, "budget", str(error), advice)
    except SiloError as error:
        return Finding(Severity.FAILED, "study", str(error), "see `silomix silo ledger`")
    return Finding(Severity.OK, "budget", f"your policy has room for {reviewed.study.short_id}")


# Connections -------------------------------------------------------------------------------------


def _connections(
    config: SiloConfig,
    studies: Iterable[Study],
    machine: Surroundings,
    heights: list[tuple[str, ledger_pb2.LedgerHeight]],
) -> Iterator[Finding]:
    """Try every address that is needed; ledger heights that are shown go into `heights`."""
    targets, enrolled = _targets(config, studies), enrolment_of(config.folder)
    if not targets and enrolled is None:
        return
    if config.network.proxy is not None:
        try:
            check_proxy(config.network.proxy)
            yield Finding(Severity.OK, "proxy", f"{config.network.proxy.address} takes connections")
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
            yield Finding(Severity.FAILED, f"tls {target.party}", str(error), "see keys above")
            continue
        answers.append(answer)
        if answer.height is not None:
            heights.append((target.party, answer.height))
        yield Finding(Severity.OK, f"connection {target.party}", words)
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


def _grpc(party: str, address: str, network: OutboundNetwork) -> Target:
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
    """Compare this machine's clock with those that were told: the farthest counts."""
    here = machine.now()
    ahead = [here - each.clock - (now - each.asked) for each in answers if each.clock is not None]
    if not ahead:
        advice = "see the connections; compare with a clock you trust (date -u)"
        return Finding(Severity.WARNING, "clock", "nobody answers who could tell the time", advice)
    farthest = max(ahead, key=abs)
    side = "ahead of" if farthest > 0 else "behind"
    seen = f"{abs(farthest):.0f} s {side} the others" if abs(farthest) >= 1 else "right"
    advice = "set this machine's clock by a time server (timedatectl set-ntp true)"
    if farthest > _AHEAD_S or farthest < -_BEHIND_S:
        return Finding(Severity.FAILED, "clock", seen, advice)
    if abs(farthest) > _NOTABLE_S:
        return Finding(Severity.WARNING, "clock", seen, advice)
    return Finding(Severity.OK, "clock", seen)


def _failed(fault: Fault, subject: str) -> Finding:
    return Finding(Severity.FAILED, subject, fault.seen, fault.advice)
