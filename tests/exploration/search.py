"""Breadth-first search over all states that a small world can come into.

A world gives its first state, the moves from a state, and what is wrong with one (nothing, it is to
be hoped).  States are immutable and hashable; each is looked at once.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
Move = tuple[Hashable, ...]  # who, what, …: the first two are its kind
_LOOK = 1000  # states between two looks at the clock
_WORD_S = 10.0  # between two words about progress


class World(Protocol[State]):
    def start(self) -> State: ...

    def moves(self, state: State) -> Iterable[tuple[Move, State]]:
        """Every move from here: what happens, and where it leads."""

    def wrong(self, state: State) -> str | None:
        """The promise that this state breaks."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: how much it saw, and the shortest way to a broken promise."""

    states: int
    moves: int
    depth: int
    seconds: float
    complete: bool  # nothing was left out
    kinds: Counter[tuple[Hashable, ...]] = field(repr=False)
    broken: str | None = None
    way: tuple[Move, ...] = ()

    def __str__(self) -> str:
        ended = "all of them" if self.complete else "there are more"
        seen = (
            f"{self.states} states ({ended}), {self.moves} moves, depth {self.depth}, "
            f"{self.seconds:.1f} s, {self.states / max(self.seconds, 1e-9):.0f} states/s"
        )
        if self.broken is None:
            return f"{seen}: every promise holds"
        steps = "\n  ".join(" ".join(map(str, each)) for each in self.way)
        return f"{seen}: {self.broken}\n  {steps}"


def search(
    world: World[State],
    *,
    most_states: int = 10**9,
    most_s: float = 3600.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Found:
    """Look at every state, nearest first, until a promise is broken or a bound is reached."""
    began = time.monotonic()
    start = world.start()
    came_from: dict[State, tuple[State, Move] | None] = {start: None}
    queue: deque[State] = deque([start])
    kinds: Counter[tuple[Hashable, ...]] = Counter()
    moves, depth, level_ends = 0, 0, 1
    looked_at, next_word = 0, began + min(_WORD_S, most_s)

    def found(complete: bool, broken: str | None = None, at: State | None = None) -> Found:
        seconds = time.monotonic() - began
        way = () if at is None else _way(came_from, at)
        return Found(len(came_from), moves, depth, seconds, complete, kinds, broken, way)

    while queue:
        state = queue.popleft()
        broken = world.wrong(state)
        if broken is not None:
            return found(False, broken, state)
        for label, following in world.moves(state):
            moves += 1
            kinds[label[:2]] += 1
            if following not in came_from:
                came_from[following] = state, label
                queue.append(following)
        looked_at += 1
        if looked_at == level_ends and queue:
            depth, level_ends = depth + 1, looked_at + len(queue)
        if looked_at % _LOOK == 0 and (now := time.monotonic()) > next_word:
            tell(f"{found(False)}, {len(queue)} to look at")
            next_word = now + _WORD_S
            if now - began > most_s:
                return found(False)
        if len(came_from) > most_states:
            return found(False)
    return found(True)


def wander(
    world: World[State],
    rng: random.Random,
    *,
    most_s: float,
    length: int = 60,
    rarely: frozenset[str] = frozenset(),
    tell: Callable[[str], None] = lambda line: None,
) -> Found:
    """Walks of many moves each, every move drawn at random: far from the start, never complete.

    Moves that would soon end every walk are drawn `rarely`.
    """
    began = time.monotonic()
    seen: set[State] = set()
    kinds: Counter[tuple[Hashable, ...]] = Counter()
    moves, next_word = 0, began + _WORD_S
    while (now := time.monotonic()) - began < most_s:
        state, way = world.start(), []
        for _ in range(length):
            following = list(world.moves(state))
            if not following:
                break
            weights = [0.002 if each[1] in rarely else 1.0 for each, _ in following]
            ((label, state),) = rng.choices(following, weights)
            way.append(label)
            moves += 1
            kinds[label[:2]] += 1
            if state not in seen:
                seen.add(state)
                broken = world.wrong(state)
                if broken is not None:
                    seconds = time.monotonic() - began
                    return Found(
                        len(seen), moves, len(way), seconds, False, kinds, broken, tuple(way)
                    )
        if now > next_word:
            tell(f"{len(seen)} states, {moves} moves at random, {now - began:.0f} s")
            next_word = now + _WORD_S
    return Found(len(seen), moves, length, time.monotonic() - began, False, kinds)


def _way(came_from: dict[State, tuple[State, Move] | None], place: State) -> tuple[Move, ...]:
    labels = []
    while (before := came_from[place]) is not None:
        place, label = before
        labels.append(label)
    return tuple(reversed(labels))
