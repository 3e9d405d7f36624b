"""Stretches at a silo: keys that the mixes vouched for, one token for a round, kept until then."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import NotApproved, RefusedQuery, TokenMissing
from silomix_client.ledger.ledger import Ledger
from silomix_client.random_stream import fresh_keystream
from silomix_client.rounds.keys_and_tokens import KeysAndTokens
from silomix_core.discrete_gaussian import RandomBytes
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host.durable import transaction
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.round_keys import RefusedKeys
from silomix_protocol.rounds.statements import check_token_request
from silomix_protocol.rounds.tokens import TOKEN_BYTES, RefusedToken, Token, issuer
from silomix_server.mixes.token_desk import TokenDesk
from support.consortia import make_consortium
from support.put_back import StateCopy
from support.silos import (
    NOW,
    abandonments,
    approved_silo,
    asked,
    give_tokens,
    key_lists_of,
    open_desk,
    open_ledger,
    silo_key,
    stretch_of,
    token_issuer,
    tokens_for,
    written,
)

Stretch = channel_pb2.StretchOpened


@pytest.fixture
def config(consortium: Consortium) -> SiloConfig:
    return approved_silo(consortium)


@pytest.fixture
def ledger(config: SiloConfig) -> Iterator[Ledger]:
    ledger = open_ledger(config)
    yield ledger
    ledger.close()


@pytest.fixture
def stretches(consortium: Consortium, ledger: Ledger) -> KeysAndTokens:
    return KeysAndTokens(consortium.study, ledger, silo_key(consortium))


def requested(stretches: KeysAndTokens, stretch: Stretch) -> channel_pb2.TokenRequest:
    request = stretches.open(stretch)
    assert request is not None
    return request


def wanted(request: channel_pb2.TokenRequest) -> list[int]:
    """The rounds that are asked for."""
    return [request.first_round + place for place, each in enumerate(request.blinded) if each]


# Tokens ------------------------------------------------------------------------------------------


def test_one_request_asks_for_a_token_of_every_round_and_they_are_kept_on_disk(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    request = requested(stretches, stretch_of(consortium))
    assert wanted(request) == [1, 2, 3, 4, 5]
    assert len(set(request.blinded)) == 5
    assert all(stretches.awaits_token(number) for number in range(1, 6))
    stretches.take(tokens_for(consortium.study, request))
    assert not any(stretches.awaits_token(number) for number in range(1, 6))
    issuing, other = token_issuer(consortium.study), open_ledger(config)
    for number in range(1, 6):
        held = other.account(consortium.study).token(number)
        assert held is not None
        assert held.key == issuing.public_key(number)
        assert issuing.valid(number, held.token)
        assert held.token.nonce not in b"".join(request.blinded)
    other.close()


def test_a_stretch_that_is_announced_again_asks_only_for_what_is_missing(
    consortium: Consortium, ledger: Ledger
) -> None:
    """A silo that was restarted within a stretch; round 2 was answered meanwhile."""
    give_tokens(ledger, consortium.study, [1, 2, 4])
    restarted = KeysAndTokens(consortium.study, ledger, silo_key(consortium))
    assert wanted(requested(restarted, stretch_of(consortium))) == [3, 5]
    assert wanted(requested(restarted, stretch_of(consortium))) == []  # on their way


def test_no_token_is_asked_for_of_a_round_that_is_over(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    give_tokens(ledger, consortium.study, [2])
    ledger_desk = open_desk(config, consortium.study, ledger)
    ledger_desk.answer(asked(consortium, 2))
    ledger._tables.tokens.forget(consortium.study.identity, 5)
    assert wanted(requested(stretches, stretch_of(consortium))) == [3, 4, 5]


def test_after_a_broken_connection_the_same_blinded_elements_are_sent_again(
    consortium: Consortium, stretches: KeysAndTokens
) -> None:
    """The server answers one element for each round, for ever."""
    first = requested(stretches, stretch_of(consortium))
    stretches.start()
    assert not stretches.awaits_token(1)
    assert requested(stretches, stretch_of(consortium)) == first
    stretches.take(tokens_for(consortium.study, first))


def test_a_silo_killed_before_it_stored_its_tokens_gets_them_after_a_restart(
    consortium: Consortium, config: SiloConfig, tmp_path: Path
) -> None:
    """Nothing but the approval is left of the silo; the server's register stays as it was."""
    study, register = consortium.study, TokenDesk(consortium.study, tmp_path)
    announced = stretch_of(consortium)
    del announced.token_keys[:]
    announced.token_keys.extend(register.public_keys(1, study.rounds))

    def asks() -> tuple[KeysAndTokens, Ledger, channel_pb2.TokenRequest]:
        ledger = open_ledger(config)
        stretches = KeysAndTokens(study, ledger, silo_key(consortium))
        return stretches, ledger, requested(stretches, announced)

    _, killed, first = asks()
    lost = register.issue("silo-1", first)
    killed.close()
    stretches, ledger, again = asks()
    assert again.SerializeToString() == first.SerializeToString()
    reply = register.issue("silo-1", again)
    assert [each[:32] for each in reply.evaluated] == [each[:32] for each in lost.evaluated]
    stretches.take(reply)
    assert ledger.account(study).rounds_with_token() == {1, 2, 3, 4, 5}
    ledger.close()
    register.close()


def test_a_silo_whose_folder_was_put_back_asks_for_the_same_tokens(
    consortium: Consortium, config: SiloConfig
) -> None:
    earlier = StateCopy.of(config)
    with closing(open_ledger(config)) as ledger:
        stretches = KeysAndTokens(consortium.study, ledger, silo_key(consortium))
        first = requested(stretches, stretch_of(consortium))
        stretches.take(tokens_for(consortium.study, first))
        held = ledger.account(consortium.study).token(2)
    earlier.put_back()
    with closing(open_ledger(config)) as ledger:
        stretches = KeysAndTokens(consortium.study, ledger, silo_key(consortium))
        assert requested(stretches, stretch_of(consortium)) == first
        stretches.take(tokens_for(consortium.study, first))
        assert ledger.account(consortium.study).token(2) == held


def test_another_token_key_for_a_round_gets_another_nonce_and_another_element(
    consortium: Consortium, config: SiloConfig
) -> None:
    """A server that names two keys for a round learns nothing that links the two requests."""
    study, held = consortium.study, []
    for seed in (b"1" * 32, b"2" * 32):
        own = issuer(seed, study.identity)
        stretch = stretch_of(consortium)
        del stretch.token_keys[:]
        stretch.token_keys.extend(own.public_key(number) for number in range(1, 6))
        with closing(open_ledger(config)) as ledger:
            stretches = KeysAndTokens(study, ledger, silo_key(consortium))
            request = requested(stretches, stretch)
            evaluated = [own.evaluate(place, each) for place, each in enumerate(request.blinded, 1)]
            stretches.take(channel_pb2.TokenReply(first_round=1, evaluated=evaluated))
            tokens = [ledger.account(study).token(number) for number in range(1, 6)]
            with transaction(ledger.database):
                ledger._tables.tokens.forget(study.identity, 5)
        held.append((list(request.blinded), [each.token.nonce for each in tokens if each]))
    elements = [element for blinded, _ in held for element in blinded]
    nonces = [nonce for _, nonces in held for nonce in nonces]
    assert len(set(elements)) == len(set(nonces)) == 10


def test_every_approval_asks_for_tokens_of_its_own(tmp_path: Path) -> None:
    """Two silos of one study, the same round, the same key: their secrets differ."""
    made = make_consortium(tmp_path / "c")
    elements: list[bytes] = []
    for place in (0, 1):
        with closing(open_ledger(approved_silo(made, place))) as ledger:
            stretches = KeysAndTokens(made.study, ledger, silo_key(made, place))
            elements.extend(requested(stretches, stretch_of(made)).blinded)
    assert len(set(elements)) == 10


def test_an_approval_whose_secret_is_gone_asks_for_no_tokens(
    consortium: Consortium, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    """Everybody could tell what follows from an empty secret."""
    ledger.close_study(consortium.study.identity, NOW)
    with pytest.raises(NotApproved, match="secret of this approval is gone"):
        stretches.open(stretch_of(consortium))


def test_a_charge_spends_the_token_and_drops_those_of_earlier_rounds(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk, account = open_desk(config, consortium.study, ledger), ledger.account(consortium.study)
    held = account.token(3)
    assert held is not None
    report = desk.answer(asked(consortium, 3))
    assert report.payload[:TOKEN_BYTES] == held.token.to_bytes()
    assert account.rounds_with_token() == {4, 5}


def test_a_later_attempt_carries_the_same_token(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk = open_desk(config, consortium.study, ledger)
    first = desk.answer(asked(consortium, 1))
    statements = abandonments(consortium, first.descriptor.digest)
    again = desk.answer(asked(consortium, 1, attempt=2, abandoned=statements))
    assert again.payload == first.payload


def test_a_round_without_a_token_is_not_answered_and_nothing_is_computed_or_charged(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    drawn: list[None] = []

    def watched(_label: bytes) -> RandomBytes:
        drawn.append(None)
        return fresh_keystream()

    desk = open_desk(config, consortium.study, ledger, watched)
    drawn.clear()  # the desk measured its own pace
    ledger._tables.tokens.forget(consortium.study.identity, 5)
    before = written(config)
    with pytest.raises(TokenMissing, match="no token for round 1"):
        desk.answer(asked(consortium, 1))
    assert written(config) == before
    assert drawn == []


def test_a_token_made_with_another_key_than_the_descriptor_names_is_refused(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    """The server announced a key to this silo alone; the round's descriptor is everybody's."""
    desk = open_desk(config, consortium.study, ledger)
    ledger._tables.tokens.forget(consortium.study.identity, 5)
    own = issuer(bytes(32), consortium.study.identity)
    stretch = stretch_of(consortium)
    del stretch.token_keys[:]
    stretch.token_keys.extend(own.public_key(number) for number in range(1, 6))
    request = requested(stretches, stretch)
    evaluated = [own.evaluate(number, each) for number, each in enumerate(request.blinded, start=1)]
    stretches.take(channel_pb2.TokenReply(first_round=1, evaluated=evaluated))
    before = written(config)
    with pytest.raises(RefusedQuery, match="made with another key"):
        desk.answer(asked(consortium, 1))
    assert written(config) == before


def swapped(reply: channel_pb2.TokenReply) -> None:
    reply.evaluated[0], reply.evaluated[1] = reply.evaluated[1], reply.evaluated[0]


def flipped(reply: channel_pb2.TokenReply) -> None:
    reply.evaluated[2] = reply.evaluated[2][:-1] + bytes([reply.evaluated[2][-1] ^ 1])


def cut(reply: channel_pb2.TokenReply) -> None:
    reply.evaluated[2] = reply.evaluated[2][:-1]


def no_proof(reply: channel_pb2.TokenReply) -> None:
    reply.evaluated[2] = reply.evaluated[2][:32] + bytes(64)


def zeros(reply: channel_pb2.TokenReply) -> None:
    reply.evaluated[2] = bytes(96)


@pytest.mark.parametrize("change", [swapped, flipped, cut, no_proof, zeros])
def test_a_token_whose_proof_does_not_hold_is_refused_and_none_of_the_reply_is_kept(
    consortium: Consortium,
    config: SiloConfig,
    stretches: KeysAndTokens,
    change: Callable[[channel_pb2.TokenReply], None],
) -> None:
    reply = tokens_for(consortium.study, requested(stretches, stretch_of(consortium)))
    change(reply)
    before = written(config)
    with pytest.raises(RefusedToken):
        stretches.take(reply)
    assert written(config) == before


def test_a_reply_may_refuse_some_tokens(
    consortium: Consortium, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    reply = tokens_for(consortium.study, requested(stretches, stretch_of(consortium)))
    reply.evaluated[1] = b""
    stretches.take(reply)
    assert ledger.account(consortium.study).rounds_with_token() == {1, 3, 4, 5}


@pytest.mark.parametrize("shape", [(2, 5), (1, 4), (1, 6), (0, 0)])
def test_a_reply_for_other_rounds_is_refused(
    consortium: Consortium, config: SiloConfig, stretches: KeysAndTokens, shape: tuple[int, int]
) -> None:
    reply = tokens_for(consortium.study, requested(stretches, stretch_of(consortium)))
    first, length = shape
    evaluated = ([*reply.evaluated] * 2)[:length]
    before = written(config)
    with pytest.raises(RefusedQuery, match="other rounds than were asked for"):
        stretches.take(channel_pb2.TokenReply(first_round=first, evaluated=evaluated))
    assert written(config) == before


def test_tokens_that_nobody_asked_for_are_refused(
    consortium: Consortium, ledger: Ledger, stretches: KeysAndTokens
) -> None:
    with pytest.raises(RefusedQuery, match="not asked for"):
        stretches.take(channel_pb2.TokenReply(first_round=1))
    give_tokens(ledger, consortium.study, [1])
    request = requested(stretches, stretch_of(consortium))
    reply = tokens_for(consortium.study, request)
    reply.evaluated[0] = reply.evaluated[1]
    with pytest.raises(RefusedQuery, match="a token that was not asked for"):
        stretches.take(reply)


def test_a_held_token_does_not_show_itself(consortium: Consortium, ledger: Ledger) -> None:
    give_tokens(ledger, consortium.study, [1])
    held = ledger.account(consortium.study).token(1)
    assert held is not None
    assert repr(held.token.nonce) not in repr(held)
    assert Token.from_bytes(held.token.to_bytes()) == held.token


# Key lists ---------------------------------------------------------------------------------------


def changed(made: Consortium, edit: Callable[[Stretch], object]) -> Stretch:
    stretch = stretch_of(made)
    edit(stretch)
    return stretch


def of_two(stretch: Stretch) -> None:
    del stretch.lists[1].keys[2:]


def turned(stretch: Stretch) -> None:
    lists = list(stretch.lists)[::-1]
    del stretch.lists[:]
    stretch.lists.extend(lists)


STRETCHES: dict[str, Callable[[Stretch], object]] = {
    "no-lists": lambda stretch: stretch.ClearField("lists"),
    "one-list": lambda stretch: stretch.lists.pop(),
    "three-lists": lambda stretch: stretch.lists.append(stretch.lists[0]),
    "in-another-order": turned,
    "of-different-lengths": of_two,
    "unsigned": lambda stretch: stretch.lists[0].ClearField("signature"),
    "another-key-in-it": lambda stretch: stretch.lists[1].keys.__setitem__(0, bytes(32)),
    "a-short-fingerprint": lambda stretch: stretch.lists[1].keys.__setitem__(0, b"short"),
    "from-round-0": lambda stretch: setattr(stretch, "first_round", 0),
    "from-another-round": lambda stretch: setattr(stretch, "first_round", 2),
    "no-token-keys": lambda stretch: stretch.ClearField("token_keys"),
    "a-token-key-too-few": lambda stretch: stretch.token_keys.pop(),
    "a-token-key-too-many": lambda stretch: stretch.token_keys.append(bytes(32)),
    "a-short-token-key": lambda stretch: stretch.token_keys.__setitem__(0, b"short"),
}


@pytest.mark.parametrize("edit", STRETCHES.values(), ids=STRETCHES)
def test_a_stretch_that_the_mixes_did_not_vouch_for_as_it_is_is_refused(
    consortium: Consortium, stretches: KeysAndTokens, edit: Callable[[Stretch], object]
) -> None:
    with pytest.raises((RefusedQuery, RefusedKeys, ForgedSignature)):
        stretches.open(changed(consortium, edit))
    honest = asked(consortium, 1)
    with pytest.raises(RefusedKeys, match="did not vouch"):
        stretches.book.check(honest.descriptor, list(honest.mix_keys))


def test_a_stretch_beyond_the_study_is_refused(
    consortium: Consortium, stretches: KeysAndTokens
) -> None:
    longer = replace(consortium, study=replace(consortium.study, most_rounds=6))
    for first, rounds in ((5, 2), (6, 1), (1, 6)):
        with pytest.raises(RefusedQuery, match="rounds of the study"):
            stretches.open(stretch_of(longer, first, rounds))


def test_a_stretch_of_later_attempts_is_refused(
    consortium: Consortium, stretches: KeysAndTokens
) -> None:
    stretch = stretch_of(consortium)
    del stretch.lists[:]
    stretch.lists.extend(key_lists_of(consortium, 1, 5, attempt=2))
    with pytest.raises(RefusedQuery, match="not for this stretch"):
        stretches.open(stretch)


def test_a_stretch_of_more_rounds_than_anybody_may_announce_is_refused(
    consortium: Consortium, ledger: Ledger
) -> None:
    longer = replace(consortium, study=replace(consortium.study, most_rounds=65))
    with pytest.raises(RefusedKeys, match="1 to 64"):
        KeysAndTokens(longer.study, ledger, silo_key(longer)).open(stretch_of(longer))


@pytest.mark.parametrize("gate", [True, False])
def test_a_study_without_tokens_asks_for_none_and_its_reports_have_none(
    tmp_path_factory: pytest.TempPathFactory, gate: bool
) -> None:
    folder = tmp_path_factory.mktemp("no-tokens") / "consortium"
    made = make_consortium(folder, tokens=False, gate=gate)
    config = approved_silo(made)
    ledger = open_ledger(config)
    stretches = KeysAndTokens(made.study, ledger, silo_key(made))
    assert stretches.open(stretch_of(made)) is None
    stretch = stretch_of(made)
    stretch.token_keys.extend([bytes(32)] * 5)
    with pytest.raises(RefusedQuery, match="one token key for each round, or none"):
        stretches.open(stretch)
    report = open_desk(config, made.study, ledger).answer(asked(made, 1))
    assert report.payload.startswith(b"SMR1")
    ledger.close()


def test_a_request_for_tokens_is_signed_by_the_silo_itself(
    consortium: Consortium, ledger: Ledger
) -> None:
    study = consortium.study
    request = KeysAndTokens(study, ledger, silo_key(consortium)).open(stretch_of(consortium))
    assert request is not None
    check_token_request(request, study, study.silos[0])
    with pytest.raises(ForgedSignature):
        check_token_request(request, study, study.silos[1])


# What a server could pile up ---------------------------------------------------------------------


def test_stretches_that_are_announced_again_without_their_tokens_pile_up_nothing(
    consortium: Consortium, stretches: KeysAndTokens
) -> None:
    announced = stretch_of(consortium)
    for _ in range(4):
        requested(stretches, announced)
    for _ in range(3):
        with pytest.raises(RefusedQuery, match="no tokens came"):
            stretches.open(announced)
    stretches.start()  # another connection
    assert wanted(requested(stretches, announced)) == [1, 2, 3, 4, 5]


def test_tokens_are_held_for_a_few_stretches_to_come_and_no_more(tmp_path: Path) -> None:
    """The server announces the last rounds first, so that none of them is over."""
    made = make_consortium(tmp_path / "c", rounds=400)
    ledger = open_ledger(approved_silo(made))
    stretches = KeysAndTokens(made.study, ledger, silo_key(made))
    for first in (337, 273, 209, 145):
        request = requested(stretches, stretch_of(made, first, 64))
        stretches.take(tokens_for(made.study, request))
    with pytest.raises(RefusedKeys, match="more than 256"):
        stretches.open(stretch_of(made, 81, 64))
    restarted = KeysAndTokens(
        made.study, ledger, silo_key(made)
    )  # knows no keys, but has the tokens
    with pytest.raises(RefusedQuery, match="tokens for more than 256 rounds"):
        restarted.open(stretch_of(made, 81, 64))
    requested(restarted, stretch_of(made, 145, 64))
    ledger.close()


def test_lists_of_a_stretch_are_counted_before_they_are_looked_at(
    consortium: Consortium, stretches: KeysAndTokens
) -> None:
    many = channel_pb2.StretchOpened(first_round=1)
    many.lists.extend([round_pb2.KeyList()] * 10_000)
    with pytest.raises(RefusedQuery, match="one key list of every mix"):
        stretches.open(many)
