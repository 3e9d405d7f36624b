"""Submitting a report to the first mix: always the same bytes, until its signed receipt is here."""

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from silomix_core.study.study import Study
from silomix_proto import introduction_pb2, mix_pb2, mix_pb2_grpc
from silomix_protocol.connections.tls import SUBMIT_BYTES, Identity
from silomix_protocol.host import logs
from silomix_protocol.host.backoff import pause_s
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.statements import check_receipt

from silomix_client.errors import NotTaken
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.witnessed_height import Witness
from silomix_client.network.connection_status import Links, Purpose
from silomix_client.network.outbound import OutboundNetwork

if TYPE_CHECKING:
    SubmitCall = grpc.aio.StreamStreamCall[mix_pb2.SubmitFrame, mix_pb2.Receipt]

_CONNECT_S = 3.0
_REASON_S = 1.0  # to hear why a mix is not there
_TRIES = 4
_LONGEST_PAUSE_S = 2.0  # also gRPC's own, between two tries to connect
_FINAL = ("FAILED_PRECONDITION", "PERMISSION_DENIED", "INVALID_ARGUMENT")  # no use in trying again


class FirstMix:
    """A silo's connection to the first mix, with one long-lived stream for all its reports."""

    def __init__(
        self,
        study: Study,
        identity: Identity,
        sign_key: SigningKey,
        network: OutboundNetwork,
        links: Links,
        witness: Witness,
    ) -> None:
        mix = study.mixes[0]
        self._witness = witness
        self._greeted = False  # since the stream was opened
        self.name, self._identity = mix.name, identity
        self._study, self._sign_key, self._network = study, sign_key, network
        self._place = [each.name for each in study.silos].index(identity.name)
        self._channel = network.channel(identity, mix.name, mix.address)
        self._link = links.to(Purpose.REPORTS, mix.name, network.address(mix.name, mix.address))
        self._link.idle()
        self._stub = mix_pb2_grpc.MixStub(self._channel)
        self._call: SubmitCall | None = None

    def begin(self) -> None:
        """Open the stream: it tells the mix that this silo is there and listens for rounds."""
        self._greeted = False
        self.connect()

    def end(self) -> None:
        """Close the stream: the silo hears of no more rounds, and no mix waits for its report."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def connect(self) -> "SubmitCall":
        """Return the stream, opened again if it broke."""
        if self._call is None or self._call.done():
            self._greeted = False
            introduced = self._introduction()
            if introduced is None:
                self._call = self._stub.Submit(wait_for_ready=True)
            else:  # does not wait: it would be outdated when the mix is there
                self._call = self._stub.Submit(metadata=introduced)
        return self._call

    def _introduction(self) -> tuple[tuple[str, bytes], ...] | None:
        introduced = self._network.introduction(
            self._identity, self.name, self._study, self._sign_key
        )
        return None if introduced is None else introduced.metadata

    async def is_there(self) -> bool:
        """Whether the mix can be reached, and has shown what it knows of this silo's ledger."""
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            try:
                await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
            except TimeoutError:
                silence = await self._greet(_REASON_S) or "it took too long"
                self._link.waiting(silence, _LONGEST_PAUSE_S)
                return False
        self.connect()
        if not self._greeted and (silence := await self._greet(_CONNECT_S)):
            self._link.waiting(silence, _LONGEST_PAUSE_S)
            return False
        self._link.connected()
        return True

    async def _greet(self, timeout_s: float) -> str:
        """Hear which height of our ledger the mix has; returns gRPC's reason if it is silent."""
        greeting = introduction_pb2.Greeting(study=self._study.identity)
        try:
            welcome: introduction_pb2.Welcome = await self._stub.Greet(
                greeting, timeout=timeout_s, metadata=self._introduction()
            )
        except grpc.aio.AioRpcError as error:
            return logs.foreign(error.details() or error.code().name)
        self._greeted = True
        if welcome.HasField("height"):
            self._witness.hear(welcome.height, self.name)
        return ""

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def submit(self, report: StoredReport) -> mix_pb2.Receipt | None:
        """Submit the report and return the mix's receipt, checked; None if none came in time.

        Raises NotTaken if the mix refused the report.  The ledger may have grown on the way, by a
        round of another study: then the report is submitted again with the new height.
        """
        descriptor = report.descriptor
        digest = sha256(report.onion).digest()
        try:
            async with asyncio.timeout(descriptor.deadline_s):
                for attempt in range(1, _TRIES + 1):
                    try:
                        receipt = await self._submit_once(
                            self._header(report, digest), report.onion
                        )
                        if attempt == _TRIES or not self._is_outdated(receipt):
                            return self._checked(receipt, report, digest)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                        self._call = None
                        said = _said(error)
                        logs.warning("submit_failed", round=descriptor.round, reason=said)
                        if _name(error) in _FINAL:
                            self._link.refused(said)
                            raise NotTaken(said) from error
                    await asyncio.sleep(pause_s(attempt, _LONGEST_PAUSE_S))
        except TimeoutError:
            self._call = None
            logs.warning("submit_failed", round=descriptor.round, reason="no receipt in time")
        return None

    def _header(self, report: StoredReport, digest: bytes) -> mix_pb2.SubmitHeader:
        return mix_pb2.SubmitHeader(
            digest=report.descriptor.digest,
            bytes=len(report.onion),
            signature=self._sign_key.sign("report", report.descriptor.digest, digest),
            height=self._witness.height(),
        )

    def _is_outdated(self, receipt: mix_pb2.Receipt) -> bool:
        """Whether the mix has a greater height of this very ledger; LedgerBehind if of another."""
        if not receipt.HasField("height"):
            return False
        self._witness.hear(receipt.height, self.name)
        self._witness.check()
        return True

    async def _submit_once(self, header: mix_pb2.SubmitHeader, onion: bytes) -> mix_pb2.Receipt:
        call = self.connect()
        await call.write(mix_pb2.SubmitFrame(header=header, chunk=onion[:SUBMIT_BYTES]))
        for start in range(SUBMIT_BYTES, len(onion), SUBMIT_BYTES):
            await call.write(mix_pb2.SubmitFrame(chunk=onion[start : start + SUBMIT_BYTES]))
        receipt = await call.read()
        if receipt is grpc.aio.EOF:
            raise asyncio.InvalidStateError("the mix closed the stream")
        return cast(mix_pb2.Receipt, receipt)

    def _checked(
        self, receipt: mix_pb2.Receipt, report: StoredReport, digest: bytes
    ) -> mix_pb2.Receipt:
        """The receipt, checked to be for just this report; fields that it adds are dropped."""
        descriptor = report.descriptor
        if receipt.status != mix_pb2.Receipt.ACCEPTED:
            reason = logs.foreign(receipt.reason)
            logs.warning("report_refused", round=descriptor.round, reason=reason)
            raise NotTaken(reason)
        check_receipt(receipt, descriptor.digest, self._place, digest, self._study)
        return mix_pb2.Receipt(
            digest=descriptor.digest,
            report=digest,
            status=mix_pb2.Receipt.ACCEPTED,
            signature=receipt.signature,
        )


def _name(error: BaseException) -> str:
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__


def _said(error: BaseException) -> str:
    """The error's code, and the other side's sentence if there is one."""
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
    return f"{_name(error)}: {logs.foreign(details)}" if details else _name(error)
