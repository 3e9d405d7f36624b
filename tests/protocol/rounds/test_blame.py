"""Who is to blame for a dropped report: found from statements and disclosures, nothing opened."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import pytest
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import ForgedSignature, SealKey, sealing_public_key
from silomix_protocol.rounds.blame import Displaced, Drop, NotLost, at_fault, trace
from silomix_protocol.rounds.complaints import (
    ComplaintFinding,
    NothingMissing,
    check_complaint,
    check_evidence,
    sign_complaint,
)
from silomix_protocol.rounds.onion import _SUITE, Onion, _info, open_layer, seal
from silomix_protocol.rounds.statements import BrokenChain, check_chain, is_ended, sign_voided
from support.rounds import make_parties, make_round, receipt
from support.voids import VoidRound, void_round

PARTIES = make_parties(silos=5, mixes=3, minimum=3)
STUDY, SERVER = PARTIES.study, PARTIES.keys["server"]
ROUND = make_round(STUDY, SERVER)
VICTIM = 3  # the place of the silo whose report is lost
HOPS = range(3)


@dataclass
class Voided:
    """A round that every mix made void, some of them not honest."""

    onions: list[Onion]
    made: VoidRound

    @property
    def chain(self) -> list[round_pb2.HopStatement]:
        return self.made.chain

    @property
    def told(self) -> list[round_pb2.Disclosure]:
        return self.made.told

    @property
    def endings(self) -> list[round_pb2.Ending]:
        return self.made.endings

    def traced(self) -> list[Drop]:
        check_chain(self.chain, ROUND.descriptor, STUDY, len(self.chain))
        return trace(self.chain, self.endings, ROUND.descriptor, STUDY)

    def fault(self, silo: int = VICTIM) -> int | None:
        onion = self.onions[silo].sealed
        return at_fault(onion, silo, self.chain, self.endings, ROUND.descriptor, STUDY)


Theft = Callable[[list[bytes], list[int], int], None]  # at this place of what goes out


def nothing(reports: list[bytes], origins: list[int], place: int) -> None:
    """An honest mix."""


def drop(reports: list[bytes], origins: list[int], place: int) -> None:
    del reports[place], origins[place]


def replace(reports: list[bytes], origins: list[int], place: int) -> None:
    reports[place] = b"a report of the mix's own"


def voided(thief: int = -1, theft: Theft = nothing, *, wrongly_sealed: int | None = None) -> Voided:
    """Five reports through three mixes; `thief` does something to the victim's."""
    onions = [ROUND.seal(bytes([place]) * 40) for place in range(5)]
    if wrongly_sealed is not None:
        keys = ROUND.mix_keys
        keys[wrongly_sealed].seal = SealKey.generate().public
        onions[VICTIM] = seal(b"x" * 40, ROUND.server.public, keys, ROUND.digest)

    def steal(hop: int, reports: list[bytes], origins: list[int]) -> None:
        if hop == thief:
            digests = [sha256(each).digest() for each in reports]
            theft(reports, origins, digests.index(onions[VICTIM].trail[hop + 1]))

    made = void_round(PARTIES, ROUND, [each.sealed for each in onions], steal)
    return Voided(onions, made)


def frame(made: Voided, hop: int) -> int:
    """Let the mix say that what went out first came from the victim; whom it names instead."""
    (gone,) = set(range(5)) - set(made.told[hop].origins)
    made.told[hop].origins[0] = gone
    (named,) = made.traced()
    assert named.silo != VICTIM
    return named.silo


def copied(hop: int) -> Voided:
    """Silos 3 and 4 send what is the same behind the layer of the mix at `hop`, which keeps one."""
    onions = [ROUND.seal(bytes([place]) * 40) for place in range(5)]
    layer = onions[3].sealed
    for before in range(hop + 1):
        layer = open_layer(layer, ROUND.mixes[before].seal, before, ROUND.digest)
    trail = list(onions[3].trail)
    for outer in reversed(range(hop + 1)):
        key = sealing_public_key(ROUND.mix_keys[outer].seal)
        layer = _SUITE.encrypt(layer, key, _info(b"mix", outer, ROUND.digest))
        trail[outer] = sha256(layer).digest()
    onions[4] = Onion(layer, tuple(trail))

    def keep_one(at: int, reports: list[bytes], origins: list[int]) -> None:
        for place in reversed(range(len(reports))):
            if reports[place] in reports[:place]:
                del reports[place], origins[place]

    return Voided(onions, void_round(PARTIES, ROUND, [each.sealed for each in onions], keep_one))


# What is traced ----------------------------------------------------------------------------------


def test_nobody_is_named_when_nothing_was_dropped() -> None:
    made = voided()
    assert made.traced() == []
    for silo in range(5):
        with pytest.raises(NotLost):
            made.fault(silo)


@pytest.mark.parametrize("hop", HOPS)
def test_a_report_that_was_sealed_wrongly_is_traced_to_its_silo(hop: int) -> None:
    made = voided(wrongly_sealed=hop)
    assert made.traced() == [Drop(hop, VICTIM)]
    assert made.fault() is None, "no mix is to blame"


@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.parametrize("theft", [drop, replace])
def test_a_mix_that_lies_is_proven_to_by_the_onion_and_the_disclosed_keys(
    hop: int, theft: Theft
) -> None:
    made = voided(hop, theft)
    assert made.fault() == hop
    if theft is drop:
        assert made.traced() == [Drop(hop, VICTIM)]
    for silo in set(range(5)) - {VICTIM}:
        with pytest.raises(NotLost):
            made.fault(silo)


@pytest.mark.parametrize("hop", HOPS)
def test_a_mix_cannot_blame_another_silo(hop: int) -> None:
    """It says that it dropped another report than it did: that silo's onion is in what went out,
    as somebody else's, and the victim's proves the lie."""
    made = voided(hop, drop)
    framed = frame(made, hop)
    with pytest.raises(Displaced) as elsewhere:
        made.fault(framed)
    assert elsewhere.value.hop == hop
    assert made.fault() == hop
    for silo in set(range(5)) - {VICTIM, framed}:
        with pytest.raises(NotLost):
            made.fault(silo)


def test_a_report_with_a_receipt_that_the_first_mix_does_not_name_was_lost_there() -> None:
    """It says that the victim sent another report, which that silo did sign."""
    made = voided()
    (own,) = [each for each in made.told[0].senders if each.silo == VICTIM]
    made.onions[VICTIM] = ROUND.seal(b"another" * 6)
    assert sha256(made.onions[VICTIM].sealed).digest() != own.report
    assert made.fault() == 0


@pytest.mark.parametrize("hop", HOPS)
def test_two_silos_with_the_same_content_convict_no_mix(hop: int) -> None:
    """The mix drops the second as a copy, and says so: neither onion proves that it lied."""
    made = copied(hop)
    (named,) = made.traced()
    assert named.silo in (3, 4)
    with pytest.raises(Displaced):
        made.fault(named.silo)
    with pytest.raises(NotLost):
        made.fault(7 - named.silo)
    finding = check_complaint(complaint(made, named.silo), STUDY)
    assert finding == ComplaintFinding(f"silo-{named.silo}", 1, f"mix-{hop + 1}", proven=False)


# What does not hold ------------------------------------------------------------------------------


def other_key(made: Voided) -> None:
    made.told[0].seal = SealKey.generate().raw


def other_keys(made: Voided) -> None:
    key = SealKey.generate()
    made.told[0].seal, made.told[0].keys.seal = key.raw, key.public


def no_key(made: Voided) -> None:
    made.told[0].seal = b"short"


def same_origin_twice(made: Voided) -> None:
    made.told[0].origins[0] = made.told[0].origins[1]


def origin_beyond(made: Voided) -> None:
    made.told[0].origins[0] = 5


def origin_missing(made: Voided) -> None:
    del made.told[0].origins[0]


def sender_missing(made: Voided) -> None:
    del made.told[0].senders[0]


def sender_renamed(made: Voided) -> None:
    """The first mix blames a silo that sent another report."""
    senders = made.told[0].senders
    senders[0].silo, senders[1].silo = senders[1].silo, senders[0].silo


def sender_unknown(made: Voided) -> None:
    made.told[0].senders[0].silo = 99


def sender_twice(made: Voided) -> None:
    made.told[0].senders[0].silo = made.told[0].senders[1].silo


def sender_of_a_later_mix(made: Voided) -> None:
    made.told[1].senders.append(made.told[0].senders[0])


@pytest.mark.parametrize(
    "lie",
    [
        other_key,
        other_keys,
        no_key,
        same_origin_twice,
        origin_beyond,
        origin_missing,
        sender_missing,
        sender_renamed,
        sender_unknown,
        sender_twice,
        sender_of_a_later_mix,
    ],
)
def test_a_disclosure_that_does_not_fit_shows_nothing(lie: Callable[[Voided], None]) -> None:
    made = voided(2, drop)
    lie(made)
    with pytest.raises((BrokenChain, ForgedSignature)):
        made.traced()
    with pytest.raises((BrokenChain, ForgedSignature)):
        made.fault()


def test_an_ending_of_every_mix_is_needed() -> None:
    made = voided(1, drop)
    with pytest.raises(BrokenChain, match="not every mix"):
        trace(made.chain, made.endings[:2], ROUND.descriptor, STUDY)
    copy = complaint(made)
    del copy.endings[2]
    with pytest.raises(BrokenChain, match="not every mix"):
        check_complaint(copy, STUDY)


def test_a_disclosure_is_the_one_that_was_signed() -> None:
    made = voided(1, drop)
    endings = made.endings
    endings[0].disclosure = endings[1].disclosure
    with pytest.raises(BrokenChain, match="something else"):
        trace(made.chain, endings, ROUND.descriptor, STUDY)
    endings[0].ClearField("disclosure")
    with pytest.raises(BrokenChain, match="disclosed nothing"):
        trace(made.chain, endings, ROUND.descriptor, STUDY)
    assert is_ended(endings, ROUND.digest, STUDY), "a silo needs no disclosure to know it is void"


# Complaints with a proof -------------------------------------------------------------------------


def complaint(made: Voided, silo: int = VICTIM) -> channel_pb2.Complaint:
    """The copy of the victim's operator, or of another one's, in a round without a list."""
    own, key = made.onions[silo], PARTIES.keys[f"silo-{silo}"]
    taken = receipt(PARTIES, ROUND, own.sealed, silo)
    copy = sign_complaint(ROUND.descriptor, silo, taken, None, key)
    copy.trail.extend(own.trail)
    copy.chain.extend(made.chain)
    copy.endings.extend(made.endings)
    copy.onion = own.sealed
    return copy


@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.parametrize("theft", [drop, replace])
def test_a_complaint_proves_which_mix_lost_the_report(hop: int, theft: Theft) -> None:
    finding = check_complaint(complaint(voided(hop, theft)), STUDY)
    assert finding == ComplaintFinding(f"silo-{VICTIM}", 1, f"mix-{hop + 1}", proven=True)


def test_a_complaint_about_a_report_that_was_sealed_wrongly_proves_that() -> None:
    finding = check_complaint(complaint(voided(wrongly_sealed=1)), STUDY)
    assert finding == ComplaintFinding(f"silo-{VICTIM}", 1, f"silo-{VICTIM}", proven=True)


@pytest.mark.parametrize("hop", HOPS)
def test_a_silo_that_is_named_in_the_place_of_another_accuses_the_mix(hop: int) -> None:
    made = voided(hop, drop)
    framed = frame(made, hop)
    assert check_complaint(complaint(made, framed), STUDY) == ComplaintFinding(
        f"silo-{framed}", 1, f"mix-{hop + 1}"
    )
    assert check_complaint(complaint(made), STUDY).proven, "the victim's onion proves it"


def test_a_disclosure_that_does_not_fit_keeps_no_complaint_from_naming_a_mix() -> None:
    made = voided(1, drop)
    other_key(made)
    assert check_complaint(complaint(made), STUDY) == ComplaintFinding(f"silo-{VICTIM}", 1, "mix-2")
    with pytest.raises(NothingMissing):
        check_complaint(complaint(made, 0), STUDY)


def test_without_a_disclosure_the_silos_word_names_a_mix_and_proves_nothing() -> None:
    copy = complaint(voided(1, drop))
    unsigned = sign_voided(ROUND.digest, "restarted", b"", PARTIES.mix_key(0))
    copy.endings[0].CopyFrom(unsigned)
    assert check_complaint(copy, STUDY) == ComplaintFinding(f"silo-{VICTIM}", 1, "mix-2")


def test_a_complaint_about_another_onion_or_a_report_that_is_there_shows_nothing() -> None:
    made = voided(1, drop)
    copy = complaint(made)
    copy.onion = made.onions[0].sealed
    with pytest.raises(BrokenChain, match="onion"):
        check_complaint(copy, STUDY)
    with pytest.raises(BrokenChain, match="is there"):
        check_complaint(complaint(voided()), STUDY)
    silent = complaint(made)
    for name in ("chain", "endings", "onion", "trail"):
        silent.ClearField(name)
    with pytest.raises(BrokenChain, match="neither"):
        check_complaint(silent, STUDY)


def test_what_a_coordinator_kept_names_the_mix_and_the_silo() -> None:
    made = voided(2, drop)
    evidence = channel_pb2.Complaint(
        descriptor=ROUND.descriptor.to_wire(), chain=made.chain, endings=made.endings
    )
    assert check_evidence(evidence, STUDY) == [ComplaintFinding(f"silo-{VICTIM}", 1, "mix-3")]
    evidence.chain[0].signature = bytes(64)
    with pytest.raises(ForgedSignature):
        check_evidence(evidence, STUDY)
