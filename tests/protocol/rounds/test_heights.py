"""Heights of ledgers: who may state one, which of two is higher, what whoever keeps them does."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_proto import ledger_pb2
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds import heights
from silomix_protocol.rounds.heights import (
    SCHEMA,
    BehindHeight,
    Height,
    HeightBook,
    check_height,
    keep_height,
    kept_heights,
    mark_of,
    sign_height,
)

KEY = SigningKey.generate()
OTHER = SigningKey.generate()


def height(entries: int, restored_ms: int = 0, mark: bytes = b"m" * 32) -> Height:
    return sign_height("silo-1", (restored_ms, entries), mark, KEY)


# Signed ------------------------------------------------------------------------------------------


def test_a_height_is_taken_from_the_silo_that_signed_it() -> None:
    signed = height(7, 1_700_000_000_000)
    wired = ledger_pb2.LedgerHeight.FromString(signed.to_wire().SerializeToString())
    assert check_height(wired, "silo-1", KEY.public) == signed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restored_ms", 1),
        ("entries", 8),
        ("entries", 2**63),
        ("mark", b"x" * 32),
        ("mark", b"short"),
        ("signature", bytes(64)),
        ("signature", b""),
    ],
)
def test_a_height_of_which_anything_was_changed_is_nobodys(field: str, value: object) -> None:
    message = height(7).to_wire()
    setattr(message, field, value)
    with pytest.raises(ForgedSignature):
        check_height(message, "silo-1", KEY.public)


def test_a_height_of_another_silo_or_key_or_none_at_all_is_refused() -> None:
    message = height(7).to_wire()
    for silo, key in (("silo-2", KEY), ("silo-1", OTHER)):
        with pytest.raises(ForgedSignature):
            check_height(message, silo, key.public)
    with pytest.raises(ForgedSignature):
        check_height(ledger_pb2.LedgerHeight(), "silo-1", KEY.public)


def test_a_mark_shows_nothing_of_the_entry_to_who_has_not_the_key() -> None:
    """Otherwise somebody could try out whether the last entry is a charge or an abstention."""
    head = b"h" * 32
    assert mark_of(head, KEY) == mark_of(head, KEY)
    assert len({mark_of(head, KEY), mark_of(head, OTHER), mark_of(b"x" * 32, KEY), head}) == 4


# Ordered -----------------------------------------------------------------------------------------

FOLLOWS = {
    "the same": (height(7), height(7)),
    "more entries": (height(8, mark=b"n" * 32), height(7)),
    "restored, with fewer entries": (height(3, 5, b"n" * 32), height(7)),
    "restored again": (height(3, 6, b"n" * 32), height(7, 5)),
}
BEHIND = {
    "fewer entries": (height(6), height(7)),
    "another entry of the same number": (height(7, mark=b"n" * 32), height(7)),
    "more entries, restored earlier": (height(9, 4), height(3, 5)),
    "never restored": (height(9), height(3, 5)),
}


@pytest.mark.parametrize("pair", FOLLOWS.values(), ids=FOLLOWS)
def test_a_height_that_follows_is_not_behind(pair: tuple[Height, Height]) -> None:
    assert not pair[0].is_behind(pair[1])


@pytest.mark.parametrize("pair", BEHIND.values(), ids=BEHIND)
def test_a_height_that_is_lower_or_beside_is_behind(pair: tuple[Height, Height]) -> None:
    assert pair[0].is_behind(pair[1])


# Kept --------------------------------------------------------------------------------------------


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(SCHEMA)
    return made


def check_book(book_of: Callable[[sqlite3.Connection], HeightBook]) -> None:
    """What a silo relies on: the highest is held, on disk too, and nothing takes its place."""
    with closing(database()) as table:
        book = book_of(table)
        assert book.of(KEY.public) is None
        for each in (height(5), height(7), height(7)):
            book.take(KEY.public, each)
        for lower in (height(6), height(7, mark=b"n" * 32)):
            with pytest.raises(BehindHeight) as refused:
                book.take(KEY.public, lower)
            assert refused.value.held == height(7)
        assert book.of(KEY.public) == height(7)
        assert kept_heights(table) == {KEY.public: height(7)}
        assert book.of(OTHER.public) is None


def saving_book(table: sqlite3.Connection) -> HeightBook:
    return HeightBook(kept_heights(table), lambda key, each: keep_height(table, key, each))


def test_the_highest_is_held_and_on_disk_and_a_lower_one_or_a_fork_refused() -> None:
    check_book(saving_book)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda self, other: self.place < other.place,  # a fork passes
        lambda self, other: self.place <= other.place,  # the same report again does not
        lambda self, other: False,
        lambda self, other: self.entries < other.entries,  # no restore ever goes on
    ],
)
def test_a_height_that_is_compared_otherwise_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[Height, Height], bool]
) -> None:
    def claims() -> None:
        for pair in FOLLOWS.values():
            test_a_height_that_follows_is_not_behind(pair)
        check_book(saving_book)

    claims()
    monkeypatch.setattr(Height, "is_behind", mutant)
    with pytest.raises((AssertionError, BehindHeight, pytest.fail.Exception)):
        claims()


def test_what_is_held_before_is_shown_unless_it_is_the_same() -> None:
    book = HeightBook()
    assert book.exchange(KEY.public, height(5)) is None
    assert book.exchange(KEY.public, height(5)) is None
    assert book.exchange(KEY.public, height(7)) == height(5)
    assert book.exchange(KEY.public, height(6)) == height(7)  # put back: it is told
    fork = height(7, mark=b"n" * 32)
    assert book.exchange(KEY.public, fork) == height(7)
    assert book.of(KEY.public) == height(7)


PLACES = st.tuples(st.integers(0, 3), st.integers(0, 9), st.sampled_from([b"m" * 32, b"n" * 32]))


@given(st.lists(PLACES, max_size=20))
def test_what_is_held_never_falls_and_is_what_the_disk_has(
    shown: list[tuple[int, int, bytes]],
) -> None:
    blank = Height(0, 0, b"m" * 32, b"")
    with closing(database()) as table:
        book, before = saving_book(table), (0, 0)
        for restored_ms, entries, mark in shown:
            each = replace(blank, restored_ms=restored_ms, entries=entries, mark=mark)
            book.exchange(KEY.public, each)
            held = book.of(KEY.public)
            assert held is not None
            assert held.place == max(before, each.place)
            assert kept_heights(table) == {KEY.public: held}
            before = held.place


def test_a_height_that_could_not_be_kept_is_not_held() -> None:
    def full(_key: bytes, _height: Height) -> None:
        raise OSError("no space left")

    book = HeightBook(save=full)
    with pytest.raises(OSError, match="no space"):
        book.take(KEY.public, height(5))
    assert book.of(KEY.public) is None


def test_one_that_came_late_to_the_disk_does_not_replace_a_higher_one() -> None:
    with closing(database()) as table:
        for each in (height(7), height(5)):
            heights.keep_height(table, KEY.public, each)
        assert kept_heights(table)[KEY.public] == height(7)
