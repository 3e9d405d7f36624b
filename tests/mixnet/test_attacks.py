"""A chain of three with one honest mix: what the other two and the server, together, cannot do.

The honest mix is a real process, once at each place; the test plays everybody else and has all
their keys.  An attack must fail, or leave a statement that names the right party.  Attacks that
remain are tests as well (`…_remains_…`): they say where the guarantee ends.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import pytest
from mixnet.chain_of_three import (
    MINIMUM,
    MIXES,
    PRECONDITION,
    SILOS,
    consortium,
    deliver,
    isolate,
    restated,
    sent_by_silos,
    victims_gated,
    whole_chain,
)
from mixnet.real_mix import (
    Chain,
    HostileRound,
    RealMix,
    feed,
    honest_confirmers,
    hostile_round,
    joined,
    output,
    prepared,
    real_mix,
    refusal,
    successor,
)
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.rounds.complaints import check_complaint, lost_at, sign_complaint
from silomix_protocol.rounds.onion import ENCAPSULATED_BYTES, Onion
from silomix_protocol.rounds.statements import (
    BrokenChain,
    check_abandoned,
    check_chain,
    input_of,
    sign_confirmation,
    sign_receipt,
)
from support.mixes import (
    abandon,
    collect,
    commit_at,
    confirmations,
    described,
    open_at,
    release_at,
    run,
    signer,
    submission,
    submit,
    void_at,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT
VICTIM = "silo-1"


@dataclass(frozen=True, slots=True)
class Stage:
    """An honest mix, ready, and numbers for rounds that nobody used yet."""

    mix: RealMix
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def made(self) -> Consortium:
        return self.mix.made

    @property
    def honest(self) -> int:
        return self.mix.hop

    async def round(self, **choices: object) -> HostileRound:
        return await hostile_round(self.made, self.honest, next(self.numbers), **choices)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=range(MIXES))
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    made = consortium(tmp_path_factory.mktemp("chain") / "c")
    with real_mix(made, request.param, open_rounds=1000) as mix:
        yield Stage(mix)


# Only a mix behind another one takes batches, and fakes in them.
not_first = pytest.mark.parametrize("stage", range(1, MIXES), indirect=True)


def attackers_confirmations(
    round_: HostileRound, listed: bytes, colluding: int
) -> list[round_pb2.Confirmation]:
    """The victim's own, those of colluding silos, and forged ones in all others' names."""
    roster = [silo.name for silo in round_.made.study.silos]
    willing = [VICTIM, *[name for name in roster if name != VICTIM][:colluding]]
    forged = [
        sign_confirmation(
            round_.played.descriptor.digest, listed, roster.index(name), SigningKey.generate()
        )
        for name in roster
        if name not in willing
    ]
    return [*confirmations(round_.played, listed, willing), *forged]


@not_first
def test_an_n_minus_1_attack_ends_at_the_gate(stage: Stage) -> None:
    """One honest silo sees its report in the list, so fewer confirm it than it has reports.

    A first mix that is honest takes what silos signed, so there the others' reports are kept from
    it instead: see `test_a_batch_below_the_minimum_never_leaves_an_honest_first_mix`.
    """

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            earlier = await stage.round()
            onions = sent_by_silos(earlier)
            listed = joined(
                (await whole_chain(earlier, [x.sealed for x in onions.values()], taker))[1]
            )
            known = await earlier.released(listed, confirmations(earlier.played, listed))

            round_ = await stage.round()
            silos = sent_by_silos(round_)
            chain, gated, fakes = await isolate(round_, silos[VICTIM].sealed, taker)
            committed = chain[-1].output
            assert honest_confirmers(silos, committed) == [VICTIM]
            assert all(
                lost_at(onion.trail, chain, committed) == 0
                for name, onion in silos.items()
                if name != VICTIM
            ), "everybody else can prove that the first mix did it"
            await commit_at(round_.played, round_.mix, committed)
            colluding = MINIMUM - 2
            claims = attackers_confirmations(round_, committed, colluding)
            code, why = await refusal(release_at(round_.played, round_.mix, committed, claims))
            assert code is PRECONDITION
            assert why == f"{1 + colluding} silos confirmed the list, {SILOS} needed"
            often = confirmations(round_.played, committed, [VICTIM] * SILOS)
            code, _ = await refusal(release_at(round_.played, round_.mix, committed, often))
            assert code is PRECONDITION, "one silo counts once"

            target = victims_gated(gated, fakes)
            keys = [*known, *round_.release_keys.values(), round_.played.server_key]
            keys += [*round_.seal_keys.values(), SealKey.generate()]
            assert round_.opens_with(target, keys) is None
            assert VICTIM.encode() not in round_.opens(target, []), "our own key opens no gate"

    run(scene())
    assert stage.mix.refused("gate_closed") >= 2


@not_first
def test_it_remains_possible_with_k_minus_1_colluding_silos(stage: Stage) -> None:
    """A batch has k reports at least: with c silos in the attacker's hand, k - c are honest."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            victim = round_.onion(b"victim").sealed
            chain, gated, fakes = await isolate(round_, victim, taker, MINIMUM - 1)
            claims = attackers_confirmations(round_, chain[-1].output, MINIMUM - 1)
            released = await round_.released(chain[-1].output, claims)
            assert round_.opens(victims_gated(gated, fakes), released).startswith(b"victim")

    run(scene())


def test_a_report_too_many_breaks_the_chain_of_statements(stage: Stage) -> None:
    """The honest mix refuses it from before; anybody with the statements sees it from behind."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = [each.sealed for each in sent_by_silos(round_).values()]
            extra = round_.onion(b"extra").sealed
            if stage.honest:
                code, why = await refusal(feed(round_, *round_.before([*onions, extra])))
                assert code is INVALID
                assert "do not add up" in why
            await deliver(round_, onions)
            chain, reports = await output(round_, taker)
            if not round_.last:
                hop = stage.honest + 1
                opened = round_.opened(hop, reports)
                came = sha256(chain[-1].output).digest()
                lie = (*chain, round_.statement(hop, came, [*opened, opened[0][::-1]]))
                with pytest.raises(BrokenChain):
                    check_chain(lie, round_.played.descriptor, stage.made.study, hop + 1)

    run(scene())


def replaced(
    round_: HostileRound, reports: Sequence[bytes], victim: bytes, hop: int
) -> list[bytes]:
    """The reports on their way to `hop`, with a fake where the victim's was."""
    fake = round_.fake_at(hop)
    return [fake if sha256(each).digest() == victim else each for each in reports]


@pytest.mark.parametrize(
    ("stage", "thief"),
    [(hop, thief) for hop in range(MIXES) for thief in range(MIXES + 1) if hop != thief],
    indirect=["stage"],
)
def test_a_replaced_report_names_who_replaced_it(stage: Stage, thief: int) -> None:
    """Whoever swaps a report for a fake is the one that the statements name: a mix, or for a list
    that lacks what came through, the last mix, which gave its word for it; never the honest one.
    """

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            trail = onions[VICTIM].trail
            reports = [each.sealed for each in onions.values()]
            came = input_of(sha256(each).digest() for each in reports)
            chain: Chain = ()
            for hop in range(MIXES):
                if hop == stage.honest:
                    if hop:
                        await feed(round_, chain, reports)
                    else:
                        await deliver(round_, reports)
                    chain, reports = await output(round_, taker)
                else:
                    reports = round_.opened(hop, reports)
                    if hop == thief:
                        reports = replaced(round_, reports, trail[hop + 1], hop + 1)
                    chain = (*chain, round_.statement(hop, came, reports))
                came = sha256(chain[-1].output).digest()
            await assert_named(round_, onions, chain)

    async def assert_named(round_: HostileRound, onions: dict[str, Onion], chain: Chain) -> None:
        descriptor, study, trail = round_.played.descriptor, stage.made.study, onions[VICTIM].trail
        check_chain(chain, descriptor, study, MIXES)
        listed, named = chain[-1].output, thief
        if thief == MIXES:  # everything came through; the list of the server lacks it
            listed, named = listed.replace(trail[-1], sha256(b"fake").digest()), MIXES - 1
            if round_.last:
                code, _ = await refusal(round_.committed(listed))
                assert code is PRECONDITION, "an honest last mix stands by its own list only"
                return
        committed = await round_.committed(listed)
        assert lost_at(trail, chain, listed) == named
        assert VICTIM not in honest_confirmers(onions, listed)
        place = [silo.name for silo in study.silos].index(VICTIM)
        receipt = sign_receipt(descriptor.digest, place, trail[0], signer(stage.made, "mix-1"))
        key = signer(stage.made, VICTIM)
        complaint = sign_complaint(descriptor, place, receipt, committed, key)
        assert check_complaint(complaint, study).accused is None, "no digests on the wire"
        complaint.chain.extend(chain)
        complaint.trail.extend(trail)
        finding = check_complaint(complaint, study)
        assert (finding.silo, finding.accused) == (VICTIM, study.mixes[named].name)

    run(scene())


async def assert_void(round_: HostileRound, listed: bytes, stolen: bytes) -> None:
    """Nothing that the attacker can still do opens the report that it holds back."""
    everybody = confirmations(round_.played, listed)
    for call in (
        commit_at(round_.played, round_.mix, listed),
        release_at(round_.played, round_.mix, listed, everybody),
    ):
        assert (await refusal(call))[0] is PRECONDITION
    ending = await void_at(round_.made, round_.played.descriptor, round_.mix)
    told = round_pb2.Disclosure.FromString(ending.disclosure)
    keys = [SealKey.from_raw(told.seal), *round_.release_keys.values()]
    assert round_.opens_with(stolen, keys) is None


def test_a_report_that_is_left_out_of_the_list_makes_the_round_void(stage: Stage) -> None:
    """A mix behind the honest one, or the server, keeps one report out of the list: who does not
    confirm sent it, and it must not be opened.  The honest mix stands by no such list."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            _, gated = await whole_chain(round_, [x.sealed for x in onions.values()], taker)
            stolen, listed = gated[0], joined(gated[1:])
            code, _ = await refusal(commit_at(round_.played, round_.mix, listed))
            assert code is PRECONDITION
            await assert_void(round_, joined(gated), stolen)

    run(scene())


@pytest.mark.parametrize("stage", [0, MIXES - 1], indirect=True, ids=["first", "last"])
def test_a_report_that_is_replaced_in_the_list_stays_closed(stage: Stage) -> None:
    """The list is as long as it should be, and all others confirm it, colluding silos too."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            _, gated = await whole_chain(round_, [x.sealed for x in onions.values()], taker)
            stolen, listed = gated[0], joined([b"fake", *gated[1:]])
            willing = honest_confirmers(onions, listed)
            (victim,) = set(onions) - set(willing)
            confirmed = confirmations(round_.played, listed, willing)
            if round_.last:
                code, why = await refusal(commit_at(round_.played, round_.mix, listed))
                assert (code, "another list" in why) == (PRECONDITION, True)
            else:
                await commit_at(round_.played, round_.mix, listed)
                code, why = await refusal(release_at(round_.played, round_.mix, listed, confirmed))
                assert (code, why[:1]) == (PRECONDITION, "1"), "the victim did not confirm"
                await void_at(round_.made, round_.played.descriptor, round_.mix)
            await assert_void(round_, listed, stolen)
            assert victim in onions

    run(scene())


@pytest.mark.parametrize("stage", [1], indirect=True, ids=["middle"])
def test_replacing_remains_possible_around_a_mix_in_the_middle_for_each_idle_colluding_silo(
    stage: Stage,
) -> None:
    """First and last mix collude, and a silo that sent nothing confirms in the place of the one
    that was left out.  That one complains, and after two such rounds it stops."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            idle = "silo-5"
            del onions[idle]
            chain, gated = await whole_chain(round_, [x.sealed for x in onions.values()], taker)
            stolen, listed = gated[0], joined([b"fake", *gated[1:]])
            willing = honest_confirmers(onions, listed)
            (victim,) = set(onions) - set(willing)
            code, _ = await refusal(
                round_.released(listed, confirmations(round_.played, listed, willing))
            )
            assert code is PRECONDITION, "without the colluding silo it stays closed"
            confirmed = confirmations(round_.played, listed, [*willing, idle])
            released = await round_.released(listed, confirmed)
            assert round_.opens(stolen, released).startswith(victim.encode())
            assert lost_at(onions[victim].trail, chain, listed) == MIXES - 1, "the victim knows"

    run(scene())


def test_onions_of_an_earlier_round_are_dropped(stage: Stage) -> None:
    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            earlier = await stage.round()
            old = [each.sealed for each in sent_by_silos(earlier).values()]
            await whole_chain(earlier, old, taker)
            round_ = await stage.round()
            fresh = [each.sealed for each in sent_by_silos(round_).values()]
            if stage.honest:
                chain, reports = round_.before(fresh)
                reports[:2] = earlier.before(old)[1][:2]
                await feed(round_, (*chain[:-1], restated(round_, chain, reports)), reports)
            else:
                await deliver(round_, [*old[:2], *fresh[2:]])
            chain, out = await output(round_, taker)
            assert (chain[-1].received, chain[-1].dropped, len(out)) == (5, 2, 3)

    run(scene())


@not_first
def test_a_whole_batch_of_an_earlier_round_is_worth_nothing_in_another(stage: Stage) -> None:
    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            earlier = await stage.round()
            old_chain, old = earlier.before([x.sealed for x in sent_by_silos(earlier).values()])
            await feed(earlier, old_chain, old)
            await output(earlier, taker)
            round_ = await stage.round()
            code, _ = await refusal(feed(round_, old_chain, old))
            assert code is grpc.StatusCode.PERMISSION_DENIED, "signed for another round"
            chain, _ = round_.before([x.sealed for x in sent_by_silos(round_).values()])
            await feed(round_, (*chain[:-1], restated(round_, chain, old)), old)
            chain, out = await output(round_, taker)
            assert (out, chain[-1].aborted) == ([], f"0 valid reports, {MINIMUM} needed")

    run(scene())


def flipped(layer: bytes, place: int, bit: int = 0) -> bytes:
    changed = bytearray(layer)
    changed[place] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("place", [0, 31, 1087, ENCAPSULATED_BYTES - 1, ENCAPSULATED_BYTES, -1])
def test_a_tagged_onion_is_dropped_and_leaves_no_mark(stage: Stage, place: int) -> None:
    """One bit anywhere: encapsulation (also the X25519 bit that means nothing), body, tag."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            sealed = [each.sealed for each in onions.values()]
            if stage.honest:
                chain, reports = round_.before(sealed)
                reports[0] = flipped(reports[0], place, 7)
                await feed(round_, (*chain[:-1], restated(round_, chain, reports)), reports)
            else:
                await deliver(round_, [flipped(sealed[0], place, 7), *sealed[1:]])
            chain, out = await output(round_, taker)
            assert (chain[-1].received, chain[-1].dropped) == (SILOS, 1)
            expected = {each.trail[stage.honest + 1] for each in list(onions.values())[1:]}
            assert {sha256(each).digest() for each in out} == expected

    before = stage.mix.count("reports", "dropped")
    run(scene())
    assert stage.mix.count("reports", "dropped") == before + 1


def test_a_duplicated_onion_leaves_once(stage: Stage) -> None:
    """To follow one report by its double: the copy is dropped, or the batch refused as a whole."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            sealed = [each.sealed for each in onions.values()]
            doubled = [*sealed[:-1], sealed[0]]
            if stage.honest:
                chain, reports = round_.before(sealed)
                copies = [*reports[:-1], reports[0]]
                code, _ = await refusal(
                    feed(round_, (*chain[:-1], restated(round_, chain, copies)), copies)
                )
                assert code is INVALID
                return
            await deliver(round_, doubled)
            chain, out = await output(round_, taker)
            assert (chain[-1].received, chain[-1].dropped) == (SILOS, 1)
            assert len({sha256(each).digest() for each in out}) == len(out) == SILOS - 1

    before = stage.mix.count("reports", "dropped")
    run(scene())
    assert stage.mix.count("reports", "dropped") == before + (stage.honest == 0)


def test_a_round_has_one_descriptor_whatever_silos_are_shown(stage: Stage) -> None:
    async def scene() -> None:
        round_ = await stage.round()
        played = round_.played
        number = played.descriptor.round
        other = described(stage.made, played.mix_keys, number, query=b"asked differently")
        code, _ = await refusal(open_at(stage.made, other.descriptor, round_.mix))
        assert code is PRECONDITION
        if stage.honest == 0:
            sealed = bytes(round_.length(0))
            call = submit(
                stage.made, VICTIM, submission(stage.made, VICTIM, other.descriptor, sealed)
            )
            assert (await refusal(call))[0] is PRECONDITION
        else:
            shown = HostileRound(other, round_.honest, round_.seal_keys, round_.release_keys)
            onions = [x.sealed for x in sent_by_silos(shown).values()]
            assert (await refusal(feed(shown, *shown.before(onions))))[0] is PRECONDITION

    run(scene())


def test_release_needs_a_forwarded_batch_and_all_its_silos_on_one_list(stage: Stage) -> None:
    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = sent_by_silos(round_)
            everybody = confirmations(round_.played, b"")
            code, _ = await refusal(commit_at(round_.played, round_.mix, b""))
            assert code is PRECONDITION, "before anything was forwarded"
            code, _ = await refusal(release_at(round_.played, round_.mix, b"", everybody))
            assert code is PRECONDITION, "before anything was forwarded"

            chain, gated = await whole_chain(round_, [x.sealed for x in onions.values()], taker)
            listed = chain[-1].output
            other = joined(reversed(gated))
            enough = confirmations(round_.played, listed)
            if stage.honest < 2:  # the last mix stands by what it handed over
                code, _ = await refusal(release_at(round_.played, round_.mix, listed, enough))
                assert code is PRECONDITION, "no list was committed to"
            await commit_at(round_.played, round_.mix, listed)
            split = [
                *confirmations(round_.played, listed, ["silo-1", "silo-2"]),
                *confirmations(round_.played, other, ["silo-3", "silo-4", "silo-5"]),
            ]
            willing = confirmations(round_.played, other)
            for each, given in ((listed, split), (other, split), (other, willing)):
                code, _ = await refusal(release_at(round_.played, round_.mix, each, given))
                assert code is PRECONDITION, "two and three are not five of the one"

            first = await release_at(round_.played, round_.mix, listed, enough)
            again = await release_at(round_.played, round_.mix, listed, enough)
            assert first.raw == again.raw
            code, _ = await refusal(commit_at(round_.played, round_.mix, other))
            assert code is PRECONDITION, "one list only"
            code, _ = await refusal(release_at(round_.played, round_.mix, other, willing))
            assert code is PRECONDITION, "also when the gate is open"
            code, _ = await refusal(
                release_at(round_.played, round_.mix, listed, enough, caller="silo-1")
            )
            assert code is grpc.StatusCode.PERMISSION_DENIED

            later = await stage.round()
            _, out = await whole_chain(
                later, [x.sealed for x in sent_by_silos(later).values()], taker
            )
            assert later.opens_with(out[0], [first]) is None, "a key opens one round"

    run(scene())


def test_an_abandoned_round_is_never_collected_and_a_forwarded_one_never_abandoned(
    stage: Stage,
) -> None:
    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            descriptor, number = round_.played.descriptor, round_.played.descriptor.round
            statement = await abandon(stage.made, descriptor, round_.mix)
            others = [mix.name for mix in stage.made.study.mixes if mix.name != round_.mix]
            with pytest.raises(BrokenChain):
                check_abandoned([statement], descriptor.digest, stage.made.study)
            assert others, "the others' statements are missing"
            onions = [x.sealed for x in sent_by_silos(round_).values()]
            await assert_over(round_, onions)
            code, _ = await refusal(prepared(stage.made, stage.honest, number))
            assert code is PRECONDITION, "the keys of that attempt are gone for good"

            again = await stage_attempt(number)
            await whole_chain(again, [x.sealed for x in sent_by_silos(again).values()], taker)
            code, _ = await refusal(abandon(stage.made, again.played.descriptor, again.mix))
            assert code is PRECONDITION
            await refusal(hostile_round(stage.made, stage.honest, number, attempt=3))

    async def stage_attempt(number: int) -> HostileRound:
        return await hostile_round(stage.made, stage.honest, number, attempt=2)

    async def assert_over(round_: HostileRound, onions: Sequence[bytes]) -> None:
        if stage.honest:
            code, _ = await refusal(feed(round_, *round_.before(onions)))
            assert code is PRECONDITION
        else:
            frames = submission(stage.made, VICTIM, round_.played.descriptor, onions[0])
            (receipt,) = await submit(stage.made, VICTIM, frames)
            assert receipt.status == mix_pb2.Receipt.REFUSED
        if round_.last:
            code, _ = await refusal(collect(round_.played))
            assert code is PRECONDITION

    run(scene())


@not_first
def test_a_second_batch_for_a_round_is_refused_with_an_alarm(stage: Stage) -> None:
    """The differential attack: the same batch with and without the victim."""

    async def scene() -> None:
        async with successor(stage.made, stage.honest) as taker:
            round_ = await stage.round()
            onions = [x.sealed for x in sent_by_silos(round_).values()]
            chain, reports = round_.before(onions)
            await feed(round_, chain, reports)
            first = await output(round_, taker)
            without = [*reports[1:], round_.fake_at(stage.honest)]
            second = (*chain[:-1], restated(round_, chain, without))
            code, _ = await refusal(feed(round_, second, without))
            assert code is PRECONDITION
            await feed(round_, chain, reports)  # the same one again: nothing happens
            assert await output(round_, taker) == first

    before = stage.mix.refused("second_batch")
    run(scene())
    assert stage.mix.refused("second_batch") == before + 1
    assert "second_batch" in stage.mix.log
