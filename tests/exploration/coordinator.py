"""The honest coordinator as a world of its own: real rounds, killed and started again anywhere.

`RoundPlayer.play` with `RoundState`, `Journal`, `AttemptOutcomes`, `RoundChannel` and `Gate` is run
against real mixes and a real silo with control variates (two more do as they are told).  A
coroutine cannot be put back, so it is run again: a run is a list of choices,
one at every point where something may go wrong, and everything after the list goes well.  What may
go wrong:

    at every call of the mixes   the coordinator is killed before it, or when they have done it
                                 but not answered; with "power" what the journal did not sync is
                                 lost; a mix is away, or does it and its answer is lost
    at every message to the silo, and between rounds
                                 it is killed, or loses its power; it is there again 5 s later
    before a round is opened     the coordinator is killed, or loses its power

States are compared at those points; what was seen with as many faults left is not looked at again.
A study has a few rounds, a path a few faults.  What must hold:

1. no attempt is asked for after a batch of the round came;
2. of no D is it ever said that it was used and that it was void, over all restarts;
3. a silo answers a round when it knows whether its last report was used, and the coordinator's
   journal says the same, then and in the end;
4. without further faults the study ends, every round that had not begun is used, and the silo's
   report is in it.
"""

import asyncio
import selectors
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from exploration.machines import Event as Happening
from exploration.mix import MixMachine, joined, listed_of
from exploration.questions import Name, Questions
from exploration.silo import SiloMachine
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host import durable
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import (
    check_closing,
    is_ended,
    sign_abandonment,
    sign_commitment,
    sign_confirmation,
    sign_voided,
)
from silomix_server.errors import BatchAborted, MixFailed, MixRefused, StudyFailed
from silomix_server.rounds import play_rounds as rounds_module
from silomix_server.rounds.play_rounds import RoundPlayer
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.followers import Follower
from silomix_server.silos.frames import FrameReader
from silomix_server.silos.round_channel import RoundChannel
from silomix_server.study import journal as journal_module
from silomix_server.study.journal import Journal

MOST_ATTEMPTS = 8
_EVERYBODY = 0b111
_AWAY_S = 5.0
_PATIENCE_S = 30.0


Way = tuple[tuple[str, str], ...]  # points, and what happened there


class Broken(Exception):
    """A promise does not hold."""


class Died(BaseException):
    """The coordinator's process ends here."""


@dataclass(frozen=True, slots=True)
class Persisting:
    """What outlives a process of the coordinator."""

    journal: bytes = field(repr=False)
    mixes: tuple[tuple[int, ...], ...]  # by rounds: of both mixes
    silo: int
    came: frozenset[Name] = frozenset()  # batches that reached the coordinator
    said: frozenset[tuple[Name, bool]] = frozenset()  # D, void
    believed: frozenset[tuple[Name, bool]] = frozenset()  # D, used: when the silo went on


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of all runs."""

    runs: int
    states: int
    starts: int
    kinds: Counter[str]
    broken: str | None = None
    way: Way = ()

    def __str__(self) -> str:
        seen = f"{self.starts} starts, {self.states} states, {self.runs} runs"
        if self.broken is None:
            return f"{seen}: every promise holds"
        return "\n  ".join([f"{seen}: {self.broken}", *(" ".join(each) for each in self.way)])


class Coordination:
    """All runs of a coordinator, its mixes and its silos."""

    def __init__(self, questions: Questions, silo: SiloMachine, folder: Path, rounds: int) -> None:
        self.questions, self.silo, self.rounds = questions, silo, rounds
        attempts = range(1, MOST_ATTEMPTS + 1)
        self.mixes = [
            [
                MixMachine(questions, folder / f"{hop}-{number}", hop, names)
                for hop in (0, 1)
                for names in [[(number, each, 0) for each in attempts]]
            ]
            for number in range(1, rounds + 1)
        ]
        self.journal = Journal(folder / "journal.sqlite")
        self._first = image_of(self.journal)

    def close(self) -> None:
        self.journal.close()
        for each in [mix for own in self.mixes for mix in own]:
            each.close()

    def look(self, faults: int) -> Looked:
        """Every run with at most so many faults, over all restarts; those with fewer first."""
        mixes = tuple(tuple(mix.first for mix in own) for own in self.mixes)
        start = Persisting(self._first, mixes, self.silo.first)
        waiting: deque[tuple[Persisting, int, tuple[str, ...], Way]] = deque([(start, 0, (), ())])
        starts: dict[Hashable, int] = {self.key(start): 0}
        seen: dict[Hashable, int] = {}
        kinds: Counter[str] = Counter()
        runs = 0
        while waiting:
            before, spent, chosen, way = waiting.popleft()
            runs += 1
            run = _Run(self, before, chosen)
            try:
                after = run.take()
            except Broken as broken:
                taken = (*way, *run.taken)
                return Looked(runs, len(seen), len(starts), kinds, str(broken), taken)
            kinds.update(f"{point} {choice}" for point, choice in run.taken)
            for at in range(len(chosen), len(run.points)):
                state, options = run.points[at]
                if seen.get(state, faults + 1) <= spent:
                    break
                seen[state] = spent
                if spent < faults:
                    done = (*chosen, *("well",) * (at - len(chosen)))
                    others = [(*done, each) for each in options if each != "well"]
                    waiting.extend((before, spent + 1, each, way) for each in others)
            if after is not None:
                key = self.key(after)
                if starts.get(key, faults + 1) > spent:
                    starts[key] = spent
                    waiting.appendleft((after, spent, (), (*way, *run.taken)))
        return Looked(runs, len(seen), len(starts), kinds)

    def key(self, state: Persisting) -> Hashable:
        rows = self.rows(state.journal)
        return rows, state.mixes, state.silo, state.came, state.said, state.believed

    def rows(self, image: bytes) -> Hashable:
        load(self.journal, image)
        return rows_of(self.journal)


class _Run:
    """One process of the coordinator: what was chosen at its first points, then all goes well."""

    def __init__(self, world: Coordination, before: Persisting, chosen: tuple[str, ...]) -> None:
        self._world, self._before, self._chosen = world, before, chosen
        self._questions, self._study = world.questions, world.questions.study
        self.points: list[tuple[Hashable, list[str]]] = []
        self.taken: list[tuple[str, str]] = []
        self.state = before
        self._death = ""
        self._begun = self._playing = 0

    def take(self) -> Persisting | None:
        """What the next process finds; None if the study is over."""
        load(self._world.journal, self._before.journal)
        self._synced = self._before.journal  # opening a database is a transaction, too
        loop = _VirtualTime()
        try:
            with self._watched():
                over = loop.run_until_complete(self._main())
        finally:
            loop.close()
        journal = image_of(self._world.journal)
        self._check_believed()
        if over:
            self._check_over()
            return None
        return replace(self.state, journal=self._synced if self._death == "power" else journal)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        @contextmanager
        def transaction(database: Any) -> Iterator[None]:
            with durable.transaction(database):
                yield
            self._synced = image_of(self._world.journal)

        def withdrawn(journal: Journal, number: int) -> None:  # a statement of its own is synced
            real[1](journal, number)
            self._synced = image_of(journal)

        async def to_thread(step: Callable[..., Any], *args: Any) -> Any:
            return step(*args)

        real = (
            journal_module.transaction,
            Journal.withdrawn,
            rounds_module.Opening,
            rounds_module.SealKey,
            asyncio.to_thread,
        )
        journal_module.transaction, Journal.withdrawn = transaction, withdrawn  # type: ignore[method-assign]
        rounds_module.Opening, rounds_module.SealKey = _Opening, self  # type: ignore[misc,assignment]
        asyncio.to_thread = to_thread  # type: ignore[assignment]
        try:
            yield
        finally:
            journal_module.transaction, Journal.withdrawn = real[:2]  # type: ignore[method-assign]
            rounds_module.Opening, rounds_module.SealKey = real[2:4]  # type: ignore[misc]
            asyncio.to_thread = real[4]

    def generate(self) -> Any:
        """The server's sealing key of the attempt: the same in every run."""
        return self._questions.secrets(self._next).server

    # The process ----------------------------------------------------------------------------------

    async def _main(self) -> bool:
        """Whether the study came to its end."""
        journal = self._world.journal
        chain: Any = _Chain(self)
        complaints: Any = None
        key = self._questions.server_key
        self.attempt_outcomes = AttemptOutcomes(self._study, key, journal, chain, complaints)
        reader = FrameReader(self._study, None, complaints, self.attempt_outcomes)
        self.channel = RoundChannel(self._study, reader, sync=journal.sync)
        self.channel.open_lease("lease")
        members: Any = _Members(self)
        self.rounds = RoundPlayer(
            self._study,
            self._study.mechanism(),
            key,
            journal,
            members,
            chain,
            self.channel,
            None,
            self.attempt_outcomes,
        )
        self._tasks = [asyncio.create_task(self._follow(place)) for place in range(3)]
        playing = asyncio.create_task(self._play())
        try:
            while not playing.done():
                running = [playing, *self._tasks]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in running:
                    if each.done() and not each.cancelled() and each.exception() is not None:
                        await each
            return True
        except (Died, StudyFailed):
            return False
        finally:
            for each in (playing, *self._tasks):
                each.cancel()
            await asyncio.gather(playing, *self._tasks, return_exceptions=True)

    async def _play(self) -> None:
        journal = self._world.journal
        past = len(journal.rounds())
        self._begun = past + 1 if journal.attempts(past + 1) else past
        if past:
            await self.rounds.settle_left()
        for number in range(past + 1, self._world.rounds + 1):
            self._playing = number
            query = self._questions.asked((number, 1, 0)).query
            await self.rounds.play(number, query)
        self.channel.close_lease("the study is complete")
        await asyncio.sleep(_AWAY_S)  # silos hear the end

    # Choices --------------------------------------------------------------------------------------

    def choose(self, point: str, options: list[str]) -> str:
        at = len(self.taken)
        choice = self._chosen[at] if at < len(self._chosen) else "well"
        self.points.append((self._here(point), options))
        self.taken.append((point, choice))
        if choice != "well":
            self._begun = max(self._begun, self._playing)
        if choice not in options:
            raise AssertionError(f"a run went another way: {choice} at {point}")
        return choice

    def _here(self, point: str) -> Hashable:
        view, world = self.channel._view, self._world
        shown = [
            None if each is None else each.descriptor.digest for each in (view.current, view.last)
        ]
        telling = tuple(
            (name, tuple(_said(each) for each in follower.events._queue), len(follower.unhurried))  # type: ignore[attr-defined]
            for name, follower in sorted(self.channel._followers.items())
        )
        now = image_of(world.journal)
        key = world.key(replace(self.state, journal=now)), world.rows(self._synced)
        load(world.journal, now)
        left = tuple(each.digest for each in self.attempt_outcomes._left)
        untold = self.channel._untold is not None
        return point, key, tuple(shown), telling, left, untold

    def die(self, how: str) -> NoReturn:
        self._death = how
        raise Died

    # Silos ----------------------------------------------------------------------------------------

    async def _follow(self, place: int, later_s: float = 0.0) -> None:
        name = self._study.silos[place].name
        await asyncio.sleep(later_s)
        while self.channel._lease is not None:
            follower = self.channel._followers[name] = Follower(name)
            unsettled = self._unsettled() if place == 0 else None
            self.channel._brief(follower, unsettled)
            while True:
                event = await follower.events.get()
                self._note_said(event)
                if place:
                    self._obey(place, event, follower)
                    continue
                kind = str(event.WhichOneof("event"))
                if kind not in ("opened", "committed", "closed"):
                    continue
                fate = self.choose(f"silo {kind}", ["well", "crash", "power"])
                if fate != "well":
                    self._tell_silo((fate,))
                    if self.channel._followers.get(name) is follower:
                        self.channel._let_go(name)
                    await asyncio.sleep(_AWAY_S)
                    break
                self._hear(event, follower)
        await asyncio.Event().wait()  # no lease: nobody is let in

    def leave(self, fate: str) -> None:
        """The silo dies while nobody tells it anything."""
        name = self._study.silos[0].name
        if fate != "well" and name in self.channel._followers:
            self._tell_silo((fate,))
            self.channel._let_go(name)
            self._tasks[0].cancel()
            self._tasks[0] = asyncio.create_task(self._follow(0, _AWAY_S))

    def _obey(self, place: int, event: channel_pb2.ChannelEvent, follower: Follower) -> None:
        match event.WhichOneof("event"):
            case "opened":
                self._send(self._name_of(event.opened.descriptor), place)
            case "committed":
                self._confirm(place, event.committed, follower)

    def _hear(self, event: channel_pb2.ChannelEvent, follower: Follower) -> None:
        match event.WhichOneof("event"):
            case "opened":
                self._asked(event.opened)
            case "committed":
                name = self._questions.name(event.committed.digest)
                silos, fakes, doubled = listed_of(event.committed.list, name)
                mine = bool(silos & 1)
                others = silos.bit_count() - mine + fakes
                said = self._tell_silo(("list", name, mine, others, doubled, 0, (0, 1)))
                if any(word[0] == "confirmed" for word in said):
                    self._confirm(0, event.committed, follower)
            case "closed":
                closed = event.closed
                check_closing(closed, self._study)
                name = self._questions.name(closed.digest)
                digest = self._questions.secrets(name).digest
                ended = closed.void and is_ended(closed.endings, digest, self._study)
                if ("refused",) in self._tell_silo(("closed", name, closed.void, ended)):
                    raise Broken(f"the silo refused what was said about {name}")

    def _asked(self, opened: channel_pb2.RoundOpened) -> None:
        name = self._name_of(opened.descriptor)
        last = self._world.silo.used(self.state.silo)
        abandoned = {self._questions.name(each.digest) for each in opened.abandoned}
        said = self._tell_silo(("ask", name, tuple(sorted(abandoned))))
        for word in said:
            if word[0] == "report":
                if last is not None and last[0][0] != name[0]:
                    self._note_belief(last, name)
                self._send(word[1], 0)
                self._tell_silo(("receipt", word[1]))

    def _note_belief(self, last: tuple[Name, bool | None], name: Name) -> None:
        if last[1] is None:
            raise Broken(f"the silo answered {name} and did not know whether {last[0]} was used")
        self.state = replace(self.state, believed=self.state.believed | {(last[0], last[1])})
        self._check_believed()

    def _send(self, name: Name, place: int) -> None:
        self.mix(0, ("admit", name, place))

    def _confirm(
        self, place: int, committed: channel_pb2.RoundCommitted, follower: Follower
    ) -> None:
        view = self.channel._view
        asked = view.find(committed.digest)
        if asked is not None and asked.gate is not None and asked.outcome is None:
            digest, key = asked.descriptor.digest, self._questions.silo_keys[place]
            signed = sign_confirmation(digest, committed.list, place, key)
            asked.gate.confirm(follower.silo, signed)

    def _unsettled(self) -> Any:
        return self._world.silo.unsettled(self.state.silo)

    def _tell_silo(self, event: Happening) -> Any:
        after, said = self._world.silo.step(self.state.silo, event)
        self.state = replace(self.state, silo=after)
        return said

    def _name_of(self, signed: round_pb2.SignedDescriptor) -> Name:
        return self._questions.name(sha256(signed.descriptor).digest())

    # Mixes ----------------------------------------------------------------------------------------

    def mix(self, hop: int, event: Happening) -> Any:
        number = event[1][0]  # type: ignore[index]
        own = list(self.state.mixes[number - 1])
        own[hop], said = self._world.mixes[number - 1][hop].step(own[hop], event)
        mixes = list(self.state.mixes)
        mixes[number - 1] = tuple(own)
        self.state = replace(self.state, mixes=tuple(mixes))
        return said

    # What must hold -------------------------------------------------------------------------------

    def _note_said(self, event: channel_pb2.ChannelEvent) -> None:
        if not event.HasField("closed"):
            return
        name, void = self._questions.name(event.closed.digest), event.closed.void
        if (name, not void) in self.state.said:
            raise Broken("the coordinator said of one round that it was used, and that it was void")
        self.state = replace(self.state, said=self.state.said | {(name, void)})

    def opening(self, name: Name) -> None:
        if any(each[0] == name[0] for each in self.state.came):
            raise Broken("a round was tried again although a batch of it had come")
        self._next = name

    def _check_believed(self) -> None:
        rounds = self._world.journal.rounds()
        for name, used in self.state.believed:
            counted = rounds[name[0] - 1].total is not None and any(
                each == name for each in self.state.came
            )
            if counted != used:
                raise Broken(f"silo and coordinator do not agree whether {name} was used")

    def _check_over(self) -> None:
        rounds = self._world.journal.rounds()
        if len(rounds) < self._world.rounds:
            raise Broken("the study ended early")
        for number in range(self._begun + 1, self._world.rounds + 1):
            if rounds[number - 1].reports != _EVERYBODY.bit_count():
                raise Broken(f"round {number} did not go well although nothing went wrong")


class _Chain:
    """`MixChain` without a network: real mixes, and what may go wrong on the way to them."""

    def __init__(self, run: _Run) -> None:
        self._run, self._questions = run, run._questions

    async def _each(self, what: str, do: Callable[[int], Any]) -> list[Any]:
        """Every mix's answer, or the failure it came to."""
        options = ["well", "kill", "power", "kill after", "power after"]
        options += [f"{how} {hop}" for how in ("away", "lost") for hop in (0, 1)]
        choice = self._run.choose(what, options)
        if choice in ("kill", "power"):
            self._run.die(choice)
        answers = []
        for hop in (0, 1):
            if choice == f"away {hop}":
                answers.append(MixFailed("away"))
                continue
            answer = do(hop)
            answers.append(MixFailed("lost") if choice == f"lost {hop}" else answer)
        if choice.endswith("after"):
            self._run.die(choice.split()[0])
        return answers

    async def _all(self, what: str, do: Callable[[int], Any]) -> tuple[Any, ...]:
        answers = await self._each(what, do)
        for each in answers:
            if isinstance(each, MixFailed):
                raise each
        return tuple(answers)

    def _name(self, descriptor: Descriptor) -> Name:
        return self._questions.name(descriptor.digest)

    def _asked(self, hop: int, event: Happening, wanted: str) -> Any:
        for word in self._run.mix(hop, event):
            if word[0] == wanted:
                return word
        return MixRefused("refused")

    async def prepare(self, attempt: int, number: int, rounds: int) -> Any:
        await self._all("prepare", lambda hop: hop)
        return _Stretch(tuple(self._questions.secrets((number, attempt, 0)).mix_keys))

    async def open(self, descriptor: Descriptor) -> None:
        name = self._name(descriptor)

        def opened(hop: int) -> Any:
            refused = ("refused",) in self._run.mix(hop, ("open", name))
            return MixRefused("refused") if refused else hop

        await self._all("open", opened)

    async def collect(self, descriptor: Descriptor) -> Any:
        """Silos have their time; then every mix does its part."""
        name = self._name(descriptor)
        first = self._run._world.mixes[name[0] - 1][0]

        def everybody() -> bool:
            view = first.view(self._run.state.mixes[name[0] - 1][0], name)
            return view is not None and view.silos == _EVERYBODY

        waited = 0.0
        while not everybody() and waited < _PATIENCE_S:
            await asyncio.sleep(1.0)
            waited += 1.0

        def passed(hop: int) -> Any:
            if hop == 0:
                self._run.mix(0, ("seal", name))
                return self._asked(0, ("forward", name), "forwarded")
            view = first.view(self._run.state.mixes[name[0] - 1][0], name)
            if view is None or view.state.value != "forwarded":
                return BatchAborted("too few")
            self._run.mix(1, ("take", name, view.silos, view.fakes))
            return self._asked(1, ("forward", name), "forwarded")

        answers = await self._all("collect", passed)
        for each in answers:
            if isinstance(each, BatchAborted):
                raise each
        _, _, silos, fakes = answers[1]
        self._run.state = replace(self._run.state, came=self._run.state.came | {name})
        output, count = joined((silos, fakes, 0), name), silos.bit_count() + fakes
        statements = tuple(
            round_pb2.HopStatement(hop=hop, received=count, forwarded=count, output=output)
            for hop in (0, 1)
        )
        return _Batch(statements, output, _NoReports(count))

    async def commit(self, descriptor: Descriptor, batch: "_Batch") -> channel_pb2.RoundCommitted:
        name = self._name(descriptor)
        listed = listed_of(batch.output, name)

        def signed(hop: int) -> Any:
            return hop if hop else self._asked(0, ("commit", name, listed), "listed")

        await self._all("commit", signed)
        list_hash = sha256(batch.output).digest()
        signatures = [
            sign_commitment(descriptor.digest, list_hash, key) for key in self._questions.mix_keys
        ]
        return channel_pb2.RoundCommitted(
            digest=descriptor.digest, list=batch.output, signatures=signatures
        )

    async def release(
        self, descriptor: Descriptor, _hash: bytes, confirmations: Any, _keys: Any
    ) -> tuple[Any, ...]:
        name = self._name(descriptor)
        gate = self._run.channel._view.current
        assert gate is not None
        view = self._run._world.mixes[name[0] - 1][1].view(
            self._run.state.mixes[name[0] - 1][1], name
        )
        assert view is not None
        silos = sum(1 << each.silo for each in confirmations)
        event = "release", name, (view.silos, view.fakes, 0), silos
        return await self._all("release", lambda hop: self._asked(hop, event, "key"))

    async def abandon(self, descriptor: Descriptor) -> tuple[round_pb2.Abandonment, ...]:
        name = self._name(descriptor)

        def abandoned(hop: int) -> Any:
            answer = self._asked(hop, ("abandon", name), "abandoned")
            if isinstance(answer, MixFailed):
                return answer
            return sign_abandonment(descriptor.digest, "ended", self._questions.mix_keys[hop])

        return await self._all("abandon", abandoned)

    async def void(self, descriptor: Descriptor) -> list[round_pb2.Ending | MixFailed]:
        name = self._name(descriptor)

        def ended(hop: int) -> Any:
            key = self._questions.mix_keys[hop]
            for word in self._run.mix(hop, ("void", name)):
                if word[0] == "abandoned":
                    abandoned = sign_abandonment(descriptor.digest, "ended", key)
                    return round_pb2.Ending(abandoned=abandoned)
                if word[0] == "voided":
                    doubt = bool(word[3])
                    return sign_voided(descriptor.digest, "ended", b"", key, uncertain=doubt)
            return MixRefused("refused")

        return await self._each("void", ended)


@dataclass(frozen=True, slots=True)
class _Stretch:
    keys: tuple[round_pb2.RoundKeys, ...]
    lists: tuple[round_pb2.KeyList, ...] = ()

    def of(self, _number: int) -> tuple[round_pb2.RoundKeys, ...]:
        return self.keys


@dataclass(frozen=True, slots=True)
class _NoReports:
    count: int
    report_bytes: int = 0

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Batch:
    chain: tuple[round_pb2.HopStatement, ...]
    output: bytes
    reports: _NoReports
    dropped: int = 0


class _Members:
    """`Membership` of silos that are all there, or soon."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    async def enough(self, number: int, *, tried_before: bool = False) -> bool:
        run = self._run
        tried = len(run._world.journal.attempts(number))
        run.opening((number, tried + 1, 0))
        run.leave(run.choose("between rounds", ["well", "crash", "power"]))
        await asyncio.sleep(2 * _AWAY_S)  # who left is back
        fate = run.choose("before a round", ["well", "kill", "power"])
        if fate != "well":
            run.die(fate)
        return True

    def keys(self, number: int) -> tuple[round_pb2.RoundKeys, ...]:
        return tuple(self._run._questions.secrets((number, 1, 0)).mix_keys)

    def end_stretch(self) -> None: ...


class _Opening:
    """`Opening` of reports that are all good."""

    def __init__(self, *_: Any) -> None:
        self.result = rounds_module.Opened(np.zeros(3, dtype=np.int64))

    def unwrap(self, reports: _NoReports) -> None: ...

    def add_up(self, reports: _NoReports, _keys: Any) -> Any:
        self.result.accepted = self.result.summed = reports.count
        return self.result


class _VirtualTime(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        super().__init__(_Hurried(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Hurried(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    def __init__(self, loop: _VirtualTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise Broken("everybody waits, and nothing will ever happen")
        self._loop.now += max(timeout, 0.0)
        return super().select(0)


def image_of(journal: Journal) -> bytes:
    image = bytearray(journal._database.serialize())
    image[18:20] = b"\1\1"  # not in write-ahead mode: a database in memory has no such file
    return bytes(image)


def load(journal: Journal, image: bytes) -> None:
    journal._database.deserialize(image)


def rows_of(journal: Journal) -> Hashable:
    return tuple(
        tuple(journal._database.execute(f"SELECT * FROM {each} ORDER BY 1, 2"))  # noqa: S608
        for each in ("rounds", "attempts", "settlements")
    )


def _said(event: channel_pb2.ChannelEvent) -> bytes:
    return event.SerializeToString(deterministic=True)
