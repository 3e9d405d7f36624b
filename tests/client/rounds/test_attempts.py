"""A round asked once more: the same bytes, or the same payload sealed again, or nothing at all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import RefusedQuery
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import NOTHING
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.round_request import RoundRequest, read_round_request
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.descriptor import AttemptKeys, issue
from silomix_protocol.rounds.round_keys import KeyBook, RefusedKeys
from silomix_protocol.rounds.statements import sign_abandonment
from support.silos import (
    NOW,
    abandonments,
    approved_silo,
    asked,
    key_lists_of,
    mix_key,
    open_desk,
    open_ledger,
    opened,
    query_at,
    round_of,
    round_opened,
    server_key,
    written,
)

LOW_ORDER = bytes(32)  # the X25519 point whose products are all zero


@pytest.fixture
def config(consortium: Consortium) -> SiloConfig:
    return approved_silo(consortium)


@pytest.fixture
def ledger(config: SiloConfig) -> Iterator[Ledger]:
    ledger = open_ledger(config)
    yield ledger
    ledger.close()


@pytest.fixture
def desk(consortium: Consortium, config: SiloConfig, ledger: Ledger) -> StudyDesk:
    return open_desk(config, consortium.study, ledger)


@pytest.fixture
def first(consortium: Consortium, desk: StudyDesk) -> StoredReport:
    """Round 1, answered at its first attempt."""
    return desk.answer(asked(consortium, 1))


def second(made: Consortium, **changes: object) -> RoundRequest:
    """The second attempt of round 1, after every mix abandoned the first."""
    earlier = asked(made, 1).descriptor.digest
    honest = asked(made, 1, attempt=2, abandoned=abandonments(made, earlier))
    return replace(honest, **changes)


# Sealed again ------------------------------------------------------------------------------------


def test_after_every_mix_abandoned_it_a_payload_is_sealed_again_and_nothing_is_charged(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk, first: StoredReport
) -> None:
    question = second(consortium)
    again = desk.answer(question)
    assert again.descriptor == question.descriptor
    assert again.payload == first.payload
    assert again.onion != first.onion
    assert not set(again.trail) & set(first.trail)
    assert opened(consortium, again).tolist() == opened(consortium, first).tolist()
    assert ledger.total().rounds == 1
    assert verify(ledger).entries == 2
    assert desk.answer(question) == again  # and from now on, those bytes
    other = open_ledger(config)
    assert other.account(consortium.study).stored(1) == again
    other.close()


def test_attempts_may_be_skipped_and_each_abandonment_counts_for_its_own_attempt(
    consortium: Consortium, ledger: Ledger, desk: StudyDesk, first: StoredReport
) -> None:
    """The silo missed attempt 2; statements about it are there too, and do no harm."""
    between = asked(consortium, 1, attempt=2).descriptor.digest
    every = [
        *abandonments(consortium, first.descriptor.digest),
        *abandonments(consortium, between),
    ]
    third = desk.answer(asked(consortium, 1, attempt=3, abandoned=every))
    assert (third.descriptor.attempt, third.payload) == (3, first.payload)
    assert ledger.total().rounds == 1


def test_the_first_attempt_is_over_when_the_second_was_sealed(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    desk.answer(second(consortium))
    before = written(config)
    with pytest.raises(RefusedQuery, match="without being a later attempt"):
        desk.answer(asked(consortium, 1))
    assert written(config) == before


def test_a_later_attempt_of_a_round_that_was_never_answered_needs_no_statements(
    consortium: Consortium, ledger: Ledger, desk: StudyDesk
) -> None:
    report = desk.answer(asked(consortium, 1, attempt=4))
    assert report.descriptor.attempt == 4
    assert ledger.total().rounds == 1


def test_what_is_known_of_the_first_attempt_does_not_belong_to_the_second(
    consortium: Consortium, ledger: Ledger, desk: StudyDesk, first: StoredReport
) -> None:
    account = ledger.account(consortium.study)
    receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.ACCEPTED)
    account.note_receipt(first.descriptor.digest, receipt)
    again = desk.answer(second(consortium))
    assert account.outcome(again.descriptor.digest) == NOTHING


def test_a_report_that_was_in_a_list_is_not_sealed_again(
    consortium: Consortium,
    config: SiloConfig,
    ledger: Ledger,
    desk: StudyDesk,
    first: StoredReport,
) -> None:
    digest = first.descriptor.digest
    seen = NOTHING.listed(bytes(32), included=True)
    ledger.account(consortium.study).note_outcome(digest, seen)
    before = written(config)
    with pytest.raises(RefusedQuery, match="had come out"):
        desk.answer(second(consortium))
    assert written(config) == before


# Refused -----------------------------------------------------------------------------------------


def forged(made: Consortium) -> list[round_pb2.Abandonment]:
    """Every statement by the first mix, under everybody's place."""
    digest = asked(made, 1).descriptor.digest
    return abandonments(made, digest, [0] * len(made.mixes))


def unsigned(made: Consortium) -> list[round_pb2.Abandonment]:
    statements = abandonments(made, asked(made, 1).descriptor.digest)
    statements[-1].signature = b""
    return statements


def reworded(made: Consortium) -> list[round_pb2.Abandonment]:
    statements = abandonments(made, asked(made, 1).descriptor.digest)
    statements[0].reason = "another reason"
    return statements


def by_the_server(made: Consortium) -> list[round_pb2.Abandonment]:
    digest = asked(made, 1).descriptor.digest
    return [sign_abandonment(digest, "too few", server_key(made)) for _ in made.mixes]


STATEMENTS: dict[str, Callable[[Consortium], list[round_pb2.Abandonment]]] = {
    "none": lambda made: [],
    "one-missing": lambda made: abandonments(made, asked(made, 1).descriptor.digest, [0]),
    "the-other-missing": lambda made: abandonments(made, asked(made, 1).descriptor.digest, [1]),
    "one-twice": forged,
    "in-another-order": lambda made: abandonments(made, asked(made, 1).descriptor.digest, [1, 0]),
    "of-another-D": lambda made: abandonments(made, asked(made, 2).descriptor.digest),
    "of-this-D": lambda made: abandonments(made, asked(made, 1, attempt=2).descriptor.digest),
    "unsigned": unsigned,
    "reworded": reworded,
    "by-the-server": by_the_server,
}


@pytest.mark.parametrize("statements", STATEMENTS.values(), ids=STATEMENTS)
def test_without_the_statement_of_every_mix_about_this_very_attempt_nothing_is_sealed_again(
    consortium: Consortium,
    config: SiloConfig,
    desk: StudyDesk,
    first: StoredReport,
    statements: Callable[[Consortium], list[round_pb2.Abandonment]],
) -> None:
    before = written(config)
    question = asked(consortium, 1, attempt=2, abandoned=statements(consortium))
    with pytest.raises(RefusedQuery, match="round 1 was asked again: "):
        desk.answer(question)
    assert written(config) == before
    assert desk.answer(asked(consortium, 1)) == first


def test_a_statement_of_another_party_s_key_is_none(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    digest = first.descriptor.digest
    for signer in (SigningKey.generate(), SigningKey.load(config.folder / "sign.key")):
        statements = [
            sign_abandonment(digest, "too few", mix_key(consortium, 0)),
            sign_abandonment(digest, "too few", signer),
        ]
        with pytest.raises(RefusedQuery, match="signature"):
            desk.answer(second(consortium, abandoned=tuple(statements)))


def test_another_query_is_refused_whoever_abandoned_what(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    before = written(config)
    statements = abandonments(consortium, first.descriptor.digest)
    with pytest.raises(RefusedQuery, match="asked again with another query"):
        desk.answer(asked(consortium, 1, [1.0, 0.0, 0.0], attempt=2, abandoned=statements))
    assert written(config) == before


def test_the_same_attempt_under_another_descriptor_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    """Other keys: the same question, for another batch."""
    before = written(config)
    statements = abandonments(consortium, first.descriptor.digest)
    question = asked(consortium, 1, variant=b"other keys", abandoned=statements)
    with pytest.raises(RefusedQuery, match="without being a later attempt"):
        desk.answer(question)
    assert written(config) == before


def test_a_later_attempt_with_another_token_key_is_refused(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    """The token is in the payload; another key would single this silo out."""
    honest = second(consortium)
    keys = AttemptKeys(honest.descriptor.server_key, honest.descriptor.mix_keys, bytes(32))
    other = issue(consortium.study, 1, 2, honest.query, keys, server_key(consortium))
    before = written(config)
    with pytest.raises(RefusedQuery, match="another token key"):
        desk.answer(replace(honest, descriptor=other))
    assert written(config) == before


def test_a_round_that_is_over_is_not_sealed_again(
    consortium: Consortium, config: SiloConfig, desk: StudyDesk, first: StoredReport
) -> None:
    desk.answer(asked(consortium, 2))
    before = written(config)
    with pytest.raises(RefusedQuery, match="no longer kept"):
        desk.answer(second(consortium))
    assert written(config) == before


def test_a_closed_study_seals_nothing_again(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk, first: StoredReport
) -> None:
    ledger.close_study(consortium.study.identity, NOW)
    before = written(config)
    with pytest.raises(RefusedQuery, match="no longer kept"):
        desk.answer(second(consortium))
    assert written(config) == before
    assert ledger.account(consortium.study).last_report() is None
    assert ledger.account(consortium.study).rounds_with_token() == set()


def test_of_two_processes_that_seal_again_one_succeeds(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk, first: StoredReport
) -> None:
    """The loser's bytes, were they sent, would be a second onion of one payload."""
    again = desk.answer(second(consortium))
    late = replace(again, onion=b"other bytes")
    with pytest.raises(RefusedQuery, match="no longer kept"):
        ledger.account(consortium.study).replace(first.descriptor.digest, late)
    assert ledger.account(consortium.study).stored(1) == again


# Keys --------------------------------------------------------------------------------------------


def unusable(made: Consortium, attempt: int, key: str) -> RoundRequest:
    """A round, correctly described and signed, with one key that nothing can be sealed to."""
    attempted = round_of(made, 1, attempt)
    server, mixes = attempted.server.public, attempted.mix_keys
    if key == "server":
        server = server[:-32] + LOW_ORDER
    else:
        part = "seal" if key == "mix" else "release"
        setattr(mixes[1], part, getattr(mixes[1], part)[:-32] + LOW_ORDER)
    return replace(
        second(made) if attempt == 2 else asked(made, 1), server_key=server, mix_keys=mixes
    )


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("key", ["server", "mix", "release"])
def test_a_key_of_low_order_is_refused_before_anything_is_charged_or_stored(
    consortium: Consortium,
    config: SiloConfig,
    ledger: Ledger,
    desk: StudyDesk,
    key: str,
    attempt: int,
) -> None:
    if attempt == 2:
        desk.answer(asked(consortium, 1))
    before = written(config)
    with pytest.raises(RefusedQuery, match="a sealing key of this round is not one"):
        desk.answer(unusable(consortium, attempt, key))
    assert written(config) == before


def message(made: Consortium, attempt: int = 1) -> channel_pb2.RoundOpened:
    signed = round_of(made, 1, attempt).descriptor.to_wire()
    return round_opened(made, signed, query_at([0.0, 0.0, 0.0]))


def checked(
    made: Consortium, opened: channel_pb2.RoundOpened, *, vouched: bool = True
) -> RoundRequest:
    book = KeyBook(made.study)
    if vouched:
        book.add(key_lists_of(made, 1, 5))
    return read_round_request(opened, query_at([0.0, 0.0, 0.0]), made.study, book)


def test_an_honest_message_is_a_round(consortium: Consortium) -> None:
    for attempt in (1, 2):
        honest = asked(consortium, 1, attempt=attempt)
        assert checked(consortium, message(consortium, attempt)) == honest


@pytest.mark.parametrize("server_key", [b"", bytes(32), "another", "longer"])
def test_a_server_key_that_the_descriptor_does_not_name_is_refused(
    consortium: Consortium, server_key: bytes | str
) -> None:
    opened = message(consortium)
    another = round_of(consortium, 2).server.public
    given = {"another": another, "longer": opened.server_key + b"\0"}
    opened.server_key = server_key if isinstance(server_key, bytes) else given[server_key]
    with pytest.raises(RefusedQuery, match="the server's key is not the one"):
        checked(consortium, opened)


def test_a_server_key_that_is_none_is_refused_though_the_descriptor_names_it(
    consortium: Consortium,
) -> None:
    honest = round_of(consortium, 1).descriptor
    keys = AttemptKeys(sha256(b"short").digest(), honest.mix_keys, honest.token_key)
    query = query_at([0.0, 0.0, 0.0])
    signed = issue(consortium.study, 1, 1, query, keys, server_key(consortium)).to_wire()
    opened = round_opened(consortium, signed, query)
    opened.server_key = b"short"
    with pytest.raises(RefusedQuery, match="not a sealing key"):
        checked(consortium, opened)


def test_mix_keys_that_the_descriptor_does_not_name_are_refused(consortium: Consortium) -> None:
    honest, others = message(consortium), round_of(consortium, 2).mix_keys
    for keys in ([], others, list(honest.mix_keys)[::-1], [*honest.mix_keys, others[0]]):
        opened = message(consortium)
        del opened.mix_keys[:]
        opened.mix_keys.extend(keys)
        with pytest.raises(RefusedKeys, match="not those that the descriptor names"):
            checked(consortium, opened)


def test_mix_keys_that_no_mix_vouched_for_are_refused(consortium: Consortium) -> None:
    """The server made them itself: it could open every layer."""
    with pytest.raises(RefusedKeys, match="did not vouch"):
        checked(consortium, message(consortium), vouched=False)


def test_a_later_attempt_whose_keys_no_mix_vouched_for_is_refused(consortium: Consortium) -> None:
    opened = message(consortium, 2)
    del opened.lists[:]
    with pytest.raises(RefusedKeys, match="one key list of every mix"):
        checked(consortium, opened)
    opened = message(consortium, 2)
    opened.lists[1].signature = opened.lists[0].signature
    with pytest.raises(ForgedSignature):
        checked(consortium, opened)


@pytest.mark.parametrize(("first", "rounds", "attempt"), [(1, 1, 3), (2, 1, 2), (1, 2, 2)])
def test_key_lists_of_another_attempt_or_round_are_refused(
    consortium: Consortium, first: int, rounds: int, attempt: int
) -> None:
    opened = message(consortium, 2)
    del opened.lists[:]
    opened.lists.extend(key_lists_of(consortium, first, rounds, attempt))
    with pytest.raises(RefusedQuery, match="not for this attempt"):
        checked(consortium, opened)


def test_a_first_attempt_that_speaks_of_earlier_ones_is_refused(consortium: Consortium) -> None:
    for field in ("lists", "abandoned"):
        opened = message(consortium)
        if field == "lists":
            opened.lists.extend(key_lists_of(consortium, 1, 1))
        else:
            opened.abandoned.extend(
                abandonments(consortium, asked(consortium, 2).descriptor.digest)
            )
        with pytest.raises(RefusedQuery, match="no earlier one"):
            checked(consortium, opened)


def test_stored_files_of_earlier_attempts_are_gone(
    consortium: Consortium,
    config: SiloConfig,
    desk: StudyDesk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("silomix_client.ledger.reports._LARGEST_ROW", 10)
    desk.answer(asked(consortium, 1))
    again = desk.answer(second(consortium))
    (path,) = (config.state / "reports").iterdir()
    assert path.read_bytes() == again.payload + again.onion
    assert path.stat().st_mode & 0o777 == 0o600
