"""The server is the adversary: what it may ask a real silo process, with every true key it has.

One silo is run from its command line and reached over TLS as in production; server, mixes and
Flower are played.  Whatever was not agreed is refused: the lease ends, the ledger is what it was
to the byte, and not one frame reaches the first mix.  Then the silo goes on.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count
from struct import pack

import numpy as np
import pytest
from silomix.consortium import Consortium
from silomix.demo.run import free_ports
from silomix_client.approve import approve, review
from silomix_client.config import load
from silomix_client.ledger_check import verify
from silomix_core.study import InvalidStudy, Study
from silomix_proto import round_pb2
from silomix_protocol.descriptor import Descriptor, issue
from silomix_protocol.keys import SigningKey
from support.consortia import make_consortium
from support.hostile import (
    Outcome,
    Script,
    Siege,
    besieged,
    in_turn,
    lease_of,
    opening,
    whole_round,
)
from support.processes import silomix
from support.silos import NOW, asked, hostile, open_ledger, query_at, server_key, study_file

ORIGIN = [0.0, 0.0, 0.0]
ELSEWHERE = [1.0, -2.0, 3.0]
ROUNDS = 5


class Attacked:
    """The silo under attack: its leases, and one round that it has answered before."""

    def __init__(self, runner: asyncio.Runner, siege: Siege) -> None:
        self._runner, self.siege, self.made = runner, siege, siege.made
        self._names = (f'name = "another {number}"'.encode() for number in count(1))
        self.expected: list[bytes] = []  # everything that may ever reach the first mix
        self._known = self.answered(self.made, 1)

    def lease(self, fields: dict[str, str], script: Script) -> Outcome:
        return self._runner.run(self.siege.lease(fields, script))

    def answered(self, made: Consortium, number: int, point: list[float] = ORIGIN) -> bytes:
        """An honest round in a lease of its own; the report that it brought."""
        outcome = self.lease(lease_of(made), whole_round(*asked(made, number, point)))
        assert outcome.reply == reply("done", 1), outcome.log
        (onion,) = outcome.onions
        assert outcome.frames == 1
        self.expected.append(onion)
        return onion

    def refused(self, fields: dict[str, str], script: Script, *, answered: int = 0) -> str:
        """This lease ends as refused and leaves no trace; why, as the operator reads it.

        With `answered` rounds before what is refused, those are all that was charged and sent.
        """
        before = self.siege.on_disk()
        outcome = self.lease(fields, script)
        assert outcome.reply == reply("refused", answered), outcome.log
        assert outcome.frames == answered
        if not answered:
            assert self.siege.on_disk() == before
        self.expected += outcome.onions
        self.goes_on()
        (told,) = (line for line in outcome.log.splitlines() if "_refused " in line)
        return told.partition("reason=")[2].strip('"')

    def goes_on(self) -> None:
        """The next lease is served.  Its question is an old one: the same report, no charge."""
        before = self.siege.on_disk()
        assert self.answered(self.made, 1) == self._known
        assert self.siege.on_disk() == before

    def another_study(self, *changes: tuple[bytes, bytes]) -> Consortium:
        """A study that the operator approves while the silo runs, and of which nothing is asked."""
        renamed = study_file(self.made).replace(b'name = "test"', next(self._names), 1)
        content = changed(renamed, *changes)
        approve(self.siege.config, review(self.siege.config, content), NOW)
        return replace(self.made, study=Study.parse(content))

    def kill_and_restart(self) -> None:
        self._runner.run(self.siege.kill())
        self._runner.run(self.siege.start())


def reply(ending: str, answered: int) -> dict[str, str]:
    return {"silo": "silo-1", "ending": ending, "answered": str(answered)}


def changed(content: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    for old, new in changes:
        assert old in content
        content = content.replace(old, new, 1)
    return content


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A silo with budget for many studies; in the end, nothing else was ever sent or charged."""
    folder = tmp_path_factory.mktemp("hostile-server") / "consortium"
    made = make_consortium(folder, minimum_batch=1, rounds=ROUNDS)
    (made.silos[0].parent / "policy.toml").write_text("epsilon = 50.0\ndelta = 1e-5\n")
    config = load(made.silos[0])
    approve(config, review(config, study_file(made)), NOW)
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
    assert ledger.total().rounds == len(set(attacked.expected))
    verify(ledger)
    ledger.close()


def ask(made: Consortium, point: list[float] = ELSEWHERE, **fields: object) -> Script:
    """Round 2, which was never answered, with a correctly signed descriptor of these fields."""
    query = query_at(point)
    return opening(hostile(made, query, **{"round": 2} | fields), query)


# Another study -----------------------------------------------------------------------------------

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
    "a-weight": (b"records = 40", b"records = 40\nweight = 2.0"),
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
        study, key = Study.parse(content), server_key(silo.made)
        signed = issue(study, study.rounds, ("silo-1",), query, key).to_wire()
    except InvalidStudy:
        signed = hostile(silo.made, query, study=sha256(content).digest())
    message = silo.refused(lease_of(silo.made), opening(signed, query))
    assert message.startswith("the descriptor disagrees with the study: study")


def test_a_round_of_another_approved_study_is_refused(silo: Attacked) -> None:
    other = silo.another_study()
    script = opening(asked(other, 1)[0].to_wire(), asked(other, 1)[1])
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the descriptor disagrees with the study: study"
    silo.answered(other, 1)  # in its own lease it is a good question


def test_a_lease_of_another_server_s_study_is_refused(silo: Attacked) -> None:
    address = silo.made.study.server.fleet_address.encode()
    (port,) = free_ports(1)
    other = silo.another_study((address, f"127.0.0.1:{port}".encode()))
    message = silo.refused(lease_of(other), whole_round(*asked(other, 1)))
    assert message == "the study belongs to another server"


def test_a_study_that_its_operator_closes_is_answered_no_more(silo: Attacked) -> None:
    """Closed by the command line in the middle of a lease; then in leases that follow."""
    made = silo.another_study()

    def close() -> None:
        config, folder = silo.made.silos[0], silo.made.folder
        ended = silomix("silo", "close", str(config), made.study.short_id, "--yes", cwd=folder)
        assert ended.returncode == 0, ended.stderr

    first, again = whole_round(*asked(made, 1)), ask(made)
    message = silo.refused(lease_of(made), in_turn(first, again, close), answered=1)
    assert message == "this study is closed here, or was never approved"
    for number in (1, 2):
        message = silo.refused(lease_of(made), whole_round(*asked(made, number)))
        assert message == "the study is closed here"


# Leases ------------------------------------------------------------------------------------------


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


# Descriptors -------------------------------------------------------------------------------------

OTHER_DESCRIPTORS: dict[str, dict[str, object]] = {
    "round-0": {"round": 0},
    "one-round-more": {"round": ROUNDS + 1},
    "the-largest-round": {"round": 2**32 - 1},
    "a-second-attempt": {"attempt": 2},
    "another-version": {"version": 2},
    "another-suite": {"suite": "none"},
    "no-study": {"study": b""},
    "one-dimension-less": {"dimension": 2},
    "one-dimension-more": {"dimension": 4},
    "a-smaller-batch": {"minimum_batch": 0},
    "a-longer-deadline": {"deadline_ms": 86_400_000},
    "nobody-to-wait-for": {"silos": []},
    "a-stranger-to-wait-for": {"silos": ["silo-1", "silo-9"]},
    "the-silo-twice": {"silos": ["silo-1", "silo-1"]},
    "no-query": {"query": b""},
    "another-server-key": {"server_key": bytes(32)},
    "no-mixes": {"mix_keys": []},
    "mixes-of-its-own": {"mix_keys": [bytes(32), bytes(32)]},
}


@pytest.mark.parametrize("fields", OTHER_DESCRIPTORS.values(), ids=OTHER_DESCRIPTORS)
def test_a_signed_descriptor_that_disagrees_with_the_study_is_refused(
    silo: Attacked, fields: dict[str, object]
) -> None:
    message = silo.refused(lease_of(silo.made), ask(silo.made, **fields))
    assert message.startswith("the descriptor disagrees with the study: ")


def test_a_round_that_waits_for_the_other_silos_only_is_refused(silo: Attacked) -> None:
    script = ask(silo.made, silos=["silo-2", "silo-3"])
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the round does not wait for this silo"


@pytest.mark.parametrize("signer", ["a stranger", "mix-1", "silo-1"])
def test_a_descriptor_signed_by_another_key_is_refused(silo: Attacked, signer: str) -> None:
    path = silo.made.folder / signer / "sign.key"
    key = SigningKey.load(path) if path.exists() else SigningKey.generate()
    query = query_at(ELSEWHERE)
    script = opening(hostile(silo.made, query, key, round=2), query)
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
    message = silo.refused(lease_of(silo.made), opening(signed, query))
    assert message == "the signature on this descriptor is not valid"


def test_a_descriptor_changed_after_it_was_signed_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    signed = hostile(silo.made, query, round=2)
    other = hostile(silo.made, query, round=3)
    mixed = round_pb2.SignedDescriptor(descriptor=other.descriptor, signature=signed.signature)
    message = silo.refused(lease_of(silo.made), opening(mixed, query))
    assert message == "the signature on this descriptor is not valid"


# Points ------------------------------------------------------------------------------------------

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
    message = silo.refused(lease_of(silo.made), opening(signed, query_at(point)))
    assert message == "the query is not the one that the descriptor names"


@pytest.mark.parametrize("query", [b"\xff", b"\x0a\x18", b"\x0b"])
def test_a_query_that_cannot_be_read_is_refused(silo: Attacked, query: bytes) -> None:
    script = opening(hostile(silo.made, query, round=2), query)
    assert silo.refused(lease_of(silo.made), script) == "the query cannot be read"


@pytest.mark.parametrize("announced", [8 * 3 + 65, 2**62])
def test_a_query_announced_larger_than_any_point_is_refused(silo: Attacked, announced: int) -> None:
    query = query_at(ELSEWHERE)
    script = opening(hostile(silo.made, query, round=2), query, announced)
    message = silo.refused(lease_of(silo.made), script)
    assert message == "the query is larger than the study allows"


def test_a_query_that_breaks_off_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    script = opening(hostile(silo.made, query, round=2), query[:-1], len(query))
    assert silo.refused(lease_of(silo.made), script) == "the query broke off"


# Rounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_lease", [True, False], ids=["same-lease", "next-lease"])
def test_a_repeated_round_with_another_point_is_refused(silo: Attacked, same_lease: bool) -> None:
    made = silo.another_study()
    first, other = whole_round(*asked(made, 1)), whole_round(*asked(made, 1, ELSEWHERE))
    if same_lease:
        message = silo.refused(lease_of(made), in_turn(first, other), answered=1)
    else:
        silo.answered(made, 1)
        message = silo.refused(lease_of(made), other)
    assert message == "round 1 was asked again with another query"
    silo.answered(made, 2)


def test_a_repeated_round_for_other_silos_is_refused(silo: Attacked) -> None:
    """The same point under another descriptor: noise is not drawn twice for it either."""
    made = silo.another_study()
    silo.answered(made, 1)
    query = query_at(ORIGIN)
    script = opening(hostile(made, query, silos=["silo-1", "silo-2"]), query)
    message = silo.refused(lease_of(made), script)
    assert message == "round 1 was asked again with another query"


def test_the_same_question_again_gets_the_very_same_bytes_at_no_charge(silo: Attacked) -> None:
    made = silo.another_study()
    onion = silo.answered(made, 1)
    before = silo.siege.on_disk()
    again = whole_round(*asked(made, 1))
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
    message = silo.refused(lease_of(made), whole_round(*asked(made, 1)))
    assert message == "round 1 was asked again with another query"
    assert silo.siege.on_disk()[0][0] == rows


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_skipped_back_round_is_refused(silo: Attacked, skipped: int) -> None:
    made = silo.another_study()
    silo.answered(made, 3)
    message = silo.refused(lease_of(made), whole_round(*asked(made, skipped)))
    assert message == f"round {skipped} comes after round 3 was answered"


def test_an_earlier_round_asked_again_word_for_word_is_refused(silo: Attacked) -> None:
    made = silo.another_study()
    for number in (1, 2):
        silo.answered(made, number)
    message = silo.refused(lease_of(made), whole_round(*asked(made, 1)))
    assert message == "that round is over; its report is no longer kept"


def test_no_round_follows_the_last_one(silo: Attacked) -> None:
    """All agreed rounds, then every further question that the server could think of."""
    made = silo.another_study()
    for number in range(1, ROUNDS + 1):
        silo.answered(made, number)
    for number, point, reason in [
        (ROUNDS + 1, ORIGIN, "the descriptor disagrees with the study: round"),
        (ROUNDS, ELSEWHERE, f"round {ROUNDS} was asked again with another query"),
        (1, ELSEWHERE, "round 1 was asked again with another query"),
    ]:
        assert silo.refused(lease_of(made), ask(made, point, round=number)) == reason


# Fields that nobody defined ----------------------------------------------------------------------

CLIP = b"\x79" + pack("<d", 9.0)  # a protobuf field 15, fixed64


def test_a_descriptor_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE)
    encoded = hostile(silo.made, query, round=2).descriptor + CLIP
    signature = server_key(silo.made).sign("descriptor", encoded)
    signed = round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)
    message = silo.refused(lease_of(silo.made), opening(signed, query))
    assert message == "the descriptor disagrees with the study: encoding"


def test_a_query_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    query = query_at(ELSEWHERE) + CLIP
    script = opening(hostile(silo.made, query, round=2), query)
    assert silo.refused(lease_of(silo.made), script) == "the query says more than a point"


def test_a_lease_with_a_field_that_nobody_defined_is_refused(silo: Attacked) -> None:
    fields = lease_of(silo.made, clip="9.0")
    assert silo.refused(fields, ask(silo.made)) == "the message is more than a lease"


def test_a_lease_whose_name_would_fill_the_log_is_refused(silo: Attacked) -> None:
    fields = lease_of(silo.made) | {"lease": "x" * 65}
    assert silo.refused(fields, ask(silo.made)) == "the message is more than a lease"


# The operator's word, while the silo runs --------------------------------------------------------


def test_a_policy_lowered_while_the_silo_runs_holds_from_the_next_lease_on(silo: Attacked) -> None:
    other, policy = silo.another_study(), silo.made.silos[0].parent / "policy.toml"
    before = policy.read_text()
    policy.write_text("epsilon = 0.1\ndelta = 1e-5\n")
    try:
        on_disk = silo.siege.on_disk()
        outcome = silo.lease(lease_of(other), opening(*in_order(asked(other, 1))))
        assert outcome.reply == reply("budget-exhausted", 0)
        assert outcome.frames == 0
        assert silo.siege.on_disk() == on_disk
    finally:
        policy.write_text(before)
    silo.answered(other, 1)


def in_order(question: tuple[Descriptor, bytes]) -> tuple[round_pb2.SignedDescriptor, bytes]:
    return question[0].to_wire(), question[1]


def test_a_policy_that_cannot_be_read_answers_nothing(silo: Attacked) -> None:
    other, policy = silo.another_study(), silo.made.silos[0].parent / "policy.toml"
    before = policy.read_text()
    policy.write_text("epsilon = \n")
    try:
        outcome = silo.lease(lease_of(other), opening(*in_order(asked(other, 1))))
        assert outcome.reply == reply("refused", 0)
        assert outcome.frames == 0
    finally:
        policy.write_text(before)
    silo.goes_on()
