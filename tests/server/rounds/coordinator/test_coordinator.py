"""A whole study at the coordinator: real channel, journal and tokens; mixes and silos are fakes.

The silos send made-up reports, the mixes fail on demand; what is looked at is which rounds count,
which are tried again and which never are.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from silomix_core.algorithms.base import Aggregate, Query
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.reports.aggregation import USUAL
from silomix_core.reports.length_bound import longest_reports
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.host.durable import open_database
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.descriptor import Descriptor, check
from silomix_protocol.rounds.heights import SCHEMA as HEIGHTS
from silomix_protocol.rounds.heights import kept_heights
from silomix_protocol.rounds.round_keys import KeyBook
from silomix_protocol.rounds.statements import check_abandoned
from silomix_server.errors import StudyFailed
from silomix_server.rounds.coordinator import Coordinator
from silomix_server.study.journal import Journal
from support.consortia import make_consortium
from support.coordinated_studies import FAILED, ROUNDS, Outlives, Scene, lines, once, study, voids
from support.coordinators import FakeChain, PlainSilo, aborted, signer
from support.heights import some_height


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
        assert (middle > 1.5 * 10**6).all()
        assert (middle < 4 * 10**6).all()
        replayed.append(steps.send(Aggregate.of(closed.total, closed.reports, mechanism.grids[0])))
    assert len(asked) == ROUNDS
    for query, sent in zip(replayed, asked, strict=True):
        assert query.point.astype("<f8").tobytes() in sent


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
