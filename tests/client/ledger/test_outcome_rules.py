"""What became of a report, without a network: what counts, what stops a silo, what may follow."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_client.errors import RefusedQuery
from silomix_client.ledger.outcome_rules import (
    MOST_SAME,
    NOTHING,
    UNHEARD_BEFORE_STOP,
    Fate,
    ReportOutcome,
    Tally,
    is_sealed_again,
    may_answer,
    may_repeat,
)
from silomix_proto import mix_pb2
from silomix_protocol.rounds.descriptor import RoundDigest
from support.descriptors import plain_descriptor

RECEIPT = mix_pb2.Receipt(status=mix_pb2.Receipt.ACCEPTED)
LIST, OTHER_LIST = b"1" * 32, b"2" * 32
TAKEN = ReportOutcome(receipt=RECEIPT)


def digest(number: int) -> RoundDigest:
    return RoundDigest(number.to_bytes(32, "big"))


def tallied(*fates: Fate) -> Tally:
    """Reports with these fates, one after the other."""
    tally = Tally()
    for number, fate in enumerate(fates):
        tally = tally.judged(digest(number), fate)
    return tally


# The fate of one report --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "fate"),
    [
        (NOTHING, Fate.UNHEARD),
        (TAKEN, Fate.UNHEARD),
        (NOTHING.listed(LIST, included=True), Fate.LISTED),
        (TAKEN.listed(LIST, included=False), Fate.MISSING),
        (NOTHING.listed(LIST, included=False), Fate.UNHEARD),
        (TAKEN.closed(void=True, ended=True), Fate.VOID),
        (TAKEN.closed(void=True, ended=False), Fate.UNHEARD),
        (TAKEN.closed(void=False, ended=False), Fate.UNHEARD),
        (TAKEN.listed(LIST, included=True).closed(void=True, ended=False), Fate.LISTED),
        (TAKEN.listed(LIST, included=False).closed(void=True, ended=True), Fate.MISSING),
    ],
)
def test_signed_statements_tell_a_lost_report_from_a_fault(
    known: ReportOutcome, fate: Fate
) -> None:
    assert known.fate is fate


def test_statements_may_come_in_any_order() -> None:
    steps = {
        "list": lambda known: known.listed(LIST, included=True),
        "closed": lambda known: known.closed(void=False, ended=False),
        "again": lambda known: known.closed(void=False, ended=False),
    }
    for order in permutations(steps):
        known = TAKEN
        for name in order:
            known = steps[name](known)
        assert (known.fate, known.settled, known.used) == (Fate.LISTED, True, True)


def test_two_lists_of_one_round_are_refused() -> None:
    known = TAKEN.listed(LIST, included=True)
    assert known.listed(LIST, included=True) == known
    with pytest.raises(RefusedQuery, match="two lists"):
        known.listed(OTHER_LIST, included=True)


def test_a_server_that_takes_its_word_back_is_refused() -> None:
    for void in (False, True):
        with pytest.raises(RefusedQuery, match="void"):
            TAKEN.closed(void=void, ended=False).closed(void=not void, ended=False)


def test_statements_that_come_late_make_a_round_void() -> None:
    known = TAKEN.closed(void=True, ended=False).closed(void=True, ended=True)
    assert known.fate is Fate.VOID
    assert known.closed(void=True, ended=False).fate is Fate.VOID, "and it stays so"


# Was it used? ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "settled", "used"),
    [
        (NOTHING, False, False),
        (TAKEN.listed(LIST, included=True), False, False),
        (TAKEN.closed(void=True, ended=False), True, False),
        (TAKEN.closed(void=False, ended=False), False, False),
        (TAKEN.listed(LIST, included=True).closed(void=True, ended=False), True, False),
        (TAKEN.listed(LIST, included=True).closed(void=False, ended=False), True, True),
        (TAKEN.listed(LIST, included=False).closed(void=False, ended=False), True, False),
    ],
)
def test_used_is_what_is_in_the_list_of_a_round_that_was_not_void(
    known: ReportOutcome, settled: bool, used: bool
) -> None:
    assert (known.settled, known.used) == (settled, used)


@pytest.mark.parametrize("control", [False, True])
def test_with_control_variates_nothing_is_answered_behind_a_report_whose_use_is_unknown(
    control: bool,
) -> None:
    last, following = plain_descriptor(1), plain_descriptor(2)
    settled = TAKEN.closed(void=True, ended=False)
    assert may_answer(None, NOTHING, following, control=control)
    assert may_answer(last, TAKEN, following, control=control) is not control
    assert may_answer(last, settled, following, control=control)
    assert may_answer(last, TAKEN, plain_descriptor(1, 2), control=control), "the same report"


# Sealing again -----------------------------------------------------------------------------------


def test_only_a_later_attempt_of_the_same_question_gets_the_stored_report_sealed_again() -> None:
    earlier = plain_descriptor(1, 2)
    assert not is_sealed_again(earlier, TAKEN, earlier)
    assert is_sealed_again(earlier, TAKEN, plain_descriptor(1, 3))
    with pytest.raises(RefusedQuery, match="later attempt"):
        is_sealed_again(earlier, TAKEN, plain_descriptor(1, 1))
    with pytest.raises(RefusedQuery, match="another query"):
        is_sealed_again(earlier, TAKEN, plain_descriptor(1, 3, query=b"another"))


def test_a_report_that_came_out_once_is_not_sealed_again() -> None:
    """Whatever the mixes state: the same payload in two batches would give away the difference."""
    known = TAKEN.listed(LIST, included=True)
    with pytest.raises(RefusedQuery, match="had come out"):
        is_sealed_again(plain_descriptor(1, 1), known, plain_descriptor(1, 2))


# When a silo stops -------------------------------------------------------------------------------


def test_two_missing_reports_stop_a_silo_whatever_happened_in_between() -> None:
    between = [Fate.LISTED, Fate.VOID, Fate.UNHEARD] * 30
    assert not tallied(Fate.MISSING, *[Fate.LISTED] * 40).stops
    assert tallied(Fate.MISSING, *[Fate.LISTED] * 40, Fate.MISSING).stops
    assert tallied(Fate.MISSING, *between[:5], Fate.MISSING).stops


@given(rounds=st.integers(0, 100))
def test_void_rounds_never_stop_a_silo(rounds: int) -> None:
    assert tallied(*[Fate.VOID] * rounds) == Tally(0, (), *_last(rounds))
    assert not tallied(*[Fate.VOID] * rounds).stops


def _last(rounds: int) -> tuple[RoundDigest | None, Fate | None]:
    return (digest(rounds - 1), Fate.VOID) if rounds else (None, None)


def test_half_of_the_last_rounds_unheard_stop_a_silo() -> None:
    assert not tallied(*[Fate.UNHEARD, Fate.LISTED] * 7, Fate.LISTED).stops
    assert tallied(*[Fate.UNHEARD, Fate.LISTED] * 8).stops
    assert not tallied(*[Fate.UNHEARD] * 7, *[Fate.LISTED] * 16, *[Fate.UNHEARD] * 7).stops


def test_void_rounds_do_not_make_a_silo_forget_the_unheard_ones() -> None:
    assert tallied(*[Fate.UNHEARD, *[Fate.VOID] * 5] * 8).stops


def test_a_report_is_judged_once() -> None:
    once = Tally().judged(digest(1), Fate.MISSING)
    assert once.judged(digest(1), Fate.MISSING) == once
    assert once.judged(digest(1), Fate.LISTED) == once, "a missing one stays missing"


@pytest.mark.parametrize("fate", [Fate.LISTED, Fate.VOID, Fate.MISSING])
def test_late_news_takes_the_place_of_no_news(fate: Fate) -> None:
    late = Tally().judged(digest(1), Fate.UNHEARD).judged(digest(1), fate)
    assert late == Tally().judged(digest(1), fate)


# Asked again, left out ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "answers", "allowed"),
    [
        (NOTHING, 1, False),
        (TAKEN.listed(LIST, included=True), 1, False),
        (TAKEN.listed(LIST, included=True).closed(void=False, ended=False), 1, False),
        (TAKEN.closed(void=True, ended=True), 1, True),
        (TAKEN.closed(void=True, ended=True), 1000, True),
        (TAKEN.closed(void=True, ended=False), MOST_SAME - 1, True),
        (TAKEN.closed(void=True, ended=False), MOST_SAME, False),
    ],
)
def test_a_question_is_answered_again_only_if_the_answer_was_lost(
    known: ReportOutcome, answers: int, allowed: bool
) -> None:
    assert may_repeat(known, answers) is allowed


def test_two_rounds_that_a_listening_silo_was_not_told_of_stop_it() -> None:
    once = Tally().left_out(listening=True)
    assert not once.stops
    assert once.left_out(listening=True).stops
    assert tallied(Fate.MISSING).left_out(listening=True).stops
    between = once
    for number in range(100):
        between = between.judged(digest(number), Fate.LISTED)
    assert between.left_out(listening=True).stops


def test_rounds_that_went_by_while_the_line_was_broken_count_as_unheard() -> None:
    tally = Tally()
    for number in range(UNHEARD_BEFORE_STOP - 1):
        tally = tally.left_out(listening=False).judged(digest(number), Fate.LISTED)
    assert not tally.stops
    assert tally.left_out(listening=False).stops


def test_a_line_that_breaks_now_and_then_stops_nobody() -> None:
    tally = Tally()
    for number in range(1000):
        if number % 4 == 0:
            tally = tally.left_out(listening=False)
        tally = tally.judged(digest(number), Fate.LISTED)
        assert not tally.stops
