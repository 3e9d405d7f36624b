"""The gate before a committed batch: no report opens until enough silos saw their own in it.

The mixes judge the same confirmations once more before they hand out their release keys; counting
them here first means that the mixes are asked once.
"""

import asyncio
from hashlib import sha256

from silomix_core.study import Study
from silomix_proto import round_pb2
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.statements import check_confirmation

from silomix_server.errors import UnwelcomeFrame


class Gate:
    """Confirmations of one committed list, from distinct silos that the round asked."""

    def __init__(self, study: Study, descriptor: Descriptor, committed: bytes) -> None:
        self.list_hash = sha256(committed).digest()
        self._study, self._descriptor = study, descriptor
        self._confirmations: dict[str, round_pb2.Confirmation] = {}
        self._enough = asyncio.Event()

    def confirm(self, silo: str, confirmation: round_pb2.Confirmation) -> None:
        """Count what `silo` sent; UnwelcomeFrame if it is not its confirmation of this list."""
        if self._enough.is_set():
            return
        try:
            signer = check_confirmation(
                confirmation, self._descriptor.digest, self.list_hash, self._study
            )
        except ForgedSignature as error:
            raise UnwelcomeFrame(str(error)) from error
        if signer != silo or silo not in self._descriptor.silos:
            raise UnwelcomeFrame("a confirmation of somebody else")
        self._confirmations[silo] = confirmation
        if len(self._confirmations) >= self._descriptor.minimum_batch:
            self._enough.set()

    @property
    def confirmations(self) -> list[round_pb2.Confirmation]:
        return list(self._confirmations.values())

    async def opens(self, timeout_s: float) -> bool:
        """Whether enough silos confirmed in time."""
        try:
            await asyncio.wait_for(self._enough.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
