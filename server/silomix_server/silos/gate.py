"""The gate before a committed batch: no report opens until every silo in the list saw its own.

The mixes judge the same confirmations once more before they hand out their release keys; counting
them here first means that the mixes are asked once.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256

from silomix_core.study.study import Study
from silomix_proto import round_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import check_confirmation, digests

from silomix_server.errors import UnwelcomeFrame

_LOOK_S = 0.25  # between two looks at who has left


class Gate:
    """The confirmations of one committed list, from distinct silos that the round asked."""

    def __init__(self, study: Study, descriptor: Descriptor, committed: bytes) -> None:
        self.list_hash = sha256(committed).digest()
        self._needed = len(digests(committed))
        self._study, self._descriptor = study, descriptor
        self._confirmations: dict[str, round_pb2.Confirmation] = {}
        self._complained: set[str] = set()
        self._decided = asyncio.Event()

    def confirm(self, silo: str, confirmation: round_pb2.Confirmation) -> None:
        """Count the confirmation of `silo`; UnwelcomeFrame if it is not its own, of this list."""
        if self.is_open:
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
        self._decide()

    def complain(self, silo: str) -> None:
        """Wait for this silo no more: its report is not in the list, so it never confirms."""
        self._complained.add(silo)
        self._decide()

    @property
    def confirmations(self) -> list[round_pb2.Confirmation]:
        return list(self._confirmations.values())

    @property
    def unconfirmed(self) -> list[str]:
        """The silos of the round that did not confirm; some may have sent nothing."""
        return [silo for silo in self._descriptor.silos if silo not in self._confirmations]

    @property
    def is_open(self) -> bool:
        return len(self._confirmations) >= self._needed

    def is_hopeless(self, gone: frozenset[str] = frozenset()) -> bool:
        """Whether too few silos are left that could confirm, if those in `gone` do not."""
        waited_for = set(self._descriptor.silos) - self._complained - gone
        return len(waited_for | self._confirmations.keys()) < self._needed

    def _decide(self) -> None:
        if self.is_open or self.is_hopeless():
            self._decided.set()

    async def opens(self, timeout_s: float, gone: Callable[[], frozenset[str]] = frozenset) -> bool:
        """Return whether as many silos as the list has reports confirmed it in time.

        `gone` tells which silos nobody needs to wait for.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not self._decided.is_set() and (left := end - loop.time()) > 0:
            try:
                await asyncio.wait_for(self._decided.wait(), min(left, _LOOK_S))
            except TimeoutError:
                if self.is_hopeless(gone()):
                    break
        return self.is_open
