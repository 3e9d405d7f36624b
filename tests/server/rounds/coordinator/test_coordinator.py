"""A whole study at the coordinator: real channel, journal and tokens; mixes and silos are fakes.

The silos send made-up reports, the mixes fail on demand; what is looked at is which rounds count,
which are tried again and which never are.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity
from silomix_core.algorithms.base import Aggregate, Query
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.reports.aggregation import USUAL
from silomix_core.reports.length_bound import longest_reports
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.host.durable import open_database
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check
from silomix_protocol.rounds.heights import SCHEMA as HEIGHTS
from silomix_protocol.rounds.heights import kept_heights
from silomix_protocol.rounds.round_keys import KeyBook
from silomix_protocol.rounds.statements import check_abandoned, check_closing, is_ended
from silomix_protocol.rounds.tokens import Token, blind
from silomix_server.config import load
from silomix_server.errors import StudyFailed
from silomix_server.mixes import mix_chain as chain_module
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.rounds import availability as membership_module
from silomix_server.rounds.coordinator import Coordinator, run_study
from silomix_server.study.journal import Journal
from silomix_server.study.results import progress
from support.consortia import make_consortium
from support.coordinators import FakeChain, PlainSilo, aborted, signer
from support.heights import some_height
from support.mixes import run
from support.silos import altered

ROUNDS = 4
FAILED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_CALL_S", 2.0)
    monkeypatch.setattr(membership_module, "_REPLY_S", 0.0)
    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower sets in a ServerApp's process
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "consortium", rounds=ROUNDS, deadline_s=1.0)


@dataclass
class FakeGrid:
    """Flower as the coordinator sees it: nodes that are online, and leases that reach them."""

    silos: list[PlainSilo]
    loop: asyncio.AbstractEventLoop
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def get_nodes(self) -> list[SimpleNamespace]:
        names = [silo.name for silo in self.silos]
        return [SimpleNamespace(name=name, node_id=at) for at, name in enumerate(names, start=1)]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for message in messages:
            lease = str(message.content["lease"]["lease"])
            silo = self.silos[message.metadata.dst_node_id - 1]
            self.loop.call_soon_threadsafe(self._start, silo, lease)
        return [str(at) for at in range(len(messages))]

    def pull_messages(self, _ids: list[str]) -> list[Any]:
        return []

    def _start(self, silo: PlainSilo, lease: str) -> None:
        self.tasks.append(self.loop.create_task(silo.follow(lease)))


@dataclass
class Scene:
    """What a test may change before the study starts."""

    made: Consortium
    chain: FakeChain
    silos: list[PlainSilo]
    running: "asyncio.Task[None] | None" = None

    def stop(self) -> None:
        """End the coordinator, as a signal does."""
        assert self.running is not None
        self.running.cancel()

    def opened(self) -> list[tuple[int, int]]:
        """Rounds and attempts that the first mix opened, in order."""
        return [(each.round, each.attempt) for each in self.chain.mixes[0].told.opened]


@dataclass
class Outlives:
    """What is still there when a coordinator is gone: the silos' tokens, and the mixes."""

    chain: FakeChain
    wallets: dict[str, dict[int, Token]] = field(default_factory=dict)


def study(
    made: Consortium,
    change: Callable[[Scene], None] = lambda _: None,
    earlier: Outlives | None = None,
) -> Scene:
    """Run the study to its end, or to its failure, which is raised."""
    others = earlier or Outlives(FakeChain(made))

    async def scenario() -> Scene:
        silos = [
            PlainSilo(
                made, silo.name, 1 + at, others.chain, others.wallets.setdefault(silo.name, {})
            )
            for at, silo in enumerate(made.study.silos)
        ]
        scene = Scene(made, others.chain, silos)
        change(scene)
        grid = FakeGrid(silos, asyncio.get_running_loop())
        async with others.chain.serving():
            study_run = run_study(load(made.server), grid)  # type: ignore[arg-type]
            scene.running = asyncio.create_task(study_run)
            try:
                await scene.running
            finally:
                for task in grid.tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                        await task
        return scene

    return run(scenario(), timeout_s=60.0)


def lines(made: Consortium) -> list[dict[str, float]]:
    return progress(made.server.parent / "state")


def voids(made: Consortium) -> list[bool]:
    return [bool(line["void"]) for line in lines(made)]


def once(answer: Any, times: int = 1) -> Callable[[Any], Any]:
    """A fault that happens that often."""
    left = [answer] * times
    return lambda honest: left.pop() if left else honest


# Rounds that go well -----------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "tokens"), [(True, True), (True, False), (False, True)])
def test_a_study_runs_from_its_first_round_to_its_model(
    tmp_path: Path, gate: bool, tokens: bool
) -> None:
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, gate=gate, tokens=tokens)
    scene = study(made)
    assert voids(made) == [False] * ROUNDS
    assert [(line["accepted"], line["attempts"]) for line in lines(made)] == [(3, 1)] * ROUNDS
    assert scene.opened() == [(number, 1) for number in range(1, ROUNDS + 1)]
    calls = scene.chain.mixes[0].told.calls
    assert calls.count("Prepare") == 1
    assert calls.count("Release") == (ROUNDS if gate else 0)
    assert (made.server.parent / "state" / "model.npz").exists()


def test_heights_of_silos_ledgers_outlive_the_coordinator(tmp_path: Path) -> None:
    """The next one shows them: one that was put back hears of it from whichever it meets."""
    made = make_consortium(tmp_path / "c", rounds=2)
    study(made)
    path = made.server.parent / "state" / "heights.sqlite"
    with closing(open_database(path, HEIGHTS, 1)) as table:
        kept = kept_heights(table)
    names = [silo.name for silo in made.study.silos]
    assert kept == {signer(made, each).public: some_height(made, each) for each in names}


def test_every_lease_has_a_stretch_of_its_own(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, lease_rounds=3)
    scene = study(made)
    heard = [each.stretch for each in scene.silos[0].heard if each.HasField("stretch")]
    assert [(each.first_round, len(each.lists[0].keys)) for each in heard] == [(1, 3), (4, 1)]
    assert voids(made) == [False] * ROUNDS


def test_no_silo_is_asked_before_every_mix_opened_the_round(made: Consortium) -> None:
    events: list[str] = []

    def change(scene: Scene) -> None:
        for mix in scene.chain.mixes:

            def note(answer: object, name: str = f"mix-{mix.hop + 1}") -> object:
                events.append(name)
                return answer

            mix.faults["Open"] = note
        scene.chain.deliver = noting(scene.chain.deliver, events)  # type: ignore[method-assign]

    study(made, change)
    for start in range(0, len(events), 5):
        assert set(events[start : start + 2]) == {"mix-1", "mix-2"}
        assert events[start + 2 : start + 5] == ["report"] * 3


def noting(deliver: Callable[..., None], events: list[str]) -> Callable[..., None]:
    def noted(*arguments: Any) -> None:
        events.append("report")
        deliver(*arguments)

    return noted


def test_the_servers_key_of_a_round_is_never_on_disk(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: list[bytes] = []
    generate = SealKey.generate

    def generated() -> SealKey:
        key = generate()
        secrets.append(key.raw)
        return key

    monkeypatch.setattr(SealKey, "generate", generated)
    study(made)
    assert len(secrets) > ROUNDS
    for path in (made.server.parent / "state").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(raw[:32] in content or raw[64:] in content for raw in secrets)


# What a silo with other software sends -----------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "event", "accepted"), [(1.01, "reports_too_long", 2), (0.99, "reports_outlying", 3)]
)
def test_contents_that_no_honest_silo_sends_are_counted_and_nobody_is_named(
    made: Consortium, caplog: pytest.LogCaptureFixture, share: float, event: str, accepted: int
) -> None:
    """A report beyond the longest is left out; one just below it is used, and far from others."""
    mechanism = made.study.mechanism()
    participants = [made.study.participant(silo) for silo in made.study.silos]
    (longest,) = longest_reports(mechanism, participants)

    def change(scene: Scene) -> None:
        scene.silos[1].value = round(share * longest / sqrt(mechanism.dimension))

    with caplog.at_level(logging.WARNING, "silomix"):
        study(made, change)
    assert voids(made) == [False] * ROUNDS
    assert [line["accepted"] for line in lines(made)] == [accepted] * ROUNDS
    assert [line["too_long"] for line in lines(made)] == [3 - accepted] * ROUNDS
    assert [line["dropped"] for line in lines(made)] == [3 - accepted] * ROUNDS
    assert [line["outlying"] for line in lines(made)] == [accepted - 2] * ROUNDS
    warned = [line for line in caplog.messages if line.startswith(event)]
    assert len(warned) == ROUNDS
    assert not any(silo.name in line for line in caplog.messages for silo in made.study.silos)


def test_the_journal_has_what_the_rule_made_of_reports_and_replayed_it_asks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, minimum_batch=3)
    assert made.study.aggregation == USUAL
    asked: list[bytes] = []
    encoded = Coordinator._encoded

    def noted(self: Coordinator, query: Query) -> bytes:
        asked.append(encoded(self, query))
        return asked[-1]

    monkeypatch.setattr(Coordinator, "_encoded", noted)

    def change(scene: Scene) -> None:
        for silo, value in zip(scene.silos, (3 * 10**6, 4 * 10**6, -4 * 10**6), strict=True):
            silo.value = value

    study(made, change)
    state = made.server.parent / "state"
    rounds = Journal(state / f"journal-{made.study.short_id}.sqlite").rounds()
    mechanism = made.study.mechanism()
    steps = algorithm(made.study.algorithm).start(made.study.algorithm_plan(mechanism))
    replayed = [next(steps)]
    for closed in rounds[:-1]:
        assert closed.total is not None
        middle = closed.total / closed.reports  # the mean would be 10⁶
        assert (middle > 2 * 10**6).all()
        assert (middle < 4 * 10**6).all()
        replayed.append(steps.send(Aggregate.of(closed.total, closed.reports, mechanism.grids[0])))
    assert len(asked) == ROUNDS
    for query, sent in zip(replayed, asked, strict=True):
        assert query.point.astype("<f8").tobytes() in sent


# Attempts ----------------------------------------------------------------------------------------


def opened_to(silo: PlainSilo, number: int, study_made: Consortium) -> list[Descriptor]:
    events = [each.opened for each in silo.heard if each.HasField("opened")]
    found = [check(each.descriptor, study_made.study) for each in events]
    return [each for each in found if each.round == number]


def test_a_round_that_a_mix_did_not_open_is_tried_again_and_asked_once(made: Consortium) -> None:
    def change(scene: Scene) -> None:
        scene.chain.mixes[1].faults["Open"] = once(FAILED)

    scene = study(made, change)
    assert scene.opened()[:2] == [(1, 1), (1, 2)]
    assert voids(made) == [False] * ROUNDS
    assert [line["attempts"] for line in lines(made)] == [2, 1, 1, 1]
    (asked,) = opened_to(scene.silos[0], 1, made)
    assert asked.attempt == 2


def test_silos_get_every_mixs_statement_with_a_further_attempt(made: Consortium) -> None:
    def change(scene: Scene) -> None:
        last = scene.chain.mixes[1]

        def abort_first(answer: list[mix_pb2.BatchFrame]) -> object:
            digest = last.told.opened[-1].digest
            if last.told.opened[-1].attempt == 2 or last.told.opened[-1].round > 1:
                return answer
            return list(frames(digest, aborted(made, digest, "too few"), []))

        last.faults["Collect"] = abort_first

    scene = study(made, change)
    first, second = opened_to(scene.silos[0], 1, made)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.query == second.query
    assert not {*first.mix_keys, first.server_key} & {*second.mix_keys, second.server_key}
    told = [each.opened for each in scene.silos[0].heard if each.HasField("opened")][1]
    check_abandoned(told.abandoned, first.digest, made.study)
    book = KeyBook(made.study)
    book.add(list(told.lists))
    book.check(second, list(told.mix_keys))
    assert voids(made) == [False] * ROUNDS


def test_a_round_that_a_mix_does_not_abandon_is_void_and_the_next_goes_on(
    made: Consortium,
) -> None:
    def change(scene: Scene) -> None:
        scene.chain.mixes[1].faults["Collect"] = once(FAILED)
        scene.chain.mixes[0].faults["Abandon"] = lambda _: FAILED

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    closed = [each.closed for each in scene.silos[0].heard if each.HasField("closed")]
    assert [each.void for each in closed] == [True, False, False, False]


def test_three_attempts_and_no_more(made: Consortium) -> None:
    def change(scene: Scene) -> None:
        scene.chain.mixes[1].faults["Collect"] = once(FAILED, 3)

    scene = study(made, change)
    assert scene.opened()[:4] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert voids(made) == [True, False, False, False]


def test_a_mix_that_fails_before_anybody_was_asked_ends_the_study_not_the_round(
    made: Consortium,
) -> None:
    """Run again, the study goes on with the same round: nothing of it was lost."""

    def change(scene: Scene) -> None:
        scene.chain.mixes[1].faults |= {"Open": lambda _: FAILED, "Abandon": lambda _: FAILED}

    others = Outlives(FakeChain(made))
    with pytest.raises(StudyFailed, match=r"mix-2 .*no silo was asked and no budget spent"):
        study(made, change, others)
    assert lines(made) == []
    others.chain.mixes[1].faults.clear()
    scene = study(made, earlier=others)
    assert scene.opened() == [(1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    assert voids(made) == [False] * ROUNDS
    (asked,) = opened_to(scene.silos[0], 1, made)
    assert asked.attempt == 2


def test_below_the_floor_of_free_disk_no_silo_is_asked(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again when there is room, the study goes on with the same round."""
    others = Outlives(FakeChain(made))
    with monkeypatch.context() as full:
        full.setattr("silomix_protocol.host.free_disk.LEAST_FREE_BYTES", 2**62)
        with pytest.raises(StudyFailed, match=r"MB are free in .*no silo was asked"):
            study(made, earlier=others)
    assert lines(made) == []
    scene = study(made, earlier=others)
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert voids(made) == [False] * ROUNDS


# Batches that do not open ------------------------------------------------------------------------


def test_a_batch_that_too_few_silos_confirm_stays_closed_and_is_not_tried_again(
    made: Consortium,
) -> None:
    def change(scene: Scene) -> None:
        for silo in scene.silos[1:]:
            silo.confirms = False

    with pytest.raises(StudyFailed, match="3 rounds in a row were void"):
        study(made, change)
    assert voids(made) == [True] * 3
    assert [line["attempts"] for line in lines(made)] == [1] * 3


def test_a_server_that_is_started_again_counts_void_rounds_on_and_pauses(
    made: Consortium, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its processes would otherwise cost every silo three more rounds."""

    def change(scene: Scene) -> None:
        for silo in scene.silos[1:]:
            silo.confirms = False

    monkeypatch.setattr("silomix_server.rounds.coordinator._LONGEST_PAUSE_S", 0.01)
    others = Outlives(FakeChain(made))
    with pytest.raises(StudyFailed, match="3 rounds in a row were void"):
        study(made, change, earlier=others)
    assert "pause" not in caplog.text
    with pytest.raises(StudyFailed, match="4 rounds in a row were void"):
        study(made, change, earlier=others)
    assert "pause rounds_void=3 seconds=0.01" in caplog.text
    assert voids(made) == [True] * 4


def test_a_mix_that_releases_another_key_is_named_and_the_round_is_void(
    made: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    def change(scene: Scene) -> None:
        wrong = mix_pb2.ReleasedKey(key=SealKey.generate().raw)
        scene.chain.mixes[0].faults["Release"] = once(wrong)

    with caplog.at_level(logging.WARNING, "silomix"):
        scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert (1, 2) not in scene.opened()
    assert any("round_lost" in line and "mix-1" in line for line in caplog.messages)


def test_no_list_is_published_that_a_mix_does_not_stand_by(made: Consortium) -> None:
    """Nor is the round tried again: the batch was here."""

    def change(scene: Scene) -> None:
        scene.chain.mixes[0].faults["Commit"] = once(FAILED)

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    kinds = [each.WhichOneof("event") for each in scene.silos[0].heard]
    assert kinds.count("committed") == ROUNDS - 1


def test_a_batch_that_breaks_off_is_never_asked_for_again(made: Consortium) -> None:
    def change(scene: Scene) -> None:
        broken = [True]

        def cut(answer: list[mix_pb2.BatchFrame]) -> list[mix_pb2.BatchFrame]:
            return answer[:1] if broken and broken.pop() else answer

        scene.chain.mixes[1].faults["Collect"] = cut

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert "Abandon" not in scene.chain.mixes[0].told.calls


def lose_token(made: Consortium, silo: str, number: int) -> None:
    """The silo was given that token and does not have it any more."""
    state = made.server.parent / "state"
    state.mkdir(exist_ok=True)
    desk = TokenDesk(made.study, state)
    lost = channel_pb2.TokenRequest(first_round=number, blinded=[blind().blinded])
    desk.issue(silo, lost)
    desk.close()


def test_a_silo_sits_out_the_round_whose_token_it_lost(made: Consortium) -> None:
    lose_token(made, "silo-3", 2)
    scene = study(made)
    assert [line["asked"] for line in lines(made)] == [3, 3, 3, 3]
    assert [line["accepted"] for line in lines(made)] == [3, 2, 3, 3]
    assert voids(made) == [False] * ROUNDS
    assert 2 not in scene.silos[2].wallet


def test_too_few_silos_with_tokens_end_the_study(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "_REJOIN_S", 0.2)
    monkeypatch.setattr(membership_module, "_FOLLOW_S", 0.5)
    for silo in ("silo-2", "silo-3"):
        lose_token(made, silo, 1)
    with pytest.raises(StudyFailed, match="2 more are connected but have no token for round 1"):
        study(made)
    assert lines(made) == []


# Restarts ----------------------------------------------------------------------------------------


def test_a_round_that_was_open_when_the_coordinator_died_is_void(made: Consortium) -> None:
    """Its server key is gone: nobody can ever open what was sent."""

    def change(scene: Scene) -> None:
        def die(answer: object) -> object:
            if scene.opened()[-1][0] == 2:
                scene.stop()
            return answer

        scene.chain.mixes[1].faults["Release"] = die

    others = Outlives(FakeChain(made))
    with pytest.raises(asyncio.CancelledError):
        study(made, change, others)
    assert len(lines(made)) == 1
    others.chain.mixes[1].faults.clear()
    scene = study(made, earlier=others)
    assert [line["round"] for line in lines(made)] == [1, 3, 4]
    assert scene.opened() == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("where", ["Collect", "Commit", "Release"])
def test_a_coordinator_that_dies_again_and_again_says_what_became_of_every_round(
    made: Consortium, where: str
) -> None:
    """Every mix was asked to make the round void; a silo that asks hears its list, if there was
    one, and that it was not used."""
    others = Outlives(FakeChain(made))

    def dying(number: int) -> Callable[[Scene], None]:
        def change(scene: Scene) -> None:
            def die(answer: object) -> object:
                if scene.opened()[-1][0] == number:
                    scene.stop()
                return answer

            place = -1 if where == "Collect" else 0
            scene.chain.mixes[place].faults[where] = die

        return change

    for number in (1, 2):
        with pytest.raises(asyncio.CancelledError):
            study(made, dying(number), others)
        for mix in others.chain.mixes:
            mix.faults.clear()
    study(made, earlier=others)
    assert [line["round"] for line in lines(made)] == [3, 4]
    calls = others.chain.mixes[0].told.calls
    assert calls.count("Void") == 2
    journal = Journal(made.server.parent / "state" / f"journal-{made.study.short_id}.sqlite")
    tried = others.chain.mixes[0].told.opened
    for descriptor, void in zip(tried, (True, True, False, False), strict=True):
        known = journal.outcome(descriptor.digest)
        assert known is not None
        assert known.closed is not None
        assert not known.pending
        check_closing(known.closed, made.study)
        assert known.closed.void is void
        assert is_ended(known.closed.endings, descriptor.digest, made.study) is void
        assert (known.committed is not None) is (not void or where == "Release")
    journal.close()


def test_a_mix_that_was_away_is_asked_again_before_the_next_round(made: Consortium) -> None:
    """It is there when the next round opens, and silos hear of it before they are asked."""

    def change(scene: Scene) -> None:
        scene.chain.mixes[0].faults["Commit"] = once(FAILED)
        scene.chain.mixes[1].faults["Void"] = once(grpc.StatusCode.DEADLINE_EXCEEDED)

    scene = study(made, change)
    assert voids(made) == [True, False, False, False]
    assert scene.chain.mixes[0].told.calls.count("Void") == 2
    heard = [each for each in scene.silos[0].heard if each.HasField("closed")]
    first = [each.closed for each in heard if each.closed.digest == heard[0].closed.digest]
    assert [is_ended(each.endings, RoundDigest(each.digest), made.study) for each in first] == [
        False,
        True,
    ]
    kinds = [each.WhichOneof("event") for each in scene.silos[0].heard]
    second = [at for at, kind in enumerate(kinds) if kind == "opened"][1]
    assert kinds[:second].count("closed") == 2


def test_silos_with_control_variates_are_told_the_mean_of_the_rounds_that_were_not_void(
    made: Consortium,
) -> None:
    """Round 2 is open when the coordinator dies; all silos send 1, 2 and 3 in every coordinate."""
    made = altered(made, ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 2'))

    def change(scene: Scene) -> None:
        def die(answer: object) -> object:
            if scene.opened()[-1][0] == 2:
                scene.stop()
            return answer

        scene.chain.mixes[1].faults["Release"] = die

    others = Outlives(FakeChain(made))
    with pytest.raises(asyncio.CancelledError):
        study(made, change, others)
    others.chain.mixes[1].faults.clear()
    scene = study(made, earlier=others)
    queries = [
        round_pb2.Query.FromString(event.query_chunk)
        for event in scene.silos[0].heard
        if event.query_chunk
    ]
    assert len(queries) == 2
    step = made.study.mechanism().grids[0] * (1 + 2 + 3) / 3 / 2
    for used, query in enumerate(queries, start=1):
        assert np.allclose(np.frombuffer(query.control, dtype="<f8"), used * step, rtol=1e-12)


def test_another_signing_key_than_the_studys_is_said_at_once(made: Consortium) -> None:
    path = made.server.parent / "sign.key"
    path.write_bytes(bytes(31) + b"\1")

    async def scenario() -> None:
        Coordinator(load(made.server), FakeGrid([], asyncio.get_running_loop()))  # type: ignore[arg-type]

    with pytest.raises(StudyFailed, match="lists another signing key for this server"):
        run(scenario())
