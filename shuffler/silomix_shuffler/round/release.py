"""The end of a round that goes well: one list signed, and the release key against confirmations."""

import sqlite3
from contextlib import suppress

from silomix_proto import mix_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.statements import check_confirmation, sign_commitment

from silomix_shuffler.batch import State
from silomix_shuffler.errors import TooMuch, UnfitList, WrongRound
from silomix_shuffler.round.failed_rounds import FailedRounds, written
from silomix_shuffler.round.open_rounds import OpenRounds, purging
from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.writing_thread import WritingThread


class Release:
    def __init__(
        self, rounds: OpenRounds, failed: FailedRounds, disk: WritingThread, sign_key: SigningKey
    ) -> None:
        self._rounds, self._failed = rounds, failed
        self._disk, self._sign_key = disk, sign_key

    async def commit(self, request: mix_pb2.CommitRequest) -> bytes:
        """Sign the list that the server commits to, one list only.

        Without this signature a server could show each silo another list and see who finds itself
        in it.  The last mix stands by what it handed over.  A list that does not fit makes the
        round void.
        """
        current = self._rounds.named(request.digest)
        await written(current)
        before, digest = current.batch.committed, current.batch.descriptor.digest
        try:
            current.batch.commit(request.list)
        except UnfitList as refusal:
            await self._failed.destroy(current, str(refusal))
            raise
        listed = current.batch.committed
        try:
            await self._disk.do(self._disk.store.committed, digest, listed)
        except (OSError, sqlite3.Error):
            current.batch.take_back_word(before)
            raise
        return sign_commitment(digest, listed, self._sign_key)

    def own_commitment(self, current: Round) -> bytes:
        """The last mix's signature on the list that it hands over; empty if it hands over none."""
        if current.batch.state is State.ABORTED:
            return b""
        digest, listed = current.batch.descriptor.digest, current.batch.committed
        return sign_commitment(digest, listed, self._sign_key)

    async def release(self, request: mix_pb2.ReleaseRequest) -> bytes:
        """Give the release key of a round away against enough silos' confirmations of one list."""
        current = self._rounds.named(request.digest)
        if not current.study.batching.gate:
            raise WrongRound("this study has no gate")
        if len(request.confirmations) > len(current.study.silos):
            raise TooMuch("more confirmations than silos")
        confirmed = _confirmed(current, request)
        async with current.voiding:
            before = current.batch.state
            current.batch.release(request.list, confirmed)
            if before is not State.RELEASED:
                await self._note(current)
                number = current.batch.descriptor.round
                logs.event("gate_opened", round=number, confirmed=len(confirmed))
        if current.release_key is None:
            raise WrongRound("the release key of this round is gone")
        return current.release_key.raw

    async def _note(self, current: Round) -> None:
        """Note the key as given away before it is, and forget what nobody asks about again.

        Rounds that are over are purged with it.
        """
        descriptor, over = current.batch.descriptor, self._rounds.forget_old(current.study)
        released = self._disk.store.released
        try:
            await self._disk.do(released, descriptor, last=current.last, over=purging(over))
        except (OSError, sqlite3.Error):
            current.batch.take_back_key()
            raise
        self._rounds.purged(over)
        current.release()


def _confirmed(current: Round, request: mix_pb2.ReleaseRequest) -> frozenset[str]:
    """The silos whose signatures on the list hold."""
    digest, confirmed = current.batch.descriptor.digest, set()
    for each in request.confirmations:
        with suppress(ForgedSignature):
            confirmed.add(check_confirmation(each, digest, request.list, current.study))
    return frozenset(confirmed)
