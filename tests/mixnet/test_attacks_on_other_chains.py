"""Attacks on studies without a gate, below the minimum, or around a mix of their own."""

from pathlib import Path

from mixnet.chain_of_three import (
    MINIMUM,
    PRECONDITION,
    SILOS,
    consortium,
    deliver,
    isolate,
    restated,
    sent_by_silos,
    victims_gated,
)
from mixnet.real_mix import (
    Chain,
    HostileRound,
    RealMix,
    feed,
    hostile_round,
    output,
    real_mix,
    refusal,
    successor,
)
from silomix_proto import mix_pb2
from silomix_protocol.rounds.tokens import Token, blind, issuer
from support.mixes import (
    commit_at,
    confirmations,
    described,
    open_at,
    release_at,
    run,
    submission,
    submit,
)


def test_the_same_attack_opens_the_report_of_a_study_without_a_gate(tmp_path: Path) -> None:
    """So the gate is what stops it, and the test above is not empty."""
    made = consortium(tmp_path / "c", gate=False)

    async def scene() -> None:
        async with successor(made, 1) as taker:
            round_ = await hostile_round(made, 1, 1)
            victim = round_.onion(b"the victim's payload")
            _, gated, fakes = await isolate(round_, victim.sealed, taker)
            opened = round_.opens(victims_gated(gated, fakes), [])
            assert opened.startswith(b"the victim's payload")

    with real_mix(made, 1):
        run(scene())


def test_a_batch_below_the_minimum_never_leaves_an_honest_first_mix(tmp_path: Path) -> None:
    """The n-1 attack by holding others' reports back: nothing is left to collect or release."""
    made = consortium(tmp_path / "c", deadline_s=0.5)

    async def scene(mix: RealMix) -> None:
        async with successor(made, 0) as taker:
            round_ = await hostile_round(made, 0, 1)
            await deliver(round_, [round_.onion(b"victim").sealed, round_.onion(b"mine").sealed])
            chain, reports = await output(round_, taker)
            assert (reports, chain[-1].aborted) == ([], f"2 valid reports, {MINIMUM} needed")
            empty = confirmations(round_.played, b"")
            code, _ = await refusal(release_at(round_.played, round_.mix, b"", empty))
            assert code is PRECONDITION
            await deliver_late(round_)

    async def deliver_late(round_: HostileRound) -> None:
        descriptor = round_.played.descriptor
        frames = submission(made, "silo-3", descriptor, round_.onion(b"late").sealed)
        (receipt,) = await submit(made, "silo-3", frames)
        assert receipt.status == mix_pb2.Receipt.REFUSED

    with real_mix(made, 0) as mix:
        run(scene(mix))
        assert mix.count("batches", "aborted") == 1


def test_an_injected_report_has_no_token_and_a_copied_token_shows() -> None:
    """What the server checks: a mix that fills an absent silo's place needs a token for it."""
    study = bytes(32)
    ours = issuer(b"s" * 32, study)  # type: ignore[arg-type]
    asked = blind()
    token = asked.finish(ours.evaluate(1, asked.blinded), ours.public_key(1))
    assert ours.valid(1, token)
    for forged in (
        Token(bytes(32), bytes(64)),
        Token(token.nonce, bytes(64)),
        Token(bytes(32), token.output),
    ):
        assert not ours.valid(1, forged)
    assert not ours.valid(2, token), "a token of another round"


def test_a_mix_that_was_killed_still_takes_one_batch_and_keeps_its_gate_shut(
    tmp_path: Path,
) -> None:
    made = consortium(tmp_path / "c")

    async def before_the_kill() -> tuple[HostileRound, Chain, list[bytes]]:
        round_ = await hostile_round(made, 1, 1)
        chain, reports = round_.before([x.sealed for x in sent_by_silos(round_).values()])
        await feed(round_, chain, reports)
        return round_, chain, reports

    async def after_it(round_: HostileRound, chain: Chain, reports: list[bytes]) -> None:
        without = [*reports[1:], round_.fake_at(1)]
        second = (*chain[:-1], restated(round_, chain, without))
        assert (await refusal(feed(round_, second, without)))[0] is PRECONDITION
        other = described(made, round_.played.mix_keys, 1, query=b"asked differently")
        assert (await refusal(open_at(made, other.descriptor, round_.mix)))[0] is PRECONDITION
        async with successor(made, 1) as taker:
            out_chain, out = round_.after(*await output(round_, taker))
        assert len(out) == SILOS
        await commit_at(round_.played, round_.mix, out_chain[-1].output)
        few = confirmations(round_.played, out_chain[-1].output, ["silo-1", "silo-2"])
        call = release_at(round_.played, round_.mix, out_chain[-1].output, few)
        assert (await refusal(call))[0] is PRECONDITION

    with real_mix(made, 1) as mix:
        known = run(before_the_kill())
        mix.process.kill()
    with real_mix(made, 1):
        run(after_it(*known))
