"""Submitting a report to the first mix: always the same bytes, until its signed receipt is here."""

import asyncio
import random
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.statements import check_receipt
from silomix_protocol.tls import SUBMIT_BYTES, Identity

from silomix_client.reports import StoredReport

if TYPE_CHECKING:
    SubmitCall = grpc.aio.StreamStreamCall[mix_pb2.SubmitFrame, mix_pb2.Receipt]

_CONNECT_S = 3.0
_TRIES = 4
_FINAL = ("FAILED_PRECONDITION", "PERMISSION_DENIED", "INVALID_ARGUMENT")  # no use in trying again


class FirstMix:
    """A silo's connection to the first mix, with one long-lived stream for all its reports."""

    def __init__(self, study: Study, identity: Identity, sign_key: SigningKey) -> None:
        mix = study.mixes[0]
        self.name = mix.name
        self._study, self._sign_key = study, sign_key
        self._place = [each.name for each in study.silos].index(identity.name)
        self._channel = identity.channel(mix.name, mix.address)
        self._stub = mix_pb2_grpc.MixStub(self._channel)
        self._call: SubmitCall | None = None

    def connect(self) -> "SubmitCall":
        """The stream; an open one tells the mix that this silo is there."""
        if self._call is None or self._call.done():
            self._call = self._stub.Submit(wait_for_ready=True)
        return self._call

    async def is_there(self) -> bool:
        if self._channel.get_state() is grpc.ChannelConnectivity.READY:
            return True
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def submit(self, report: StoredReport) -> mix_pb2.Receipt | None:
        """The mix's receipt, checked; None if it refused the report or gave none in time."""
        descriptor = report.descriptor
        digest = sha256(report.onion).digest()
        header = mix_pb2.SubmitHeader(
            digest=descriptor.digest,
            bytes=len(report.onion),
            signature=self._sign_key.sign("report", descriptor.digest, digest),
        )
        try:
            async with asyncio.timeout(descriptor.deadline_s):
                for attempt in range(_TRIES):
                    try:
                        receipt = await self._submit_once(header, report.onion)
                        return self._checked(receipt, report, digest)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                        self._call = None
                        logs.warning("submit_failed", round=descriptor.round, reason=_name(error))
                        if _name(error) in _FINAL:
                            return None
                    await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311
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
    ) -> mix_pb2.Receipt | None:
        """A receipt for just this report, in fields that say so too; what it adds is dropped."""
        descriptor = report.descriptor
        if receipt.status != mix_pb2.Receipt.ACCEPTED:
            logs.warning("report_refused", round=descriptor.round, reason=receipt.reason)
            return None
        check_receipt(receipt, descriptor.digest, self._place, digest, self._study)
        return mix_pb2.Receipt(
            digest=descriptor.digest,
            report=digest,
            status=mix_pb2.Receipt.ACCEPTED,
            signature=receipt.signature,
        )


def _name(error: BaseException) -> str:
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
