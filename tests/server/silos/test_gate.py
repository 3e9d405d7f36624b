"""The gate opens when as many silos of the round as the list has reports confirmed it."""

import asyncio

import pytest
from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import sign_confirmation
from silomix_server.errors import UnwelcomeFrame
from silomix_server.silos.gate import Gate
from support.rounds import Parties, Round, make_round, parties_asking

LIST = bytes(range(96))
PARTIES = parties_asking(4, silos=5)
ASKED = ("silo-0", "silo-1", "silo-2", "silo-3")  # silo-4 is not asked


@pytest.fixture
def asked() -> Round:
    return make_round(PARTIES.study, PARTIES.keys["server"])


@pytest.fixture
def gate(asked: Round) -> Gate:
    return Gate(PARTIES.study, asked.descriptor, LIST)


def confirmation(
    digest: RoundDigest, silo: str, joined: bytes = LIST, parties: Parties = PARTIES
) -> round_pb2.Confirmation:
    place = parties.roster.index(silo)
    return sign_confirmation(digest, joined, place, parties.keys[silo])


def is_open(gate: Gate) -> bool:
    return asyncio.run(gate.opens(0.01))


def test_it_opens_when_as_many_silos_confirmed_as_the_list_has_reports(
    asked: Round, gate: Gate
) -> None:
    for silo in ASKED[:2]:
        gate.confirm(silo, confirmation(asked.digest, silo))
    assert not is_open(gate)
    assert gate.unconfirmed == ["silo-2", "silo-3"]
    gate.confirm("silo-3", confirmation(asked.digest, "silo-3"))
    assert is_open(gate)
    assert [each.silo for each in gate.confirmations] == [0, 1, 3]


def test_a_silo_that_confirms_again_counts_once(asked: Round, gate: Gate) -> None:
    for _ in range(5):
        gate.confirm("silo-0", confirmation(asked.digest, "silo-0"))
    assert len(gate.confirmations) == 1
    assert not is_open(gate)


def test_what_is_not_a_silos_own_confirmation_of_this_list_is_not_counted(
    asked: Round, gate: Gate
) -> None:
    other = make_round(PARTIES.study, PARTIES.keys["server"], 2)
    unwelcome = [
        ("silo-0", confirmation(asked.digest, "silo-1")),  # somebody else's
        ("silo-0", confirmation(other.digest, "silo-0")),  # another round's
        ("silo-0", confirmation(asked.digest, "silo-0", LIST[:64])),  # another list's
        ("silo-4", confirmation(asked.digest, "silo-4")),  # not asked
        ("silo-0", round_pb2.Confirmation(silo=5, signature=bytes(64))),  # no such place
        ("silo-0", round_pb2.Confirmation()),
    ]
    for sender, sent in unwelcome:
        with pytest.raises(UnwelcomeFrame):
            gate.confirm(sender, sent)
    assert gate.confirmations == []


def test_who_waits_is_told_as_soon_as_it_opens(asked: Round) -> None:
    async def scenario() -> bool:
        gate = Gate(PARTIES.study, asked.descriptor, LIST)
        waiting = asyncio.create_task(gate.opens(30.0))
        for silo in ASKED[:3]:
            await asyncio.sleep(0)
            gate.confirm(silo, confirmation(asked.digest, silo))
        async with asyncio.timeout(5.0):
            return await waiting

    assert asyncio.run(scenario())


def opens(gate: Gate, gone: frozenset[str]) -> bool:
    """Whether it opens; a test that waits for half a minute fails."""

    async def scenario() -> bool:
        async with asyncio.timeout(5.0):
            return await gate.opens(30.0, lambda: gone)

    return asyncio.run(scenario())


def test_nobody_waits_when_too_few_are_left_to_confirm(asked: Round) -> None:
    """Three reports are in the list of four silos that were asked."""
    complained = Gate(PARTIES.study, asked.descriptor, LIST)
    complained.complain("silo-0")
    assert not complained.is_hopeless()
    assert complained.is_hopeless(frozenset({"silo-1"}))
    complained.complain("silo-1")
    assert not opens(complained, frozenset())
    assert not opens(Gate(PARTIES.study, asked.descriptor, LIST), frozenset(ASKED[2:]))


def test_who_confirmed_and_left_still_counts(asked: Round, gate: Gate) -> None:
    for silo in ASKED[:3]:
        assert not gate.is_hopeless(frozenset(ASKED[:2]) & frozenset(ASKED[:1]))
        gate.confirm(silo, confirmation(asked.digest, silo))
    assert opens(gate, frozenset(ASKED))


def test_a_complaint_does_not_keep_the_others_gate_closed(asked: Round, gate: Gate) -> None:
    """A silo whose report did not open at the first mix complains, too."""
    gate.complain("silo-3")
    for silo in ASKED[:3]:
        gate.confirm(silo, confirmation(asked.digest, silo))
    assert opens(gate, frozenset())
