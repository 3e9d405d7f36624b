"""A batch of four silos, and how reports come into it."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from silomix_shuffler.batch import Batch, State

from support.descriptors import plain_descriptor

SILOS = ("silo-1", "silo-2", "silo-3", "silo-4")


def listing(*reports: str) -> bytes:
    """A list of these reports."""
    return b"".join(sha256(each.encode()).digest() for each in reports)


LIST, OTHER_LIST = listing("a", "b", "c"), listing("a", "b", "d")  # of batches of three
HASH, OTHER_HASH = sha256(LIST).digest(), sha256(OTHER_LIST).digest()


def opened_with(*silos: str, minimum: int = 2) -> Batch:
    """A batch that holds a valid report of each of these silos."""
    batch = Batch(plain_descriptor(minimum=minimum))
    for silo in silos:
        put(batch, silo)
    return batch


def put(batch: Batch, silo: str, *, valid: bool = True) -> None:
    assert batch.admit(silo, b"onion of " + silo.encode())
    slot = SILOS.index(silo)
    assert batch.add(slot, b"output of " + silo.encode() if valid else None, silo) is valid


def in_place(_: Any) -> None:
    """A shuffle that leaves the order alone."""


EVENTS: dict[str, Callable[[Batch], object]] = {
    "admit": lambda batch: batch.admit("silo-4", b"onion of silo-4"),
    "seal": lambda batch: batch.seal(in_place),
    "abort": lambda batch: batch.abort(),
    "forward": lambda batch: batch.forward(),
    "commit": lambda batch: batch.commit(LIST),
    "release": lambda batch: batch.release(HASH, frozenset(SILOS)),
    "void": lambda batch: batch.void(),
    "purge": lambda batch: batch.purge(),
}


def batch_in(state: State) -> Batch:
    """A batch of three silos that came to this state by the usual way."""
    batch = opened_with(*SILOS[:3])
    way = {
        State.OPEN: (),
        State.SEALED: ("seal",),
        State.FORWARDED: ("seal", "forward"),
        State.RELEASED: ("seal", "forward", "commit", "release"),
        State.VOIDED: ("seal", "forward", "commit", "void"),
        State.ABORTED: ("abort",),
        State.PURGED: ("purge",),
    }
    for event in way[state]:
        EVENTS[event](batch)
    assert batch.state is state
    return batch
