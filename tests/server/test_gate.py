"""The gate opens for enough distinct silos of the round that confirmed this list, never else."""

import asyncio

import pytest
from silomix_proto import round_pb2
from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.statements import sign_confirmation
from silomix_server.errors import UnwelcomeFrame
from silomix_server.gate import Gate
from support.rounds import Parties, Round, make_parties, make_round

LIST = bytes(range(96))
PARTIES = make_parties(silos=5, minimum=3)
ASKED = ("silo-0", "silo-1", "silo-2", "silo-3")  # silo-4 is not asked


@pytest.fixture
def asked() -> Round:
    return make_round(PARTIES.study, PARTIES.keys["server"], silos=ASKED)


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


def test_it_opens_when_the_minimum_of_distinct_silos_confirmed(asked: Round, gate: Gate) -> None:
    for silo in ASKED[:2]:
        gate.confirm(silo, confirmation(asked.digest, silo))
    assert not is_open(gate)
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
