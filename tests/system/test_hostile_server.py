"""The server is the adversary: what it may ask a real silo process, with every true key it has.

One silo is run from its command line and reached over TLS as in production; server, mixes and
Flower are played.  Whatever was not agreed is refused: the lease ends, the ledger is what it was
to the byte, and not one frame reaches the first mix.  Then the silo goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import pack

import numpy as np
import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.config.silo_config import load
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds import complaint_files
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.round_keys import fingerprint, sign_list
from silomix_protocol.rounds.statements import sign_commitment
from silomix_protocol.rounds.tokens import issuer
from support.attacked_silo import Attacked, answered_then, changed, give_all_tokens, reply
from support.consortia import make_consortium
from support.hostile import (
    HostileServer,
    Script,
    besieged,
    committed,
    in_turn,
    lease_of,
    opening,
    saying,
    whole_round,
)
from support.processes import silomix
from support.scripted_lease import Event, gated_digest, passages
from support.silos import (
    NOW,
    abandonments,
    asked,
    closed_round,
    hostile,
    key_lists_of,
    mix_key,
    open_ledger,
    query_at,
    round_of,
    server_key,
    stretch_of,
    study_file,
    tokens_for,
)

ORIGIN = [0.0, 0.0, 0.0]
ELSEWHERE = [1.0, -2.0, 3.0]
ROUNDS = 5


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A silo with budget for many studies; in the end, nothing else was ever sent or charged."""
    folder = tmp_path_factory.mktemp("hostile-server") / "consortium"
    made = make_consortium(folder, minimum_batch=1, rounds=ROUNDS)
    (made.silos[0].parent / "policy.toml").write_text(
        "epsilon = 50.0\ndelta = 1e-5\nminimum_batch = 1\n"
    )
    config = load(made.silos[0])
    approve(config, review(config, study_file(made)), NOW)
    give_all_tokens(made)
    with asyncio.Runner() as runner:
        context = besieged(made)
        siege = runner.run(context.__aenter__())
        try:
            attacked = Attacked(runner, siege)
            yield attacked
        finally:
            runner.run(context.__aexit__(None, None, None))
    assert siege.server.onions == attacked.expected
    assert siege.server.frames == len(attacked.expected)
    assert "Traceback" not in siege.log.read_text()
    ledger = open_ledger(config)
    assert ledger.total().rounds == len(set(attacked.expected)) - attacked.sealed_again
    verify(ledger)
    ledger.close()


def ask(made: Consortium, point: list[float] = ELSEWHERE, **fields: object) -> Script:
    """Round 2, which was never answered, with a correctly signed descriptor of these fields."""
    query = query_at(point)
    return opening(made, hostile(made, query, **{"round": 2} | fields), query)


OTHER_STUDIES = {
    "another-clip": (b"clip = 0.25", b"clip = 0.5"),
    "more-rounds": (b"rounds = 5", b"rounds = 6"),
    "another-loss": (b'loss = "logistic"', b'loss = "squared"'),
    "a-larger-ball": (b"radius = 50.0", b"radius = 51.0"),
    "a-larger-epsilon": (b"epsilon = 2.0", b"epsilon = 2.1"),
    "a-smaller-delta": (b"delta = 1e-05", b"delta = 1e-06"),
    "poisson-batches": (b"clip = 0.25", b'clip = 0.25\nsampling = "poisson"\nratio = 0.5'),
    "phases": (b'name = "noisy-mb-sgd"', b'name = "one-pass-mb-sgd"'),
    "narrower-features": (b"high = 100.0", b"high = 60.0"),
    "more-records": (b"records = 40", b"records = 41"),
    "other-weights": (b'weights = "records"', b'weights = "equal"'),
    "one-changed-byte": (b"version = 1\n", b"version = 1\r\n"),
}
another_study = pytest.mark.parametrize("change", OTHER_STUDIES.values(), ids=OTHER_STUDIES)


@another_study
def test_a_lease_of_a_study_with_one_thing_changed_is_refused(
    silo: Attacked, change: tuple[bytes, bytes]
) -> None:
    content = changed(study_file(silo.made), change)
    identity = sha256(content).hexdigest()
    message = silo.refused(lease_of(silo.made, study=identity), ask(silo.made))
    assert message == f"study {identity[:12]} was not approved here"


@another_study
def test_a_round_of_a_study_with_one_thing_changed_is_refused_in_the_agreed_lease(
    silo: Attacked, change: tuple[bytes, bytes]
) -> None:
    content = changed(study_file(silo.made), change)
    query = query_at(ORIGIN)
    try:  # as its own coordinator would open it; a loss that does not exist has none
        other = replace(silo.made, study=parse_study(content))
        last = round_of(other, other.study.rounds, query=query)
        signed = last.descriptor.to_wire()
    except InvalidStudy:
        signed = hostile(silo.made, query, study=sha256(content).digest())
    message = silo.refused(lease_of(silo.made), opening(silo.made, signed, query))
    assert message.startswith("the descriptor disagrees with the study: study")


def test_a_round_of_another_approved_study_is_refused(silo: Attacked) -> None:
    other = silo.another_study()
    script = opening(other, asked(other, 1).descriptor.to_wire(), asked(other, 1).query)
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the descriptor disagrees with the study: study"
    silo.answered(other, 1)  # in its own lease it is a good question


def test_a_lease_of_another_server_s_study_is_refused(silo: Attacked) -> None:
    address = silo.made.study.server.fleet_address.encode()
    (port,) = free_ports(1)
    other = silo.another_study((address, f"127.0.0.1:{port}".encode()))
    message = silo.refused(lease_of(other), whole_round(other, asked(other, 1)))
    assert message == "the study belongs to another server"


def test_a_study_that_its_operator_revokes_is_answered_no_more(silo: Attacked) -> None:
    """Revoked by the command line in the middle of a lease; then in leases that follow."""
    made = silo.another_study()

    def close() -> None:
        config, folder = silo.made.silos[0], silo.made.folder
        ended = silomix("silo", "revoke", str(config), made.study.short_id, "--yes", cwd=folder)
        assert ended.returncode == 0, ended.stderr

    first, again = whole_round(made, asked(made, 1)), ask(made)
    script = in_turn(first, again, close)
    message = silo.refused(lease_of(made), script, answered=1, confirmed=1)
    assert message == "this study was revoked here, or never approved"
    for number in (1, 2):
        message = silo.refused(lease_of(made), whole_round(made, asked(made, number)))
        assert message == "the study was revoked here"


TIGHTER = {
    "people": ("minimum_people = 41", "it is about 40 of your people"),
    "reports": ("minimum_batch = 2", "it mixes as few as 1 reports"),
    "rounds": ("most_rounds = 4", "it has 5 rounds"),
    "epsilon": ("study_epsilon = 1.9", "it would cost epsilon 2 "),
    "losses": ('losses = ["squared"]', "its loss, logistic"),
    "algorithms": ('algorithms = ["one-pass-mb-sgd"]', "its algorithm, noisy-mb-sgd"),
    "servers": (f'servers = ["{"0" * 64}"]', "the key of its server"),
    "mixes": (f'mixes = ["{"0" * 64}"]', "the key of its mix mix-1"),
    "persons": ("require_person_column = true", "it does not say which column names a person"),
}


@contextmanager
def policy(silo: Attacked, line: str) -> Iterator[None]:
    """The silo's policy with this line, instead of the one it has of that key, while it runs."""
    path = silo.made.silos[0].parent / "policy.toml"
    before = path.read_text()
    key = line.partition(" ")[0]
    others = [each for each in before.splitlines() if not each.startswith(f"{key} ")]
    path.write_text("\n".join([*others, line, ""]))
    try:
        yield
    finally:
        path.write_text(before)


@pytest.mark.parametrize(("line", "told"), TIGHTER.values(), ids=TIGHTER)
def test_a_rule_that_is_tightened_holds_for_an_approved_study(
    silo: Attacked, line: str, told: str
) -> None:
    before = silo.siege.on_disk()
    with policy(silo, line):
        outcome = silo.lease(lease_of(silo.made), ask(silo.made))
    assert outcome.reply == reply("refused", 0), outcome.log
    assert (outcome.frames, outcome.said) == (0, [])
    assert silo.siege.on_disk() == before
    assert f"your policy does not allow this study: {told}" in outcome.log
    silo.goes_on()


def test_a_lease_outside_the_policy_s_hours_is_refused_as_such(silo: Attacked) -> None:
    """The silo says which hours it keeps to its operator, and to the server only that."""
    day = datetime.now(UTC) + timedelta(days=3)
    before = silo.siege.on_disk()
    with policy(silo, f'hours = ["{day:%a} 00:00-24:00"]'.lower()):
        outcome = silo.lease(lease_of(silo.made), ask(silo.made))
    assert outcome.reply == reply("outside-hours", 0), outcome.log
    assert (outcome.frames, outcome.said) == (0, [])
    assert silo.siege.on_disk() == before
    assert "lease_refused" in outcome.log
    silo.goes_on()


def test_everything_that_was_refused_stands_in_the_audit_log(silo: Attacked) -> None:
    """With whatever the server wrote into it, as one line each."""
    lease = "x\x1b[2J\nforged"
    message = silo.refused(lease_of(silo.made, study="00" * 32, lease=lease), ask(silo.made))
    silo.refused(lease_of(silo.made), ask(silo.made, round=ROUNDS + 1))
    ledger = open_ledger(silo.siege.config)
    assert audit_check.verify(silo.siege.config.state, ledger).lines > 10
    ledger.close()
    found = list(audit_check.lines(silo.siege.config.state))
    refused = [line.fields["reason"] for line in found if line.event == "lease_refused"]
    assert message in refused
    assert {"silo_started", "policy_read", "lease_started", "round_charged", "query_refused"} <= {
        line.event for line in found
    }


@pytest.mark.parametrize(
    "deadline", ["0", "-1", "604801", "1e300", "inf", "-inf", "nan", "soon", "", "1 h"]
)
def test_a_lease_with_an_absurd_deadline_is_refused(silo: Attacked, deadline: str) -> None:
    message = silo.refused(lease_of(silo.made, deadline_s=deadline), ask(silo.made))
    assert message in ("a lease lasts at most a week", "the message is not a lease")


@pytest.mark.parametrize("missing", ["lease", "study", "deadline_s"])
def test_a_message_that_is_no_lease_is_refused(silo: Attacked, missing: str) -> None:
    fields = {key: value for key, value in lease_of(silo.made).items() if key != missing}
    assert silo.refused(fields, ask(silo.made)) == "the message is not a lease"


@pytest.mark.parametrize("cut", [0, 2, 12, 62])
def test_a_lease_that_names_part_of_a_study_is_refused(silo: Attacked, cut: int) -> None:
    identity = silo.made.study.identity.hex()[:cut]
    message = silo.refused(lease_of(silo.made, study=identity), ask(silo.made))
    assert message.endswith("was not approved here")


OTHER_DESCRIPTORS: dict[str, dict[str, object]] = {
    "round-0": {"round": 0},
    "one-round-more": {"round": ROUNDS + 1},
    "the-largest-round": {"round": 2**32 - 1},
    "attempt-0": {"attempt": 0},
    "one-attempt-too-many": {"attempt": 9},
    "the-largest-attempt": {"attempt": 2**32 - 1},
    "another-version": {"version": 2},
    "another-suite": {"suite": "none"},
    "no-study": {"study": b""},
    "one-dimension-less": {"dimension": 2},
    "one-dimension-more": {"dimension": 4},
    "a-smaller-batch": {"minimum_batch": 0},
    "a-longer-deadline": {"deadline_ms": 86_400_000},
    "nobody-to-wait-for": {"silos": b"\x00"},
    "no-silos": {"silos": b""},
    "a-stranger-to-wait-for": {"silos": b"\x09"},
    "more-bits-than-silos": {"silos": b"\x07\x00"},
    "no-query": {"query": b""},
    "no-server-key": {"server_key": b""},
    "no-mixes": {"mix_keys": []},
    "a-mix-too-few": {"mix_keys": [bytes(32)]},
    "a-mix-too-many": {"mix_keys": [bytes(32)] * 3},
    "no-token-key": {"token_key": b""},
}


@pytest.mark.parametrize("fields", OTHER_DESCRIPTORS.values(), ids=OTHER_DESCRIPTORS)
def test_a_signed_descriptor_that_disagrees_with_the_study_is_refused(
    silo: Attacked, fields: dict[str, object]
) -> None:
    message = silo.refused(lease_of(silo.made), ask(silo.made, **fields))
    assert message.startswith("the descriptor disagrees with the study: ")


@pytest.mark.parametrize("silos", [b"\x06", b"\x03", b"\x05"])
def test_a_round_that_leaves_a_silo_out_is_refused(silo: Attacked, silos: bytes) -> None:
    message = silo.refused(lease_of(silo.made), ask(silo.made, silos=silos))
    assert message == "the descriptor disagrees with the study: silos"


@pytest.mark.parametrize("signer", ["a stranger", "mix-1", "silo-1"])
def test_a_descriptor_signed_by_another_key_is_refused(silo: Attacked, signer: str) -> None:
    path = silo.made.folder / signer / "sign.key"
    key = SigningKey.load(path) if path.exists() else SigningKey.generate()
    query = query_at(ELSEWHERE)
    script = opening(silo.made, hostile(silo.made, query, key, round=2), query)
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the signature on this descriptor is not valid"


@pytest.mark.parametrize("purpose", ["nothing", "closed"])
def test_a_descriptor_that_the_server_signed_as_something_else_is_refused(
    silo: Attacked, purpose: str
) -> None:
    query = query_at(ELSEWHERE)
    signed = hostile(silo.made, query, round=2)
    sign = server_key(silo.made).sign
    signed.signature = sign("closed", signed.descriptor) if purpose == "closed" else b""
    message = silo.refused(lease_of(silo.made), opening(silo.made, signed, query))
    assert message == "the signature on this descriptor is not valid"


def test_a_descriptor_changed_after_it_was_signed_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    signed = hostile(silo.made, query, round=2)
    other = hostile(silo.made, query, round=3)
    mixed = round_pb2.SignedDescriptor(descriptor=other.descriptor, signature=signed.signature)
    message = silo.refused(lease_of(silo.made), opening(silo.made, mixed, query))
    assert message == "the signature on this descriptor is not valid"


OUTSIDE = {
    "larger-than-W": [50.1, 0.0, 0.0],
    "larger-than-W-in-norm-only": [-30.0, 30.0, 30.0],
    "huge": [1e308, -1e308, 1e308],
    "NaN": [np.nan, 0.0, 0.0],
    "NaN-last": [0.0, 0.0, -np.nan],
    "infinite": [np.inf, 0.0, 0.0],
    "minus-infinite": [0.0, -np.inf, 0.0],
}


@pytest.mark.parametrize("point", OUTSIDE.values(), ids=OUTSIDE)
def test_a_point_outside_the_agreed_ball_is_refused(silo: Attacked, point: list[float]) -> None:
    message = silo.refused(lease_of(silo.made), ask(silo.made, point))
    assert message == "the point lies outside the study's ball"


@pytest.mark.parametrize("dimension", [0, 1, 2, 4, 9])
def test_a_point_of_another_dimension_is_refused(silo: Attacked, dimension: int) -> None:
    message = silo.refused(lease_of(silo.made), ask(silo.made, [0.0] * dimension))
    assert message == "the point has another dimension than the study"


@pytest.mark.parametrize(
    "point",
    [ORIGIN, [1.0, -2.0, np.nextafter(3.0, 4.0)], [51.0, 0.0, 0.0]],
    ids=["elsewhere", "one-ulp-away", "outside"],
)
def test_a_query_that_the_descriptor_does_not_cover_is_refused(
    silo: Attacked, point: list[float]
) -> None:
    signed = hostile(silo.made, query_at(ELSEWHERE), round=2)
    message = silo.refused(lease_of(silo.made), opening(silo.made, signed, query_at(point)))
    assert message == "the query is not the one that the descriptor names"


@pytest.mark.parametrize("query", [b"\xff", b"\x0a\x18", b"\x0b"])
def test_a_query_that_cannot_be_read_is_refused(silo: Attacked, query: bytes) -> None:
    script = opening(silo.made, hostile(silo.made, query, round=2), query)
    assert silo.refused(lease_of(silo.made), script) == "the query cannot be read"


@pytest.mark.parametrize("announced", [8 * 3 + 65, 2**62])
def test_a_query_announced_larger_than_any_point_is_refused(silo: Attacked, announced: int) -> None:
    query = query_at(ELSEWHERE)
    script = opening(silo.made, hostile(silo.made, query, round=2), query, announced)
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the query is larger than the study allows"


def test_a_query_that_breaks_off_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    script = opening(silo.made, hostile(silo.made, query, round=2), query[:-1], len(query))
    assert silo.refused(lease_of(silo.made), script) == "the query broke off"


@pytest.mark.parametrize("same_lease", [True, False], ids=["same-lease", "next-lease"])
def test_a_repeated_round_with_another_point_is_refused(silo: Attacked, same_lease: bool) -> None:
    made = silo.another_study()
    first = whole_round(made, asked(made, 1))
    other = whole_round(made, asked(made, 1, ELSEWHERE))
    if same_lease:
        script = in_turn(first, other)
        message = silo.refused(lease_of(made), script, answered=1, confirmed=1)
    else:
        silo.answered(made, 1)
        message = silo.refused(lease_of(made), other)
    assert message == "round 1 was asked again with another query"
    silo.answered(made, 2)


def test_the_same_question_again_gets_the_very_same_bytes_at_no_charge(silo: Attacked) -> None:
    made = silo.another_study()
    onion = silo.answered(made, 1)
    before = silo.siege.on_disk()
    again = whole_round(made, asked(made, 1))
    outcome = silo.lease(lease_of(made), in_turn(again, again))
    assert outcome.onions == [onion, onion]
    assert silo.siege.on_disk() == before
    silo.expected += outcome.onions


def test_a_killed_silo_answers_an_old_question_with_the_very_same_bytes(silo: Attacked) -> None:
    made = silo.another_study()
    onion = silo.answered(made, 1, ELSEWHERE)
    silo.kill_and_restart()
    (rows, _), _ = silo.siege.on_disk()
    assert silo.answered(made, 1, ELSEWHERE) == onion
    message = silo.refused(lease_of(made), whole_round(made, asked(made, 1)))
    assert message == "round 1 was asked again with another query"
    assert silo.siege.on_disk()[0][0] == rows


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_skipped_back_round_is_refused(silo: Attacked, skipped: int) -> None:
    made = silo.another_study()
    silo.answered(made, 3)
    message = silo.refused(lease_of(made), whole_round(made, asked(made, skipped)))
    assert message == f"round {skipped} comes after round 3 was answered"


def test_an_earlier_round_asked_again_word_for_word_is_refused(silo: Attacked) -> None:
    made = silo.another_study()
    for number in (1, 2):
        silo.answered(made, number)
    message = silo.refused(lease_of(made), whole_round(made, asked(made, 1)))
    assert message == "that round is over; its report is no longer kept"


def test_no_round_follows_the_last_one(silo: Attacked) -> None:
    """All agreed rounds, then every further question that the server could think of."""
    made = silo.another_study()
    for number in range(1, ROUNDS + 1):
        silo.answered(made, number)
    for number, point, reason in [
        (ROUNDS + 1, ORIGIN, "the descriptor disagrees with the study: round, silos"),
        (ROUNDS, ELSEWHERE, f"round {ROUNDS} was asked again with another query"),
        (1, ELSEWHERE, "that round is over; its report is no longer kept"),
    ]:
        assert silo.refused(lease_of(made), ask(made, point, round=number)) == reason


Edit = Callable[[channel_pb2.RoundOpened], object]


def edited(made: Consortium, edit: Edit, **fields: object) -> Script:
    """Round 2, correctly described, in a message that was changed."""
    query = query_at(ELSEWHERE)
    return opening(made, hostile(made, query, **{"round": 2} | fields), query, edit=edit)


def low_order(key: bytes) -> bytes:
    """The same sealing key with an X25519 point whose products are all zero."""
    return key[:-32] + bytes(32)


@pytest.mark.parametrize("key", [b"", bytes(32), bytes(1216)], ids=["none", "short", "zeros"])
def test_a_server_key_that_the_descriptor_does_not_name_is_refused(
    silo: Attacked, key: bytes
) -> None:
    script = edited(silo.made, lambda opened: setattr(opened, "server_key", key))
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the server's key is not the one that the descriptor names"


@pytest.mark.parametrize("key", [b"", bytes(32), bytes(1217)], ids=["none", "short", "long"])
def test_a_server_key_that_is_none_is_refused(silo: Attacked, key: bytes) -> None:
    script = edited(
        silo.made,
        lambda opened: setattr(opened, "server_key", key),
        server_key=sha256(key).digest(),
    )
    assert silo.refused(lease_of(silo.made), script) == "the server's key is not a sealing key"


def test_a_server_key_of_low_order_is_refused(silo: Attacked) -> None:
    weak = low_order(round_of(silo.made, 2).server.public)
    script = edited(
        silo.made,
        lambda opened: setattr(opened, "server_key", weak),
        server_key=sha256(weak).digest(),
    )
    message = silo.refused(lease_of(silo.made), script)
    assert message == "a sealing key of this round is not one"


@pytest.mark.parametrize("part", ["seal", "release"])
def test_a_mix_key_that_the_descriptor_does_not_name_is_refused(silo: Attacked, part: str) -> None:
    def edit(opened: channel_pb2.RoundOpened) -> None:
        setattr(opened.mix_keys[1], part, low_order(opened.server_key))

    message = silo.refused(lease_of(silo.made), edited(silo.made, edit))
    assert message == "the mix keys are not those that the descriptor names"


def own_keys(made: Consortium) -> tuple[Edit, list[bytes]]:
    """Keys that the server made itself instead of the mixes, and their fingerprints."""
    keys = round_of(made, 3).mix_keys

    def edit(opened: channel_pb2.RoundOpened) -> None:
        del opened.mix_keys[:]
        opened.mix_keys.extend(keys)

    return edit, [fingerprint(each) for each in keys]


def test_mix_keys_that_no_mix_vouched_for_are_refused(silo: Attacked) -> None:
    """The descriptor names them, the server signed it: the mixes have not."""
    edit, fingerprints = own_keys(silo.made)
    message = silo.refused(lease_of(silo.made), edited(silo.made, edit, mix_keys=fingerprints))
    assert message == "the mixes did not vouch for the keys of this round"


def test_a_round_of_a_stretch_that_was_never_announced_is_refused(silo: Attacked) -> None:
    made = silo.another_study()
    message = silo.refused(lease_of(made), ask(made), announced=False)
    assert message == "the mixes did not vouch for the keys of this round"


def signed_by_the_server(made: Consortium) -> channel_pb2.StretchOpened:
    stretch = stretch_of(made)
    keys = [round_of(made, 1 + each).mix_keys[0] for each in range(ROUNDS)]
    stretch.lists[0].CopyFrom(sign_list(made.study, 1, 1, keys, server_key(made)))
    return stretch


def of_one_mix(made: Consortium) -> channel_pb2.StretchOpened:
    stretch = stretch_of(made)
    del stretch.lists[1:]
    return stretch


def the_first_twice(made: Consortium) -> channel_pb2.StretchOpened:
    stretch = stretch_of(made)
    stretch.lists[1].CopyFrom(stretch.lists[0])
    return stretch


def beyond_the_study(made: Consortium) -> channel_pb2.StretchOpened:
    longer = replace(made, study=replace(made.study, most_rounds=ROUNDS + 1))
    return stretch_of(longer, 2, ROUNDS)


def of_later_attempts(made: Consortium) -> channel_pb2.StretchOpened:
    stretch = stretch_of(made)
    del stretch.lists[:]
    stretch.lists.extend(key_lists_of(made, 1, ROUNDS, attempt=2))
    return stretch


def of_another_study(made: Consortium) -> channel_pb2.StretchOpened:
    content = study_file(made).replace(b"rounds = 5", b"rounds = 6", 1)
    return stretch_of(replace(made, study=parse_study(content)), 1, ROUNDS)


def without_token_keys(made: Consortium) -> channel_pb2.StretchOpened:
    stretch = stretch_of(made)
    del stretch.token_keys[:]
    return stretch


def empty(made: Consortium) -> channel_pb2.StretchOpened:
    return channel_pb2.StretchOpened()


STRETCHES = [
    signed_by_the_server,
    of_one_mix,
    the_first_twice,
    beyond_the_study,
    of_later_attempts,
    of_another_study,
    without_token_keys,
    empty,
]


@pytest.mark.parametrize("stretch", STRETCHES)
def test_a_stretch_that_the_mixes_did_not_vouch_for_is_refused(
    silo: Attacked, stretch: Callable[[Consortium], channel_pb2.StretchOpened]
) -> None:
    script = in_turn(saying(Event(stretch=stretch(silo.made))), ask(silo.made))
    silo.refused(lease_of(silo.made), script, announced=False)


def test_a_round_with_another_token_key_is_refused(silo: Attacked) -> None:
    """One key for this silo only would tell its report from the others'."""
    own = issuer(bytes(32), silo.made.study.identity).public_key(2)
    message = silo.refused(lease_of(silo.made), ask(silo.made, token_key=own))
    assert message == "the token of this round was made with another key"


def without_tokens(silo: Attacked) -> Consortium:
    made = silo.another_study()
    ledger = open_ledger(silo.siege.config)
    ledger._tables.tokens.forget(made.study.identity, ROUNDS)
    ledger.close()
    return made


def stretch_answered(
    made: Consortium, evaluate: Callable[[channel_pb2.TokenRequest], channel_pb2.TokenReply]
) -> Script:
    """A stretch whose tokens are evaluated like this."""

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        frame = await server.words.get()
        server.said.remove(frame)
        yield Event(tokens=evaluate(frame.tokens))

    return script


def test_without_a_token_a_round_is_not_answered_and_the_lease_goes_on(silo: Attacked) -> None:
    made = without_tokens(silo)

    def none(request: channel_pb2.TokenRequest) -> channel_pb2.TokenReply:
        return channel_pb2.TokenReply(first_round=1, evaluated=[b""] * ROUNDS)

    before = silo.siege.on_disk()
    script = in_turn(stretch_answered(made, none), just_asked(made))
    outcome = silo.lease(lease_of(made), script, announced=False)
    assert outcome.reply == reply("done", 0), outcome.log
    assert (outcome.frames, outcome.said) == (0, [])
    assert "token_missing round=1" in outcome.log
    assert silo.siege.on_disk() == before
    silo.answered(made, 1)  # with the very elements that were refused


REPLIES = {
    "swapped": lambda given: [given[1], given[0], *given[2:]],
    "no-proof": lambda given: [given[0][:32] + bytes(64), *given[1:]],
    "zeros": lambda given: [bytes(96), *given[1:]],
    "cut": lambda given: [given[0][:95], *given[1:]],
    "one-too-few": lambda given: given[1:],
    "one-too-many": lambda given: [*given, given[0]],
}


@pytest.mark.parametrize("change", REPLIES.values(), ids=REPLIES)
def test_tokens_that_the_server_cannot_prove_are_refused(
    silo: Attacked, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    made = without_tokens(silo)

    def evaluate(request: channel_pb2.TokenRequest) -> channel_pb2.TokenReply:
        evaluated = change(list(tokens_for(made.study, request).evaluated))
        return channel_pb2.TokenReply(first_round=1, evaluated=evaluated)

    silo.refused(lease_of(made), stretch_answered(made, evaluate), announced=False)


def second_attempt(
    made: Consortium, statements: Sequence[round_pb2.Abandonment], point: list[float] | None = None
) -> Script:
    return whole_round(made, asked(made, 1, point, attempt=2, abandoned=statements))


def test_after_all_mixes_abandoned_it_a_round_is_sealed_again_at_no_charge(silo: Attacked) -> None:
    """Killed after that, the silo still has the bytes that it sent last."""
    made = silo.another_study()
    first = silo.sent(made, 1)
    statements = abandonments(made, asked(made, 1).descriptor.digest)
    outcome = silo.lease(lease_of(made), second_attempt(made, statements))
    assert outcome.reply == reply("done", 1), outcome.log
    (again,) = outcome.onions
    assert again != first
    silo.expected.append(again)
    silo.sealed_again += 1
    silo.kill_and_restart()
    outcome = silo.lease(lease_of(made), second_attempt(made, statements))
    assert outcome.onions == [again]
    silo.expected.append(again)
    message = silo.refused(lease_of(made), whole_round(made, asked(made, 1)))
    assert message == "round 1 was asked again without being a later attempt"
    silo.answered(made, 2)


STATEMENTS: dict[str, Callable[[Consortium], Sequence[round_pb2.Abandonment]]] = {
    "none": lambda made: (),
    "one-missing": lambda made: abandonments(made, asked(made, 1).descriptor.digest, [0]),
    "one-mix-twice": lambda made: abandonments(made, asked(made, 1).descriptor.digest, [0, 0]),
    "of-another-D": lambda made: abandonments(made, asked(made, 2).descriptor.digest),
    "of-the-new-D": lambda made: abandonments(made, asked(made, 1, attempt=2).descriptor.digest),
}


@pytest.mark.parametrize("statements", STATEMENTS.values(), ids=STATEMENTS)
def test_without_every_mix_s_statement_nothing_is_sealed_again(
    silo: Attacked, statements: Callable[[Consortium], Sequence[round_pb2.Abandonment]]
) -> None:
    made = silo.another_study()
    silo.sent(made, 1)
    message = silo.refused(lease_of(made), second_attempt(made, statements(made)))
    assert message.startswith("round 1 was asked again: ")


def test_a_round_whose_list_came_is_not_sealed_again_whatever_the_mixes_state(
    silo: Attacked,
) -> None:
    made = silo.another_study()
    silo.answered(made, 1)
    statements = abandonments(made, asked(made, 1).descriptor.digest)
    message = silo.refused(lease_of(made), second_attempt(made, statements))
    assert message == "round 1 was asked again after its reports had come out"


def test_a_later_attempt_with_another_query_is_refused(silo: Attacked) -> None:
    made = silo.another_study()
    silo.answered(made, 1)
    statements = abandonments(made, asked(made, 1).descriptor.digest)
    message = silo.refused(lease_of(made), second_attempt(made, statements, ELSEWHERE))
    assert message == "round 1 was asked again with another query"


@pytest.mark.parametrize("field", ["lists", "abandoned"])
def test_a_first_attempt_with_what_later_ones_have_is_refused(silo: Attacked, field: str) -> None:
    def edit(opened: channel_pb2.RoundOpened) -> None:
        if field == "lists":
            opened.lists.extend(key_lists_of(silo.made, 2, 1))
        else:
            opened.abandoned.extend(abandonments(silo.made, round_of(silo.made, 1).digest))

    message = silo.refused(lease_of(silo.made), edited(silo.made, edit))
    assert message == "a first attempt has no earlier one"


OTHER = b"\1" * 32
LISTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "empty": lambda gated: [],
    "too-long": lambda gated: [gated, OTHER, bytes(32), b"\2" * 32],
    "twice": lambda gated: [gated, gated],
    "cut": lambda gated: [gated, OTHER[:16]],
}


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_a_list_that_no_batch_has_is_refused_and_not_confirmed(
    silo: Attacked, listed: Callable[[bytes], list[bytes]]
) -> None:
    made = silo.another_study()
    descriptor = asked(made, 1).descriptor
    script = answered_then(made, lambda gated: committed(made, descriptor, listed(gated)))
    silo.refused(lease_of(made), script, answered=1)


def missing_signature(made: Consortium, list_hash: bytes, signed: list[bytes]) -> list[bytes]:
    return signed[:1]


def no_signature(made: Consortium, list_hash: bytes, signed: list[bytes]) -> list[bytes]:
    return []


def reordered(made: Consortium, list_hash: bytes, signed: list[bytes]) -> list[bytes]:
    return signed[::-1]


def forged(made: Consortium, list_hash: bytes, signed: list[bytes]) -> list[bytes]:
    return [signed[0], bytes([signed[1][0] ^ 1]) + signed[1][1:]]


def signed_by_the_coordinator(
    made: Consortium, list_hash: bytes, signed: list[bytes]
) -> list[bytes]:
    """All that a server without the last mix can do."""
    digest = asked(made, 1).descriptor.digest
    return [signed[0], sign_commitment(digest, list_hash, server_key(made))]


def of_another_round(made: Consortium, list_hash: bytes, signed: list[bytes]) -> list[bytes]:
    digest = asked(made, 2).descriptor.digest
    return [signed[0], sign_commitment(digest, list_hash, mix_key(made, 1))]


SIGNATURES = [
    missing_signature,
    no_signature,
    reordered,
    forged,
    signed_by_the_coordinator,
    of_another_round,
]


@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
@pytest.mark.parametrize("change", SIGNATURES)
def test_a_list_that_not_every_mix_stands_by_gets_no_word(
    silo: Attacked,
    change: Callable[[Consortium, bytes, list[bytes]], list[bytes]],
    there: bool,
) -> None:
    """Else each silo could be shown a list of its own, and its answer say which report is its."""
    made = silo.another_study()
    descriptor = asked(made, 1).descriptor

    def listed(gated: bytes) -> Event:
        event = committed(made, descriptor, [gated if there else OTHER])
        signatures = event.committed.signatures
        wrong = change(made, sha256(event.committed.list).digest(), list(signatures))
        del signatures[:]
        signatures.extend(wrong)
        return event

    message = silo.refused(lease_of(made), answered_then(made, listed), answered=1)
    assert message in (
        "the signature on this commitment is not valid",
        "a committed list has a signature of every mix",
    )
    assert silo.said == []
    assert copies_of(silo, made) == []
    silo.answered(made, 1)  # the list that all mixes stand by is still confirmed


@pytest.mark.parametrize("restarted", [False, True])
def test_of_two_lists_for_one_round_only_the_first_is_confirmed(
    silo: Attacked, restarted: bool
) -> None:
    made = silo.another_study()
    descriptor = asked(made, 1).descriptor
    silo.answered(made, 1)  # with a list of its own report
    if restarted:
        silo.kill_and_restart()
    script = answered_then(made, lambda gated: committed(made, descriptor, [gated, OTHER]))
    message = silo.refused(lease_of(made), script, answered=1)
    assert message == "the server committed to two lists for one round"
    assert silo.said == []


def copies_of(silo: Attacked, made: Consortium) -> list[ComplaintFinding]:
    """What the operator's copies of complaints about this study show."""
    saved = complaint_files.saved(silo.siege.config.state / "complaints")
    return [each.finding(made.study) for each in saved if each.study == made.study.identity]


@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_missing_report_is_complained_about_without_its_digests(silo: Attacked, hop: int) -> None:
    """Lost at the first mix, at the last one, or in the list that all mixes signed."""
    made = silo.another_study()
    question = asked(made, 1)
    descriptor = question.descriptor
    trail: list[bytes] = []

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        signed = descriptor.to_wire()
        async for event in opening(made, signed, question.query)(server):
            yield event
        onion = await server.arrivals.get()
        layer = open_layer(onion, round_of(made, 1).mixes[0].seal, 0, descriptor.digest)
        trail.extend([sha256(onion).digest(), sha256(layer).digest()])
        trail.append(gated_digest(made, onion, descriptor))
        first = [OTHER, trail[1]] if hop > 0 else [OTHER]
        last = [OTHER, trail[2]] if hop > 1 else [OTHER]
        yield committed(made, descriptor, [OTHER])
        for event in passages(made, descriptor, [first, last]):
            yield event

    outcome = silo.lease(lease_of(made), script)
    assert outcome.reply == reply("done", 1), outcome.log
    silo.expected += outcome.onions
    answer, inspect = outcome.said
    assert inspect.inspect == descriptor.digest
    sent = answer.answer.complaint
    assert not sent.trail
    assert not sent.chain
    assert check_complaint(sent, made.study) == ComplaintFinding("silo-1", 1, None)
    wire = b"".join(frame.SerializeToString() for frame in outcome.said)
    assert [wire.count(each) for each in trail] == [1, 0, 0]
    assert sent.receipt.report == trail[0]
    accused = ["mix-1", "mix-2", "mix-2"][hop]
    assert copies_of(silo, made) == [ComplaintFinding("silo-1", 1, accused)]
    assert f"report_lost round=1 accused={accused}" in outcome.log
    silo.answered(made, 2)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_receipt_for_another_silo_is_refused(silo: Attacked, place: int) -> None:
    made = silo.another_study()
    silo.siege.server.receipt_place = place

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        async for event in just_asked(made)(server):
            yield event
        await server.arrivals.get()
        server.receipt_place = 0

    message = silo.refused(lease_of(made), script, answered=1)
    assert message == "the signature on this receipt is not valid"
    silo.answered(made, 1)


def told_void(made: Consortium, number: int) -> Script:
    """A round that the server calls void, to this silo at least, without a word of the mixes."""
    closed = closed_round(made, asked(made, number).descriptor, void=True, ended=())
    return answered_then(made, lambda gated: Event(closed=closed), number=number)


def test_a_silo_that_is_told_void_without_proof_in_eight_of_16_rounds_stops(silo: Attacked) -> None:
    """Rounds that it was in fact summed in, for all that it knows; until its operator resumes."""
    made = silo.another_study((b"rounds = 5", b"rounds = 18"))

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        for number in range(1, 18):
            question = asked(made, number)
            told = whole_round(made, question) if number % 2 else told_void(made, number)
            async for event in told(server):
                yield event

    outcome = silo.lease(lease_of(made), script)
    assert outcome.reply == reply("report-missing", 16), outcome.log
    assert len(outcome.onions) == len(outcome.said) * 2 == 16
    silo.expected += outcome.onions
    outcome = silo.lease(lease_of(made), whole_round(made, asked(made, 17)))
    assert outcome.reply == reply("report-missing", 0)
    assert outcome.frames == 0
    assert f"silomix silo resume SILO.toml {made.study.short_id}" in outcome.log
    silo.goes_on()  # in other studies
    silo.kill_and_restart()
    outcome = silo.lease(lease_of(made), whole_round(made, asked(made, 17)))
    assert outcome.reply == reply("report-missing", 0)
    config, folder = silo.made.silos[0], silo.made.folder
    resumed = silomix("silo", "resume", str(config), made.study.short_id, cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    silo.answered(made, 17)


def test_statements_that_do_not_hold_are_refused(silo: Attacked) -> None:
    made = silo.another_study()
    descriptor = asked(made, 1).descriptor
    first, last = passages(made, descriptor, [[OTHER], [OTHER]])
    last.passage.statement.signature = first.passage.statement.signature
    script = in_turn(
        answered_then(made, lambda gated: committed(made, descriptor, [OTHER])),
        saying(first, last),
    )
    message = silo.refused(lease_of(made), script, answered=1)
    assert message == "the signature on this batch is not valid"


EVENTS = {
    "nothing": Event(),
    "a-chunk": Event(query_chunk=b"out of turn"),
    "tokens": Event(tokens=channel_pb2.TokenReply(first_round=1, evaluated=[b""])),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_an_event_out_of_turn_is_refused(silo: Attacked, event: Event) -> None:
    silo.refused(lease_of(silo.made), saying(event))


CLIP = b"\x79" + pack("<d", 9.0)  # a protobuf field 15, fixed64


def test_a_descriptor_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    encoded = hostile(silo.made, query, round=2).descriptor + CLIP
    signature = server_key(silo.made).sign("descriptor", encoded)
    signed = round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)
    message = silo.refused(lease_of(silo.made), opening(silo.made, signed, query))
    assert message == "the descriptor disagrees with the study: encoding"


def test_a_query_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE) + CLIP
    script = opening(silo.made, hostile(silo.made, query, round=2), query)
    assert silo.refused(lease_of(silo.made), script) == "the query says more than a point"


def test_a_lease_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    fields = lease_of(silo.made, clip="9.0")
    assert silo.refused(fields, ask(silo.made)) == "the message is more than a lease"


def test_a_lease_whose_name_would_fill_the_log_is_refused(silo: Attacked) -> None:
    fields = lease_of(silo.made) | {"lease": "x" * 65}
    assert silo.refused(fields, ask(silo.made)) == "the message is more than a lease"


def test_a_policy_lowered_while_the_silo_runs_holds_from_the_next_lease_on(silo: Attacked) -> None:
    other, policy = silo.another_study(), silo.made.silos[0].parent / "policy.toml"
    before = policy.read_text()
    policy.write_text("epsilon = 0.1\ndelta = 1e-5\nminimum_batch = 1\n")
    try:
        on_disk = silo.siege.on_disk()
        outcome = silo.lease(lease_of(other), just_asked(other))
        assert outcome.reply == reply("budget-exhausted", 0)
        assert outcome.frames == 0
        assert silo.siege.on_disk() == on_disk
    finally:
        policy.write_text(before)
    silo.answered(other, 1)


def just_asked(made: Consortium) -> Script:
    """The first round is opened, and no more is said."""
    question = asked(made, 1)
    return opening(made, question.descriptor.to_wire(), question.query)


def test_a_policy_that_cannot_be_read_answers_nothing(silo: Attacked) -> None:
    other, policy = silo.another_study(), silo.made.silos[0].parent / "policy.toml"
    before = policy.read_text()
    policy.write_text("epsilon = \n")
    try:
        outcome = silo.lease(lease_of(other), just_asked(other))
        assert outcome.reply == reply("refused", 0)
        assert outcome.frames == 0
    finally:
        policy.write_text(before)
    silo.goes_on()
