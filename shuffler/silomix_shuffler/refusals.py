"""What a refusal is to the caller: gRPC's code, a sentence, and the reason it is counted under."""

import sqlite3

import grpc
from silomix_protocol.connections.tls import UnknownPeer
from silomix_protocol.connections.version import WrongVersion
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.batches import BrokenBatch
from silomix_protocol.rounds.descriptor import RefusedDescriptor
from silomix_protocol.rounds.statements import BrokenChain

from silomix_shuffler.errors import (
    BehindLedger,
    GateClosed,
    NoRoom,
    RefusedByMix,
    ReplayedReport,
    SecondBatch,
    Stopping,
    TooMuch,
    UnfitList,
    WrongLength,
    WrongRound,
    WrongSender,
)

# The first match holds.
_KINDS: dict[type[Exception], tuple[grpc.StatusCode, str]] = {
    WrongLength: (grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
    WrongSender: (grpc.StatusCode.PERMISSION_DENIED, "wrong_sender"),
    UnknownPeer: (grpc.StatusCode.PERMISSION_DENIED, "unknown_peer"),
    WrongVersion: (grpc.StatusCode.FAILED_PRECONDITION, "wrong_version"),
    ReplayedReport: (grpc.StatusCode.FAILED_PRECONDITION, "replayed_report"),
    BehindLedger: (grpc.StatusCode.FAILED_PRECONDITION, "behind_ledger"),
    SecondBatch: (grpc.StatusCode.FAILED_PRECONDITION, "second_batch"),
    Stopping: (grpc.StatusCode.UNAVAILABLE, "stopping"),
    GateClosed: (grpc.StatusCode.FAILED_PRECONDITION, "gate_closed"),
    UnfitList: (grpc.StatusCode.FAILED_PRECONDITION, "unfit_list"),
    NoRoom: (grpc.StatusCode.RESOURCE_EXHAUSTED, "no_room"),
    TooMuch: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_much"),
    WrongRound: (grpc.StatusCode.FAILED_PRECONDITION, "wrong_round"),
    RefusedDescriptor: (grpc.StatusCode.FAILED_PRECONDITION, "refused_descriptor"),
    ForgedSignature: (grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
    BrokenBatch: (grpc.StatusCode.INVALID_ARGUMENT, "broken_batch"),
    BrokenChain: (grpc.StatusCode.INVALID_ARGUMENT, "broken_chain"),
    TimeoutError: (grpc.StatusCode.DEADLINE_EXCEEDED, "too_slow"),
    OSError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "no_room"),  # comes after its subclasses above
    sqlite3.Error: (grpc.StatusCode.RESOURCE_EXHAUSTED, "no_room"),
}
_UNEXPECTED = grpc.StatusCode.INTERNAL, "internal"


def kind_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The code for the caller, and the reason in the metrics."""
    kinds = (found for kind, found in _KINDS.items() if isinstance(error, kind))
    return next(kinds, _UNEXPECTED)


def sentence(error: Exception, code: grpc.StatusCode) -> str:
    """The sentence that the caller reads: nothing about our files or our code."""
    if code is grpc.StatusCode.INTERNAL:
        return "internal error"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not isinstance(error, RefusedByMix):
        return "this mix cannot use its disk"
    return str(error)
