"""A report that is left out of the list, or replaced in it, round after round, with real silos.

The server and one of two mixes collude; the other mix and the silos (desk, ledger, inclusion) are
the real ones.  The attacker picks a report blindly, sees who does not confirm, and tries to open
it.  It must never open, and who was robbed twice answers no more.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from mixnet.real_mix import (
    Chain,
    HostileRound,
    Successor,
    feed,
    joined,
    output,
    prepared,
    successor,
)
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_client.rounds.round_request import RoundRequest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, issue
from silomix_protocol.rounds.onion import UnopenableLayer
from silomix_protocol.rounds.round_keys import fingerprint
from silomix_protocol.rounds.statements import (
    input_of,
    sign_closing,
    sign_commitment,
    sign_receipt,
    sign_voided,
)
from silomix_protocol.rounds.tokens import TOKEN_BYTES
from silomix_shuffler.batch import Batch, State
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    commit_at,
    mix_serving,
    open_at,
    release_at,
    run,
    silo_stream,
    submission,
    void_at,
)
from support.rounds import open_gated
from support.silos import (
    approved_silo,
    mix_key,
    open_desk,
    open_ledger,
    query_at,
    server_key,
    silo_key,
    token_issuer,
)

SILOS, MINIMUM, ROUNDS = 4, 2, 8
FIRST, LAST = 0, 1
GRACE_S = 2.0  # how long the mix waits, once, for a silo that has stopped


@dataclass(slots=True)
class Silo:
    """A hospital's own code, between a hostile server and the first mix."""

    name: str
    place: int
    ledger: Ledger
    desk: StudyDesk
    inclusion: Inclusion
    complaints: int = 0

    @property
    def stopped(self) -> bool:
        return self.inclusion.stop_rule.stops


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(
        tmp_path / "c",
        records=(40,) * SILOS,
        mixes=2,
        rounds=ROUNDS,
        minimum_batch=MINIMUM,
        deadline_s=20.0,
    )


@pytest.fixture
def silos(made: Consortium) -> Iterator[list[Silo]]:
    found = []
    for place in range(SILOS):
        config = approved_silo(made, place)
        ledger = open_ledger(config)
        desk = open_desk(config, made.study, ledger)
        inclusion = Inclusion(made.study, config.name, ledger, silo_key(made, place), config.state)
        found.append(Silo(config.name, place, ledger, desk, inclusion))
    yield found
    for silo in found:
        silo.ledger.close()


@dataclass(slots=True)
class Attack:
    """Server and one mix against the other mix, over many rounds."""

    made: Consortium
    honest: int
    silos: Sequence[Silo]
    replaces: bool  # the report by a fake; else it leaves it out
    opened: int = 0  # stolen reports that could be read
    tried: int = 0
    _taker: Successor | None = field(default=None, repr=False)

    async def play(self) -> None:
        async with self._serving():
            for number in range(1, ROUNDS + 1):
                willing = [silo for silo in self.silos if not silo.stopped]
                if len(willing) > MINIMUM:
                    await self._round(number, willing)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with (
            mix_serving(self.made, self.honest, grace_s=GRACE_S),
            successor(self.made, self.honest) as taker,
        ):
            self._taker = taker
            yield

    async def _round(self, number: int, willing: Sequence[Silo]) -> None:
        round_, query = await self._opened(number)
        reports = {silo.name: self._answer(round_, silo, query) for silo in willing}
        steal = self._behind if self.honest == FIRST else self._before
        listed, stolen = await steal(round_, reports)
        self.tried += 1
        confirmed = await self._shown(round_, willing, listed)
        code = await self._release(round_, listed, confirmed, stolen)
        if self.honest == FIRST or self.replaces:
            assert code is grpc.StatusCode.FAILED_PRECONDITION
        await self._close(round_, willing, void=code is not None)

    async def _opened(self, number: int) -> tuple[HostileRound, bytes]:
        seal, release, server = (SealKey.generate() for _ in range(3))
        own = round_pb2.RoundKeys(seal=seal.public, release=release.public)
        honest = (await prepared(self.made, self.honest, number)).keys[0]
        keys = [honest, own] if self.honest == FIRST else [own, honest]
        query = query_at([number * 1e-9, *[0.0] * (self.made.study.task.dimension - 1)])
        attempt = AttemptKeys(
            sha256(server.public).digest(),
            tuple(fingerprint(each) for each in keys),
            token_issuer(self.made.study).public_key(number),
        )
        study, key = self.made.study, server_key(self.made)
        descriptor = issue(study, number, 1, query, attempt, key)
        other = 1 - self.honest
        played = PlayedRound(self.made, descriptor, server, tuple(keys))
        await open_at(self.made, descriptor, self.made.study.mixes[self.honest].name)
        return HostileRound(played, self.honest, {other: seal}, {other: release}), query

    def _answer(self, round_: HostileRound, silo: Silo, query: bytes) -> StoredReport:
        played = round_.played
        silo.inclusion.opened(played.descriptor)
        question = RoundRequest(played.descriptor, query, played.server_key.public, played.mix_keys)
        report = silo.desk.answer(question)
        silo.inclusion.answered(report)
        return report

    async def _behind(
        self, round_: HostileRound, reports: dict[str, StoredReport]
    ) -> tuple[bytes, bytes]:
        """The honest mix is the first: one of its reports is stolen behind it."""
        descriptor = round_.played.descriptor
        async with AsyncExitStack() as stack:  # who is connected is waited for
            silos = [
                (silo, await stack.enter_async_context(silo_stream(self.made, silo.name)))
                for silo in self.silos
                if silo.name in reports
            ]
            for silo, stream in silos:
                onion = reports[silo.name].onion
                receipt = await stream.send(submission(self.made, silo.name, descriptor, onion))
                silo.ledger.account(self.made.study).note_receipt(descriptor.digest, receipt)
        assert self._taker is not None
        _, gated = round_.after(*await output(round_, self._taker))
        kept = [b"fake", *gated[1:]] if self.replaces else gated[1:]
        return joined(kept), gated[0]

    async def _before(
        self, round_: HostileRound, reports: dict[str, StoredReport]
    ) -> tuple[bytes, bytes]:
        """The honest mix is the last: the first mix withholds a report from it."""
        descriptor, onions = round_.played.descriptor, []
        for silo in self.silos:
            if silo.name in reports:
                onion = reports[silo.name].onion
                digest = sha256(onion).digest()
                receipt = sign_receipt(descriptor.digest, silo.place, digest, mix_key(self.made, 0))
                silo.ledger.account(self.made.study).note_receipt(descriptor.digest, receipt)
                onions.append(onion)
        came = input_of(sha256(each).digest() for each in onions)
        stolen, *others = round_.opened(0, onions)
        kept = [round_.fake_at(1), *others] if self.replaces else others
        chain: Chain = (round_.statement(0, came, kept, dropped=len(onions) - len(kept)),)
        await feed(round_, chain, kept)
        assert self._taker is not None
        chain, _ = await output(round_, self._taker)
        return chain[-1].output, stolen

    async def _shown(
        self, round_: HostileRound, willing: Sequence[Silo], listed: bytes
    ) -> list[round_pb2.Confirmation]:
        """What silos say to the list, if the honest mix stands by it at all."""
        played, mix = round_.played, self.made.study.mixes[self.honest].name
        digest, hashed = played.descriptor.digest, sha256(listed).digest()
        try:
            word = await commit_at(played, mix, listed)
        except grpc.aio.AioRpcError:
            return []
        other = sign_commitment(digest, hashed, mix_key(self.made, 1 - self.honest))
        signatures = [word, other] if self.honest == FIRST else [other, word]
        shown = channel_pb2.RoundCommitted(digest=digest, list=listed, signatures=signatures)
        confirmed = []
        for silo in willing:
            for frame in silo.inclusion.committed(shown):
                if frame.answer.HasField("confirmation"):
                    confirmed.append(frame.answer.confirmation)
                silo.complaints += frame.answer.HasField("complaint")
        return confirmed

    async def _release(
        self,
        round_: HostileRound,
        listed: bytes,
        confirmed: list[round_pb2.Confirmation],
        stolen: bytes,
    ) -> grpc.StatusCode | None:
        """How the attacker is refused the key; None if it gets it, and what it opens then."""
        release = release_at(round_.played, round_.mix, listed, confirmed)
        code = None
        try:
            key = await release
        except grpc.aio.AioRpcError as error:
            code, key = error.code(), SealKey.generate()
        keys = round_.release_keys | {self.honest: key}
        try:
            open_gated(
                stolen,
                [keys[0], keys[1]],
                round_.played.server_key,
                round_.played.descriptor.digest,
                ungated=TOKEN_BYTES,
            )
            self.opened += 1
        except UnopenableLayer:
            pass
        return code

    async def _close(self, round_: HostileRound, willing: Sequence[Silo], *, void: bool) -> None:
        """A first mix that says what it dropped leaves the others a round that opens."""
        descriptor: Descriptor = round_.played.descriptor
        endings = []
        if void:
            honest = await void_at(self.made, descriptor, round_.mix)
            own = sign_voided(descriptor.digest, "void", b"", mix_key(self.made, 1 - self.honest))
            endings = [honest, own] if self.honest == FIRST else [own, honest]
        closed = sign_closing(descriptor.digest, endings, server_key(self.made), void=void)
        for silo in willing:
            silo.inclusion.closed(closed)


@pytest.mark.parametrize("honest", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("replaces", [False, True], ids=["omission", "replacement"])
def test_a_stolen_report_is_never_opened_and_who_was_robbed_twice_stops(
    made: Consortium, silos: list[Silo], honest: int, replaces: bool
) -> None:
    attack = Attack(made, honest, silos, replaces)
    run(attack.play(), timeout_s=120.0)
    assert attack.opened == 0
    assert attack.tried >= MINIMUM
    robbed = [silo for silo in silos if silo.complaints]
    assert all(silo.complaints <= 2 for silo in silos)
    if honest == FIRST and not replaces:
        assert not robbed, "nobody was shown a list, and every round was void"
        assert attack.tried == ROUNDS
    else:
        assert sum(silo.stopped for silo in silos) == SILOS - MINIMUM
        assert [silo.name for silo in silos if silo.stopped] == [
            silo.name for silo in silos if silo.complaints == 2
        ]


def without_the_length_rule(self: Batch, joined_list: bytes) -> None:
    self.committed = sha256(joined_list).digest()


def for_the_minimum(self: Batch, list_hash: bytes, confirmed: frozenset[str]) -> None:
    self.state = State.RELEASED


@pytest.mark.parametrize("replaces", [False, True], ids=["omission", "replacement"])
def test_a_mix_that_opens_for_the_minimum_is_caught(
    made: Consortium, silos: list[Silo], monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """As it was: k confirmations of any list open everything."""
    monkeypatch.setattr(Batch, "commit", without_the_length_rule)
    monkeypatch.setattr(Batch, "release", for_the_minimum)
    attack = Attack(made, FIRST, silos, replaces)
    with pytest.raises(AssertionError):
        run(attack.play(), timeout_s=120.0)
    assert attack.opened == 1
