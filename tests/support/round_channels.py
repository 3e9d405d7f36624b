"""A round channel that is served at its address, and batches that its silos hear of."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc, round_pb2
from silomix_protocol.rounds.statements import sign_closing, sign_confirmation, sign_token_request
from silomix_protocol.rounds.tokens import blind
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.frames import FrameReader
from silomix_server.silos.gate import Gate
from silomix_server.silos.round_channel import RoundChannel
from silomix_server.study.journal import AttemptOutcome, ClosedRound, Journal

from support.coordinators import Listed, identity, listed, parties, report_of, signer
from support.rounds import Round, key_lists, make_round

SILOS = ("silo-1", "silo-2", "silo-3")
QUERY = b"query"


@dataclass(slots=True)
class Desk:
    """The coordinator's side of a channel that is served at its address."""

    made: Consortium
    channel: RoundChannel
    state: Path
    tokens: TokenDesk
    journal: Journal

    def open_stretch(self, rounds: list[Round]) -> None:
        first = rounds[0].descriptor.round
        self.channel.open_stretch(
            channel_pb2.StretchOpened(
                first_round=first,
                lists=key_lists(parties(self.made), rounds),
                token_keys=self.tokens.public_keys(first, len(rounds)),
            )
        )

    def open_round(self, round_: Round) -> None:
        opened = channel_pb2.RoundOpened(
            descriptor=round_.descriptor.to_wire(),
            query_bytes=len(QUERY),
            server_key=round_.server.public,
            mix_keys=round_.mix_keys,
        )
        with suppress(sqlite3.IntegrityError):  # asked again
            self.journal.opened(round_.descriptor)
        self.channel.journalled()
        self.channel.open_round(round_.descriptor, opened, QUERY)

    def close_round(
        self,
        round_: Round,
        *,
        void: bool = False,
        endings: Sequence[round_pb2.Ending] = (),
        batch: Listed | None = None,
        traced: tuple[int, ...] = (),
    ) -> None:
        key, digest = signer(self.made, "server"), round_.digest
        evidence = None
        if endings and batch is not None:
            evidence = channel_pb2.Complaint(
                descriptor=round_.descriptor.to_wire(), chain=batch.chain, endings=endings
            )
        closed = sign_closing(digest, endings, key, void=void)
        outcome = AttemptOutcome(digest, closed=closed, evidence=evidence, traced=traced)
        self.journal.closed(round_.descriptor.round, ClosedRound(0, None), outcome)
        self.channel.close_round(outcome)

    def commit(self, round_: Round, batch: Listed) -> Gate:
        gate = Gate(self.made.study, round_.descriptor, batch.committed.list)
        self.channel.commit(batch.committed, tuple(batch.chain), gate)
        return gate

    def complaints(self) -> list[Path]:
        return sorted((self.state / "complaints").glob("*"))


@asynccontextmanager
async def desk_open(made: Consortium, state: Path, lease: str = "lease") -> AsyncIterator[Desk]:
    study = made.study
    tokens = TokenDesk(study, state)
    journal, complaints = Journal(state / "journal.sqlite"), ComplaintBox(study, state)
    chain: Any = None  # no mix is asked here
    attempt_outcomes = AttemptOutcomes(study, signer(made, "server"), journal, chain, complaints)
    reader = FrameReader(study, tokens, complaints, attempt_outcomes)
    channel = RoundChannel(study, reader, sync=journal.sync)
    server = identity(made, study.server.name).server(study.server.channel_address)
    channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, server)
    await server.start()
    channel.open_lease(lease)
    try:
        yield Desk(made, channel, state, tokens, journal)
    finally:
        await server.stop(None)
        tokens.close()
        journal.close()


def asked(made: Consortium, number: int = 1) -> Round:
    return make_round(made.study, signer(made, "server"), number, query=QUERY)


def outside(made: Consortium, number: int = 1) -> str:
    """The one silo that a round does not ask."""
    (silo,) = {silo.name for silo in made.study.silos} - set(made.study.asked(number))
    return silo


def batch_of(
    made: Consortium, round_: Round
) -> tuple[Listed, list[bytes], list[tuple[bytes, ...]]]:
    """A batch with a report of every silo: what the mixes made of it, the onions, their trails."""
    onions = [
        round_.seal_with_token(round_.payload(report_of(made.study, value)))
        for value in range(len(round_.descriptor.silos))
    ]
    sealed = [each.sealed for each in onions]
    return listed(made, round_, sealed), sealed, [each.trail for each in onions]


def token_request(
    made: Consortium, silo: str = "silo-1", first: int = 1, rounds: int = 1
) -> channel_pb2.TokenRequest:
    blinded = [blind().blinded for _ in range(rounds)]
    return sign_token_request(first, blinded, made.study, signer(made, silo))


def confirmed(
    made: Consortium, round_: Round, batch: Listed, silo: str
) -> channel_pb2.CommittedAnswer:
    place, key = SILOS.index(silo), signer(made, silo)
    signed = sign_confirmation(round_.digest, batch.committed.list, place, key)
    return channel_pb2.CommittedAnswer(digest=round_.digest, confirmation=signed)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 nobody tells
        await asyncio.sleep(0.01)


def lossy(made: Consortium, round_: Round) -> tuple[Listed, bytes, tuple[bytes, ...]]:
    """A batch that the last silo's report is missing from: the batch, its onion, its trail."""
    _, onions, trails = batch_of(made, round_)
    return listed(made, round_, onions[:-1]), onions[-1], trails[-1]
