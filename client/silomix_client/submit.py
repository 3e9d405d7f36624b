"""Submitting a report to the first mix: always the same bytes, until its signed receipt is here."""

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import introduction_pb2, mix_pb2, mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.statements import check_receipt
from silomix_protocol.tls import SUBMIT_BYTES, Identity

from silomix_client.errors import NotTaken
from silomix_client.links import Links, Purpose
from silomix_client.network import Network
from silomix_client.reports import StoredReport
from silomix_client.retries import pause_s

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
        network: Network,
        links: Links,
    ) -> None:
        mix = study.mixes[0]
        self.name, self._identity = mix.name, identity
        self._study, self._sign_key, self._network = study, sign_key, network
        self._place = [each.name for each in study.silos].index(identity.name)
        self._channel = network.channel(identity, mix.name, mix.address)
        self._link = links.to(Purpose.REPORTS, mix.name, network.address(mix.name, mix.address))
        self._link.idle()
        self._stub = mix_pb2_grpc.MixStub(self._channel)
        self._call: SubmitCall | None = None

    def connect(self) -> "SubmitCall":
        """The stream; an open one tells the mix that this silo is there."""
        if self._call is None or self._call.done():
            introduced = self._introduction()
            if introduced is None:
                self._call = self._stub.Submit(wait_for_ready=True)
            else:  # which would be outdated by the time that the mix is there
                self._call = self._stub.Submit(metadata=introduced)
        return self._call

    def _introduction(self) -> tuple[tuple[str, bytes], ...] | None:
        introduced = self._network.introduction(
            self._identity, self.name, self._study, self._sign_key
        )
        return None if introduced is None else introduced.metadata

    async def is_there(self) -> bool:
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            try:
                await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
            except TimeoutError:
                self._link.waiting(await self._reason(), _LONGEST_PAUSE_S)
                return False
        self._link.connected()
        return True

    async def _reason(self) -> str:
        """Why the mix is not there, as far as gRPC can tell."""
        greeting = introduction_pb2.Greeting(study=self._study.identity)
        try:
            await self._stub.Greet(greeting, timeout=_REASON_S, metadata=self._introduction())
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        return "it took too long"

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def submit(self, report: StoredReport) -> mix_pb2.Receipt | None:
        """The mix's receipt, checked; None if it gave none in time.  NotTaken: it refused."""
        descriptor = report.descriptor
        digest = sha256(report.onion).digest()
        header = mix_pb2.SubmitHeader(
            digest=descriptor.digest,
            bytes=len(report.onion),
            signature=self._sign_key.sign("report", descriptor.digest, digest),
        )
        try:
            async with asyncio.timeout(descriptor.deadline_s):
                for attempt in range(1, _TRIES + 1):
                    try:
                        receipt = await self._submit_once(header, report.onion)
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
        """A receipt for just this report, in fields that say so too; what it adds is dropped."""
        descriptor = report.descriptor
        if receipt.status != mix_pb2.Receipt.ACCEPTED:
            logs.warning("report_refused", round=descriptor.round, reason=receipt.reason)
            raise NotTaken(receipt.reason)
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
    """The code, and the other side's sentence if there is one."""
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
    return f"{_name(error)}: {details}" if details else _name(error)
