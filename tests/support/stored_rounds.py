"""Rounds on their way through a mix's store."""

from contextlib import closing
from pathlib import Path

from silomix_core.study.study import StudyId
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.storage.store import KeptReport, SavedRound, Store

STUDY, OTHER = StudyId(b"s" * 32), StudyId(b"t" * 32)


def reopened(folder: Path) -> "closing[Store]":
    """What another process sees now: no step waits for `close`."""
    return closing(Store(folder))


def saved(store: Store) -> SavedRound:
    (only,) = store.unfinished()
    return only


def kept(slot: int) -> KeptReport:
    return KeptReport(slot, f"silo-{slot + 1}", b"onion %d" % slot, b"output %d" % slot)


def prepared(store: Store, number: int = 1, attempt: int = 1) -> tuple[SealKey, SealKey]:
    ((seal, release),) = store.prepare(STUDY, attempt, range(number, number + 1), gate=True)
    assert release is not None
    return seal, release


def opened(store: Store, descriptor: Descriptor) -> None:
    """Opened with keys of its own, made now if there are none."""
    seal_key, _ = store.keys(descriptor)
    if seal_key is None:
        number = descriptor.round
        try:
            ((seal_key, _),) = store.prepare(
                descriptor.study, descriptor.attempt, range(number, number + 1), gate=True
            )
        except WrongRound:
            seal_key = SealKey.generate()  # whatever it is now: the round was opened before
    store.open(descriptor, seal_key)


def sealed(
    store: Store, descriptor: Descriptor, state: State = State.SEALED, *, gate: bool = True
) -> None:
    """Opened, filled with two reports and sealed."""
    opened(store, descriptor)
    store.add([(descriptor.digest, kept(0))])
    chain = [round_pb2.HopStatement(hop=0, received=2, forwarded=2, output=b"list")]
    store.add([(descriptor.digest, kept(1))])
    store.seal(descriptor, (1, 0), chain, state, gate=gate)
