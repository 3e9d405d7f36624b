"""Rules of the protocol, each broken: what the searches must find.

A mutant replaces code of the product.  Where two guards stand behind each other, or one in every
party, a mutant takes away all of them (`and`), or its world has nobody else who keeps the rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from exploration.vocabulary import Evil, Vocabulary
from silomix_client.ledger.outcome_rules import ReportOutcome, Tally
from silomix_client.ledger.study_account import StudyAccount
from silomix_client.random_stream import answer_streams
from silomix_client.rounds import answer, inclusion
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_protocol.host.durable import note
from silomix_server.errors import MixFailed
from silomix_server.rounds.play_rounds import RoundPlayer as ServerRounds
from silomix_server.rounds.round_state import RoundState
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.round_channel import RoundChannel
from silomix_server.study.journal import Journal
from silomix_shuffler.batch import Batch, State
from silomix_shuffler.errors import GateClosed
from silomix_shuffler.round.failed_rounds import FailedRounds
from silomix_shuffler.storage import store
from silomix_shuffler.storage.store import Store, _rows

Change = tuple[Any, str, Any]  # of what, which name, its replacement


@dataclass(frozen=True, slots=True)
class Mutant:
    """Broken code, the world in which it shows, and what is then said to be wrong."""

    changes: tuple[Change, ...]
    evil: Evil
    may: Vocabulary
    wrong: str


@contextmanager
def changed(changes: tuple[Change, ...]) -> Iterator[None]:
    real = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, replacement in changes:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, before in real:
            setattr(owner, name, before)


def _nothing(*_: Any, **__: Any) -> None: ...


async def _nothing_later(*_: Any, **__: Any) -> None: ...


# Mixes --------------------------------------------------------------------------------------------


def _release_for_k(batch: Batch, list_hash: bytes, confirmed: frozenset[str]) -> None:
    if len(confirmed) < batch.descriptor.minimum_batch:
        raise GateClosed("too few")
    if batch.state is State.FORWARDED:
        batch.state = State.RELEASED


def _release_without_senders(batch: Batch, list_hash: bytes, confirmed: frozenset[str]) -> None:
    if len(confirmed) < batch.needed or list_hash != batch.committed:
        raise GateClosed("too few")
    if batch.state is State.FORWARDED:
        batch.state = State.RELEASED


_commit = Batch.commit


def _commit_again(batch: Batch, listed: bytes) -> None:
    if batch.state is State.FORWARDED:
        batch.committed = b""
    _commit(batch, listed)


def _abort_anything(batch: Batch) -> None:
    batch.state = State.ABORTED


def _void_nothing(batch: Batch) -> None:
    if batch.state is not State.FORWARDED:
        batch.abort()


def _add_noted(mix: Store, entries: Any) -> None:
    with note(mix._database):
        mix._database.executemany("INSERT INTO reports VALUES (?, ?, ?, ?, ?, ?)", _rows(entries))


def _void_as_it_is_noted(mix: Store, digest: bytes) -> tuple[str, bool] | None:
    known = mix.known(digest)  # type: ignore[arg-type]
    return (known[1], False) if known is not None and known[0] is State.VOIDED else None


# Silos --------------------------------------------------------------------------------------------


def _confirm_anything(known: ReportOutcome, list_hash: bytes, *, included: bool) -> ReportOutcome:
    return ReportOutcome(known.receipt, list_hash, True, known.closing, known.ended)


def _confirm_any_number(known: ReportOutcome, list_hash: bytes, *, included: bool) -> ReportOutcome:
    return ReportOutcome(known.receipt, list_hash, included, known.closing, known.ended)


def _seal_again_for_anything(earlier: Any, known: ReportOutcome, asked: Any) -> bool:
    return bool(asked.digest != earlier.digest)


_record = StudyAccount._record


def _record_again(account: StudyAccount, descriptor: Any, cost: Any, now: Any) -> Any:
    account._database.execute("DELETE FROM answers WHERE round = ?", (descriptor.round,))
    return _record(account, descriptor, cost, now)


def _token_once_more(desk: StudyDesk, descriptor: Any) -> bytes:
    return b"\1" * 96


_honest = Vocabulary(power=False)


def _noise_again(desk: StudyDesk, stored: Any, asked: Any) -> Any:
    """The stored round, computed anew."""
    question = desk._reader.read(asked.descriptor, asked.query)
    report = desk._report(question, answer_streams(desk._approval.partition, b"anew"), None)
    sealed = desk._seal(stored.payload[: -len(report)] + report, asked)
    desk._account.replace(stored.descriptor.digest, sealed)
    return sealed


_last = Vocabulary(colluding=2)
_attempts = Vocabulary(colluding=2, attempts=2, power=False)
_alone = Vocabulary(colluding=2, power=False)

MIX_MUTANTS: dict[str, Mutant] = {
    "a key for k confirmations": Mutant(
        ((Batch, "release", _release_for_k),), Evil.FIRST, _honest, "without enough confirmations"
    ),
    "a key without its senders' confirmations": Mutant(
        ((Batch, "release", _release_without_senders),), Evil.LAST, _alone, "silo did not confirm"
    ),
    "a list of any length": Mutant(
        ((Batch, "_fits", lambda *_: True),), Evil.LAST, _alone, "cannot be what it forwarded"
    ),
    "any number of lists": Mutant(
        ((Batch, "commit", _commit_again),), Evil.LAST, _alone, "signed two lists"
    ),
    "an abandonment of what left": Mutant(
        ((Batch, "abort", _abort_anything),), Evil.LAST, _alone, "abandoned what it had forwarded"
    ),
    "void destroys nothing, in memory and on disk": Mutant(
        ((Batch, "void", _void_nothing), (FailedRounds, "_destroy", _nothing_later)),
        Evil.LAST,
        _alone,
        "gave the key of a round that it had signed to be void",
    ),
    "void destroys nothing on disk": Mutant(
        ((Store, "voided", _nothing),), Evil.LAST, _alone, "that it had signed to be void"
    ),
    "a void round that is noted, not synced": Mutant(
        ((Store, "void_for_good", _void_as_it_is_noted),),
        Evil.FIRST,
        Vocabulary(colluding=2, expiry=True),
        "that it had signed to be void",
    ),
    "no doubt after a power cut": Mutant(
        ((Store, "doubt", _nothing),), Evil.FIRST, _last, "signed without doubt"
    ),
    "a further attempt of what left": Mutant(
        ((store, "was_aborted", lambda *_: True),), Evil.LAST, _attempts, "opened a round again"
    ),
    "a receipt before the report is on disk": Mutant(
        ((Store, "add", _add_noted),), Evil.LAST, _last, "less than it gave receipts for"
    ),
    "a list signed before it is on disk": Mutant(
        ((Store, "committed", _nothing),), Evil.LAST, _alone, "signed two lists"
    ),
    "a batch that leaves before that is on disk": Mutant(
        ((Store, "forwarded", _nothing),), Evil.LAST, _alone, "abandoned what it had forwarded"
    ),
}
SILO_MUTANTS: dict[str, Mutant] = {
    "a list that lacks the report is confirmed": Mutant(
        ((ReportOutcome, "listed", _confirm_anything),), Evil.BOTH, _alone, "that it is not in"
    ),
    "two lists are confirmed": Mutant(
        ((ReportOutcome, "listed", _confirm_any_number),), Evil.BOTH, _alone, "confirmed two lists"
    ),
    "a list that not every mix signed is confirmed": Mutant(
        ((inclusion, "check_committed", _nothing),), Evil.LAST, _alone, "not every honest mix"
    ),
    "no complaint": Mutant(
        ((Inclusion, "_complain", lambda *_: []),), Evil.BOTH, _alone, "neither confirmed"
    ),
    "never stops": Mutant(
        ((Tally, "stops", property(lambda _: False)),),
        Evil.BOTH,
        Vocabulary(colluding=2, rounds=3, power=False, few_lists=True),
        "after two of its reports were missing",
    ),
    "sealed again for any question": Mutant(
        ((answer, "is_sealed_again", _seal_again_for_anything),),
        Evil.LAST,
        Vocabulary(colluding=2, attempts=2, variants=2, power=False),
        "for another question",
    ),
    "sealed again without every mix's word": Mutant(
        ((answer, "check_abandoned", _nothing),), Evil.LAST, _attempts, "every mix had abandoned"
    ),
    "the stored report is not looked up, and its round is new to the ledger": Mutant(
        (
            (StudyAccount, "stored", _nothing),
            (StudyAccount, "last_round", lambda *_: 0),
            (StudyAccount, "_record", _record_again),
            (StudyDesk, "_token", _token_once_more),
            (StudyDesk, "_check_new", _nothing),
        ),
        Evil.BOTH,
        _alone,
        "charged a round twice",
    ),
    "an answered round is noised again": Mutant(
        ((StudyDesk, "_again", _noise_again),), Evil.BOTH, _alone, "noised a round twice"
    ),
}


# The coordinator ----------------------------------------------------------------------------------

_rounds = Journal.rounds


def _closed_rounds(journal: Journal) -> Any:
    """Without the one that was open when the process died."""
    rounds = _rounds(journal)
    row = journal._database.execute(
        "SELECT closed FROM attempts JOIN settlements USING (digest) WHERE round = ? "
        "ORDER BY attempt DESC",
        (len(rounds),),
    ).fetchone()
    return rounds[:-1] if row == (None,) else rounds


_close_round = RoundChannel.close_round


def _close_at_once(channel: RoundChannel, outcome: Any) -> None:
    _close_round(channel, outcome)
    channel.journalled()


async def _none_left(*_: Any) -> list[Any]:
    return []


_abandon = ServerRounds._abandon


async def _abandon_if_they_like(rounds: ServerRounds, state: RoundState) -> None:
    with suppress(MixFailed):
        await _abandon(rounds, state)


_may_try = RoundState.may_try.fget  # type: ignore[attr-defined]


def _may_try_when_started(state: RoundState) -> bool:
    return len(state.tried) == 1 > state._tries or bool(_may_try(state))


COORDINATOR_MUTANTS: dict[str, tuple[tuple[Change, ...], str]] = {
    "a round that was open is asked again, with or without the mixes' word": (
        (
            (Journal, "rounds", _closed_rounds),
            (ServerRounds, "_abandon", _abandon_if_they_like),
            (RoundState, "may_try", property(_may_try_when_started)),
        ),
        "although a batch of it had come",
    ),
    "that it was used is told before the journal is on disk": (
        ((RoundChannel, "close_round", _close_at_once),),
        "do not agree whether",
    ),
    "what was left is not settled, and a silo answers without knowing": (
        (
            (AttemptOutcomes, "settle_left", _none_left),
            (answer, "may_answer", lambda *_, **__: True),
        ),
        "did not know whether",
    ),
    "what was left is not settled": (
        ((AttemptOutcomes, "settle_left", _none_left),),
        "did not go well",
    ),
}
