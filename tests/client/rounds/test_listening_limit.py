"""A server is listened to as long as its rounds need it, and little beyond."""

from contextlib import suppress

import pytest
from silomix_client.errors import RefusedQuery
from silomix_client.rounds import listening_limit
from silomix_client.rounds.listening_limit import ListeningLimit
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.descriptor import Descriptor
from support.consortia import make_consortium
from support.silos import asked

Event = channel_pb2.ChannelEvent
CLOSED = Event(closed=channel_pb2.RoundClosed(digest=bytes(32)))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("patience") / "c", rounds=100)


def listened(patience: ListeningLimit, event: Event, most: int = 100_000) -> int:
    """How many such messages are heard before one is too many."""
    for count in range(most):
        try:
            patience.heard(event)
        except RefusedQuery:
            return count
    return most


def descriptor(made: Consortium, number: int) -> Descriptor:
    return asked(made, number).descriptor


def stretch(first: int) -> channel_pb2.StretchOpened:
    opened = channel_pb2.StretchOpened(first_round=first)
    opened.lists.add().keys.extend([bytes(32)] * 64)
    return opened


def test_talk_without_rounds_comes_to_an_end_and_time_buys_a_little(made: Consortium) -> None:
    clock = Clock()
    patience = ListeningLimit(made.study, clock)
    assert 1000 <= listened(patience, CLOSED) <= 1200
    clock.now += 60.0
    assert 390 <= listened(patience, CLOSED) <= 400
    clock.now += 10.0**6
    assert listened(patience, CLOSED) <= 1200


def test_a_line_that_breaks_inside_every_query_is_given_the_time_that_a_whole_one_needs(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2**23
    monkeypatch.setattr(listening_limit, "largest_query", lambda _: size)
    clock = Clock()
    patience = ListeningLimit(made.study, clock)
    chunk = Event(query_chunk=bytes(2**18))

    def query(size: int) -> None:
        patience.covered(stretch(1))
        for _ in range(0, size, 2**18):
            patience.heard(chunk)

    for _ in range(100):
        clock.now += patience.pause_s()
        query(size // 2)
    assert clock.now > 100.0  # breaking off costs time
    clock.now += patience.pause_s()
    query(size)
    patience.opened(descriptor(made, 1))


def test_events_in_one_message_and_its_bytes_count(made: Consortium) -> None:
    crowded = Event(closed=CLOSED.closed, more=[CLOSED] * 99)
    assert listened(ListeningLimit(made.study, Clock()), crowded) <= 12
    assert listened(ListeningLimit(made.study, Clock()), Event(echo=bytes(2**20))) <= 18


def test_rounds_pay_for_themselves_for_ever_but_each_once(made: Consortium) -> None:
    patience = ListeningLimit(made.study, Clock())
    for number in range(1, 101):
        for _ in range(60):
            patience.heard(CLOSED)
        patience.opened(descriptor(made, number))
    listened(patience, CLOSED)
    for number in (100, 1, 50, 100):
        patience.opened(descriptor(made, number))
    assert listened(patience, CLOSED) == 0


def test_a_stretch_is_free_for_new_rounds_and_costs_its_length_again(made: Consortium) -> None:
    patience = ListeningLimit(made.study, Clock())
    patience.covered(stretch(1))
    again = 0
    with suppress(RefusedQuery):
        for again in range(100):  # noqa: B007 how far it comes
            patience.covered(stretch(1))
    assert again <= 18
    patience.covered(stretch(65))
    patience.covered(channel_pb2.StretchOpened(first_round=1))  # refused elsewhere
