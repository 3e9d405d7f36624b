"""Mix keys of a round: those that the descriptor names and that every mix vouched for."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_proto import round_pb2
from silomix_protocol.keys import ForgedSignature, SealKey
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, issue
from silomix_protocol.rounds.round_keys import (
    LONGEST_STRETCH,
    KeyBook,
    RefusedKeys,
    check_lengths,
    check_list,
    fingerprint,
    sign_list,
)
from support.rounds import Round, key_lists, make_parties, make_round

PARTIES = make_parties(rounds=200)
STUDY, SERVER = PARTIES.study, PARTIES.keys["server"]
ROUNDS = [make_round(STUDY, SERVER, number) for number in (1, 2, 3)]
LISTS = key_lists(PARTIES, ROUNDS)


def book(*added: list[round_pb2.KeyList]) -> KeyBook:
    made = KeyBook(STUDY)
    for lists in added:
        made.add(lists)
    return made


def copies() -> list[round_pb2.KeyList]:
    return [round_pb2.KeyList.FromString(each.SerializeToString()) for each in LISTS]


def knows(known: KeyBook, round_: Round) -> bool:
    try:
        known.check(round_.descriptor, round_.mix_keys)
    except RefusedKeys as error:
        if "did not vouch" in str(error):
            return False
        raise
    return True


def test_keys_that_every_mix_vouched_for_are_accepted() -> None:
    known = book(LISTS)
    for round_ in ROUNDS:
        known.check(round_.descriptor, round_.mix_keys)


def test_without_a_list_nothing_is_accepted() -> None:
    assert not knows(KeyBook(STUDY), ROUNDS[0])


# Lists -------------------------------------------------------------------------------------------


def edited(change: Callable[[round_pb2.KeyList], object]) -> list[round_pb2.KeyList]:
    """The lists with one change in each, so that they stay alike, under the old signatures."""
    lists = copies()
    for each in lists:
        change(each)
    return lists


FORGED: dict[str, list[round_pb2.KeyList]] = {
    "another attempt": edited(lambda each: setattr(each, "attempt", 2)),
    "another round": edited(lambda each: setattr(each, "first_round", 2)),
    "a key more": edited(lambda each: each.keys.append(bytes(32))),
    "a key fewer": edited(lambda each: each.keys.pop()),
    "two keys swapped": edited(lambda each: each.keys.append(each.keys.pop(0))),
    "another key": edited(lambda each: each.keys.__setitem__(0, bytes(32))),
    "no signature": edited(lambda each: each.ClearField("signature")),
    "mixes swapped": LISTS[::-1],
    "one mix for both": [LISTS[0], LISTS[0]],
}


@pytest.mark.parametrize("name", FORGED)
def test_a_list_that_the_mix_did_not_sign_is_forged(name: str) -> None:
    known = KeyBook(STUDY)
    with pytest.raises(ForgedSignature, match="key-list"):
        known.add(FORGED[name])
    assert not knows(known, ROUNDS[0])


def test_a_list_of_another_study_is_forged() -> None:
    other = make_parties(rounds=199)  # the same keys, another study file
    assert [mix.sign_key for mix in other.study.mixes] == [mix.sign_key for mix in STUDY.mixes]
    with pytest.raises(ForgedSignature):
        KeyBook(other.study).add(LISTS)


def test_only_the_first_mix_may_sign_the_first_list() -> None:
    check_list(LISTS[0], STUDY, STUDY.mixes[0])
    with pytest.raises(ForgedSignature):
        check_list(LISTS[0], STUDY, STUDY.mixes[1])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_every_mix_is_needed(count: int) -> None:
    with pytest.raises(RefusedKeys, match="one key list of every mix"):
        KeyBook(STUDY).add((LISTS * 2)[:count])


def stretch(hop: int, attempt: int, first: int, keys: int) -> round_pb2.KeyList:
    content = [round_pb2.RoundKeys(seal=bytes([place])) for place in range(keys)]
    return sign_list(STUDY, attempt, first, content, PARTIES.mix_key(hop))


@pytest.mark.parametrize("second", [(1, 1, 2), (1, 2, 3), (2, 1, 3)])
def test_lists_must_be_for_the_same_rounds(second: tuple[int, int, int]) -> None:
    with pytest.raises(RefusedKeys, match="not for the same rounds"):
        KeyBook(STUDY).add([stretch(0, 1, 1, 3), stretch(1, *second)])


@pytest.mark.parametrize(("keys", "fits"), [(0, False), (1, True), (64, True), (65, False)])
def test_a_stretch_has_1_to_64_rounds(keys: int, fits: bool) -> None:
    assert LONGEST_STRETCH == 64
    lists = [stretch(hop, 1, 1, keys) for hop in (0, 1)]
    if fits:
        KeyBook(STUDY).add(lists)
    else:
        with pytest.raises(RefusedKeys, match="covers 1 to 64 rounds"):
            KeyBook(STUDY).add(lists)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_fingerprint_has_32_bytes(length: int) -> None:
    """Joined, other lengths could be cut into other keys under the same signature."""
    with pytest.raises(RefusedKeys, match="a fingerprint has 32 bytes"):
        KeyBook(STUDY).add(edited(lambda each: each.keys.__setitem__(1, bytes(length))))


def test_a_refused_list_leaves_what_is_known() -> None:
    known = book(LISTS)
    with pytest.raises(ForgedSignature):
        known.add(FORGED["another round"])
    assert all(knows(known, round_) for round_ in ROUNDS)


def test_a_later_stretch_drops_what_is_over() -> None:
    late = [make_round(STUDY, SERVER, number) for number in (3, 4)]
    known = book(LISTS, key_lists(PARTIES, late))
    assert [knows(known, each) for each in ROUNDS] == [False, False, False]
    assert [knows(known, each) for each in late] == [True, True]


def test_a_further_attempt_keeps_the_stretch() -> None:
    again = make_round(STUDY, SERVER, 2, attempt=2)
    known = book(LISTS, key_lists(PARTIES, [again]))
    assert [knows(known, each) for each in ROUNDS] == [False, True, True]
    assert knows(known, again)


def test_keys_are_vouched_for_one_attempt_only() -> None:
    again = make_round(STUDY, SERVER, 1, attempt=2)
    assert not knows(book(LISTS), again)
    assert not knows(book(key_lists(PARTIES, [again])), ROUNDS[0])


# Keys --------------------------------------------------------------------------------------------


def test_keys_of_another_round_are_refused() -> None:
    known = book(LISTS)
    with pytest.raises(RefusedKeys, match="not those that the descriptor names"):
        known.check(ROUNDS[0].descriptor, ROUNDS[1].mix_keys)


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: keys[::-1],
        lambda keys: keys[:1],
        lambda keys: [*keys, keys[0]],
        lambda keys: [],
        lambda keys: [keys[0], round_pb2.RoundKeys(seal=keys[1].release, release=keys[1].seal)],
        lambda keys: [keys[0], round_pb2.RoundKeys(seal=keys[1].seal)],
        lambda keys: [round_pb2.RoundKeys(seal=keys[0].seal + keys[0].release), keys[1]],
    ],
    ids=["swapped", "one", "three", "none", "roles swapped", "no release", "joined"],
)
def test_a_fingerprint_is_of_both_keys_in_their_places(
    change: Callable[[list[round_pb2.RoundKeys]], list[round_pb2.RoundKeys]],
) -> None:
    with pytest.raises(RefusedKeys, match="not those that the descriptor names"):
        book(LISTS).check(ROUNDS[0].descriptor, change(ROUNDS[0].mix_keys))


def test_the_descriptor_of_a_coordinator_that_swapped_a_mixs_key_is_refused() -> None:
    """It names keys of its own making: consistent, but no mix vouched for them."""
    own = make_round(STUDY, SERVER, 1)
    assert own.descriptor.mix_keys != ROUNDS[0].descriptor.mix_keys
    assert not knows(book(LISTS), own)


@settings(deadline=None, max_examples=30)
@given(seal=st.binary(max_size=40), release=st.binary(max_size=40), cut=st.integers(1, 40))
def test_no_byte_moves_between_seal_and_release(seal: bytes, release: bytes, cut: int) -> None:
    one = round_pb2.RoundKeys(seal=seal, release=release)
    two = round_pb2.RoundKeys(seal=seal + release[:cut], release=release[cut:])
    assert (fingerprint(one) == fingerprint(two)) == (one == two)


@pytest.mark.parametrize("gate", [True, False])
def test_a_gate_needs_release_keys_and_no_gate_takes_none(gate: bool) -> None:
    study = make_parties(gate=gate).study
    public = SealKey.generate().public
    fits = round_pb2.RoundKeys(seal=public, release=public if gate else b"")
    check_lengths([fits, fits], study)
    for seal, release in [
        (public, b"" if gate else public),
        (public[:-1], fits.release),
        (public + b"\0", fits.release),
        (b"", fits.release),
        (public, public[:-1]),
    ]:
        wrong = round_pb2.RoundKeys(seal=seal, release=release)
        with pytest.raises(RefusedKeys, match="another length"):
            check_lengths([fits, wrong], study)


def test_keys_of_a_wrong_length_are_refused_even_if_named_and_vouched_for() -> None:
    short = round_pb2.RoundKeys(seal=b"short", release=b"")
    lists = [sign_list(STUDY, 1, 1, [short], PARTIES.mix_key(hop)) for hop in (0, 1)]
    known = book(lists)
    with pytest.raises(RefusedKeys, match="another length"):
        known.check(_naming(short), [short, short])


def _naming(keys: round_pb2.RoundKeys) -> Descriptor:
    attempt = AttemptKeys(bytes(32), (fingerprint(keys),) * 2, bytes(32))
    return issue(STUDY, 1, 1, b"query", attempt, SERVER)


def test_keys_of_a_few_stretches_are_remembered_and_of_no_more() -> None:
    """Announced from the end on, so that none is dropped as older than another."""
    parties = make_parties(rounds=400)
    known = KeyBook(parties.study)

    def lists(first: int) -> list[round_pb2.KeyList]:
        made = []
        for mix in parties.study.mixes:
            keys = [round_pb2.RoundKeys(seal=bytes(32))] * LONGEST_STRETCH
            made.append(sign_list(parties.study, 1, first, keys, parties.keys[mix.name]))
        return made

    for first in (337, 273, 209, 145):
        known.add(lists(first))
    with pytest.raises(RefusedKeys, match="keys for more than 256"):
        known.add(lists(81))
    known.add(lists(337))  # what a coordinator says next drops the earlier ones
    known.add(lists(273))
