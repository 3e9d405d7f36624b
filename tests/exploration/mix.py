"""A real mix as a machine: its `MixRounds`, `Batch`, `Sealing` and `Store`, and one round.

The code that runs in production takes every step; only the network, the disk's thread and the
bodies of reports are left out.  A state is the database twice, as it is and as it was when it was
last synced (what a power cut leaves), and what the process knows.  The vocabulary:

    ("open", D)                  the coordinator opens D
    ("admit", D, silo)           first mix: a silo's report; said: a receipt
    ("take", D, silos, fakes)    last mix: a batch of the mix before, fakes being reports of nobody
    ("seal", D)                  first mix: its deadline passed, or all are there
    ("forward", D)               the first byte leaves; the last mix also says which list it is
    ("commit", D, list)          the coordinator asks for its word on a list
    ("release", D, list, silos)  … for its release key, with these silos' confirmations of a list
    ("abandon", D), ("void", D)  … and for the end of D
    ("expire", D)                nobody asked about D for long: it is purged
    ("crash",)                   killed and started again
    ("power",)                   the same, and everything is gone that was not synced

Silos are bits of a number.  A list is (silos, fakes, doubled): whose reports, how many of nobody,
and whether the first one stands there twice.
"""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from exploration.machines import Event, Machine, Output
from exploration.questions import Name, Questions
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import durable
from silomix_protocol.rounds.statements import sign_confirmation
from silomix_shuffler.batch import Batch, State
from silomix_shuffler.config import Limits
from silomix_shuffler.errors import RefusedByMix
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round import served_studies
from silomix_shuffler.round.delivery import Delivery
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.rounds import MixRounds
from silomix_shuffler.storage import store as store_module
from silomix_shuffler.storage.store import KeptReport, Store

Listed = tuple[int, int, int]  # whose reports (bits), how many of nobody, one of them twice
PLACES = range(3)
_TABLES = ("rounds", "reports", "keys")
_PRESENCE = {"reason", "chain", "disclosure", "seal", "release", "descriptor", "signature"}
_MEMORY = (  # of a Round: everything that is not there for the event loop
    *("seal_key", "release_key", "chain", "sequence", "delivered", "reason"),
    *("voided", "disclosed"),
)


@dataclass(frozen=True, slots=True)
class View:
    """What a world needs to know of an honest mix's batch of D."""

    state: State
    silos: int  # whose reports are in it
    fakes: int


@dataclass(frozen=True, slots=True)
class MixState:
    """A mix: database, what a power cut would leave of it, memory."""

    now: bytes = field(repr=False)
    synced: bytes = field(repr=False)
    memory: dict[Name, dict[str, Any]] = field(repr=False)
    boot: str  # which start of the machine this is; of no matter, but that the next is another
    key: Hashable = field(repr=False)


class MixMachine(Machine[MixState]):
    """One honest mix of a chain, and what it knows of one round."""

    def __init__(self, questions: Questions, folder: Path, hop: int, names: list[Name]) -> None:
        super().__init__()
        self._questions, self.hop = questions, hop
        study = questions.study
        self._boot = _Boot()
        self._disk = _Disk(Store(folder / f"mix-{hop}"))
        with self._watched():
            for name in names:
                self._prepare(name)
        mix = study.mixes[hop]
        self._rounds = MixRounds(
            Identity.load(mix.name, questions.made.folder / mix.name),
            (study,),
            questions.mix_keys[hop],
            self._disk,  # type: ignore[arg-type]
            Metrics(),
            Limits(),
            1.0,
        )
        self._rounds.admission._give_up_later = lambda silo: None  # type: ignore[method-assign]  # see "seal"
        self._rounds.delivery = _NoDelivery(self._disk)  # type: ignore[assignment]
        self._rounds.sealing._delivery = self._rounds.delivery
        self._rounds.sealing.shuffle = lambda entries: entries.sort()  # type: ignore[attr-defined]
        self._loop = asyncio.new_event_loop()
        self._read: dict[bytes, Hashable] = {}
        self._marks: dict[int, tuple[Hashable, ...]] = {}
        self._views: dict[tuple[int, Name], View | None] = {}
        self._renamed: dict[tuple[int, tuple[int, ...]], int] = {}
        with self._watched():
            self._synced = self._image()
            self._loop.run_until_complete(self._crash())
            self.first = self.number(self._taken())

    def close(self) -> None:
        self._loop.close()
        self._disk.store._database.close()

    def _prepare(self, name: Name) -> None:
        """Keys as `Prepare` leaves them, but the same in every run."""
        secrets, database = self._questions.secrets(name), self._disk.store._database
        own, descriptor = secrets.mixes[self.hop], secrets.descriptor
        assert own.release is not None
        database.execute(
            "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?, 0)",
            (
                descriptor.study,
                descriptor.round,
                descriptor.attempt,
                own.seal.raw,
                own.release.raw,
            ),
        )

    # Steps ----------------------------------------------------------------------------------------

    def key(self, snapshot: MixState) -> Hashable:
        return snapshot.key

    def take(self, snapshot: MixState, event: Event) -> tuple[MixState, Output]:
        kind, *rest = event
        outside = asyncio._get_running_loop()  # of a world that is itself asynchronous
        asyncio._set_running_loop(None)
        try:
            with self._watched():
                said = self._loop.run_until_complete(self._taking(snapshot, str(kind), rest))
                return self._taken(), said
        finally:
            asyncio._set_running_loop(outside)

    async def _taking(self, snapshot: MixState, kind: str, rest: list[Any]) -> Output:
        self._put_back(snapshot)
        try:
            said: Output = await getattr(self, f"_{kind}")(*rest)
        except RefusedByMix:
            said = (("refused",),)
        await self._idle()
        return said

    async def _idle(self) -> None:
        """Until the tasks in the background are done: their notes are written, not synced."""
        while running := list(self._rounds._tasks._running):
            await asyncio.gather(*running, return_exceptions=True)
        for current in self._rounds.rounds:
            current.disarm()

    def _current(self, name: Name) -> Round:
        return self._rounds.rounds.named(self._questions.digest(name))

    async def _open(self, name: Name) -> Output:
        fresh = self._rounds.rounds.find(self._questions.digest(name)) is None
        await self._rounds.opener.open(self._signed(name))
        return (("opened", name),) if fresh else ()

    async def _admit(self, name: Name, silo: int) -> Output:
        """As `Intake` does, without the body."""
        current = self._current(name)
        batch, who = current.batch, self._questions.study.silos[silo].name
        onion = sha256(f"onion {silo} {name}".encode()).digest()
        if batch.admit(who, onion):
            kept = KeptReport(silo, who, onion, gated(silo, name))
            self._disk.store.add([(batch.descriptor.digest, kept)])
            batch.add(silo, gated(silo, name), who)
            return (("receipt", name, silo),)
        return ()  # the same receipt once more

    async def _seal(self, name: Name) -> Output:
        current = self._current(name)
        current.batch.close()
        await self._rounds.sealing.seal(current)
        return ()

    async def _take(self, name: Name, silos: int, fakes: int) -> Output:
        """As `PreviousMix._take` does, after the layers were taken off."""
        current = self._current(name)
        if current.batch.state is not State.OPEN:
            return (("refused",),)
        outputs = _digests(joined((silos, fakes, 0), name))
        for slot, output in enumerate(outputs):
            current.batch.add(slot, output)
        before = round_pb2.HopStatement(hop=0, forwarded=len(outputs), output=b"onions")
        await self._rounds.sealing.seal(current, (before,))
        return ()

    async def _forward(self, name: Name) -> Output:
        """A first mix hands on, a last one is asked for its batch."""
        current = self._current(name)
        await self._rounds.delivery.leaves(current)
        if current.batch.state not in (State.FORWARDED, State.RELEASED):
            return (("refused",),)
        silos, fakes = _content(_digests(current.chain[-1].output), name)
        said: Output = (("forwarded", name, silos, fakes),)
        if current.last:
            assert self._rounds.release.own_commitment(current)
            said += (("listed", name, _known_list(current.batch.committed, name)),)
        return said

    async def _commit(self, name: Name, listed: Listed) -> Output:
        digest, joined_list = self._questions.digest(name), joined(listed, name)
        await self._rounds.release.commit(mix_pb2.CommitRequest(digest=digest, list=joined_list))
        return (("listed", name, listed),)

    async def _release(self, name: Name, listed: Listed, silos: int) -> Output:
        digest, joined_list = self._questions.secrets(name).digest, joined(listed, name)
        request = mix_pb2.ReleaseRequest(
            digest=digest,
            list=sha256(joined_list).digest(),
            confirmations=[_confirmed(self._questions, name, listed, each) for each in bits(silos)],
        )
        await self._rounds.release.release(request)
        return (("key", name),)

    async def _abandon(self, name: Name) -> Output:
        await self._rounds.failed.abandon(*await self._rounds.opener.opened(self._signed(name)))
        return (("abandoned", name),)

    async def _void(self, name: Name) -> Output:
        ending = await self._rounds.failed.void(
            *await self._rounds.opener.opened(self._signed(name))
        )
        if ending.HasField("abandoned"):
            return (("abandoned", name),)
        return (("voided", name, bool(ending.disclosure), ending.voided.uncertain),)

    async def _expire(self, name: Name) -> Output:
        """As `Retention._expire` does with a round that is old enough, up to its last sync."""
        current = self._current(name)
        if current.batch.state is State.OPEN:
            return (("refused",),)
        self._rounds.rounds.forget(current)
        await self._rounds.retention.purge()
        return ()

    async def _crash(self) -> Output:
        self._synced = self._image()  # opening a database is a transaction, too
        self._rounds.rounds._rounds.clear()
        await self._rounds.restore()
        self._rounds.retention.stop()
        return ()

    async def _power(self) -> Output:
        self._load(self._synced)
        self._boot.now = "another" if self._boot.now == "one" else "one"
        return await self._crash()

    def _signed(self, name: Name) -> round_pb2.SignedDescriptor:
        return self._questions.secrets(name).descriptor.to_wire()

    # State in and out -----------------------------------------------------------------------------

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Whatever is committed in a transaction is synced, with all before it; a note is not."""
        real = store_module.transaction, Store.tidy, store_module._BOOT_ID, served_studies.Spool

        @contextmanager
        def transaction(database: Any) -> Iterator[None]:
            before = self._image()
            with durable.transaction(database):
                yield
            if (after := self._image()) != before:  # a commit of nothing waits for nothing
                self._synced = after

        def tidy(store: Store) -> None:
            self._synced = self._image()

        store_module.transaction, Store.tidy = transaction, tidy  # type: ignore[method-assign]
        store_module._BOOT_ID = self._boot  # type: ignore[assignment]
        served_studies.Spool = _NoSpool  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            store_module.transaction, Store.tidy, store_module._BOOT_ID, served_studies.Spool = real  # type: ignore[method-assign,misc]

    def _image(self) -> bytes:
        image = bytearray(self._disk.store._database.serialize())
        image[18:20] = b"\1\1"  # not in write-ahead mode: a database in memory has no such file
        return bytes(image)

    def _load(self, image: bytes) -> None:
        self._disk.store._database.deserialize(image)

    def _put_back(self, snapshot: MixState) -> None:
        self._load(snapshot.now)
        self._synced, self._boot.now = snapshot.synced, snapshot.boot
        rounds = self._rounds.rounds
        rounds._rounds, rounds._unpurged = {}, {}
        for name, memory in snapshot.memory.items():
            descriptor = self._questions.secrets(name).descriptor
            batch = Batch(descriptor)
            for each, value in memory["batch"].items():
                setattr(batch, each, dict(value) if isinstance(value, dict) else value)
            current = self._rounds.studies.round(self._questions.study, batch)
            for each in _MEMORY:
                setattr(current, each, memory[each])
            if batch.state is not State.OPEN:
                current.closed.set()
            rounds.add(current)

    def _taken(self) -> MixState:
        memory = {
            self._questions.name(current.batch.descriptor.digest): {
                "batch": _fields(current.batch),
                **{each: getattr(current, each) for each in _MEMORY},
            }
            for current in self._rounds.rounds
        }
        now = self._image()
        rows = self._rows(now)
        synced_rows = rows if self._synced == now else self._rows(self._synced)
        key = rows, synced_rows, tuple((name, _known(memory[name])) for name in sorted(memory))
        return MixState(now, self._synced, memory, self._boot.now, key)

    def _rows(self, image: bytes) -> Hashable:
        """What is on disk; of words for people, and of keys, only whether there are any.

        Of a round that was aborted neither reports nor order: every step refuses it by its state.
        """
        if image not in self._read:
            self._load(image)
            tables = {each: self._table(each) for each in _TABLES}
            aborted = [
                each["digest"] for each in tables["rounds"] if each["state"] == State.ABORTED.value
            ]
            for each in tables["rounds"]:
                if each["digest"] in aborted:
                    each["sequence"] = None
            tables["reports"] = [
                each for each in tables["reports"] if each["digest"] not in aborted
            ]
            self._read[image] = tuple(
                tuple(sorted(repr(list(row.values())) for row in rows)) for rows in tables.values()
            )
        return self._read[image]

    def _table(self, name: str) -> list[dict[str, Any]]:
        found = self._disk.store._database.execute(f"SELECT * FROM {name}")  # noqa: S608
        columns = [each[0] for each in found.description]
        return [
            {
                column: value is None if column in _PRESENCE else value
                for column, value in zip(columns, row, strict=True)
            }
            for row in found
        ]

    # Looking at it --------------------------------------------------------------------------------

    def view(self, number: int, name: Name) -> View | None:
        """The batch of D; None before it was opened and after it is forgotten."""
        if (number, name) not in self._views:
            memory = self.snapshot(number).memory.get(name)
            self._views[number, name] = None if memory is None else _view(memory, name)
        return self._views[number, name]

    def marks(self, number: int) -> tuple[Hashable, ...]:
        """In what of this state each silo is: enough to tell silos apart that differ in it."""
        if number not in self._marks:
            who = [silo.name for silo in self._questions.study.silos]
            self._marks[number] = tuple(
                tuple(
                    (
                        name,
                        who[place] in memory["batch"]["admitted"],
                        gated(place, name) in memory["batch"]["_slots"],
                        who[place] in memory["batch"]["senders"],
                        bool(_view(memory, name).silos >> place & 1),
                    )
                    for name, memory in sorted(self.snapshot(number).memory.items())
                )
                for place in PLACES
            )
        return self._marks[number]

    def renamed(self, number: int, places: tuple[int, ...]) -> int:
        """The state in which silo `places[i]` did what silo i did: all steps taken again so."""
        if (number, places) not in self._renamed:
            if number == self.first:
                return number
            before, event = self.origin(number)
            after, _ = self.step(self.renamed(before, places), _rename(event, places))
            self._renamed[number, places] = after
        return self._renamed[number, places]


def _view(memory: dict[str, Any], name: Name) -> View:
    """What is in the batch: as the mix stated it, once it did."""
    batch, chain = memory["batch"], memory["chain"]
    inside = _digests(chain[-1].output) if chain else list(batch["_slots"])
    return View(batch["state"], *_content(inside, name))


def _content(inside: list[bytes], name: Name) -> tuple[int, int]:
    own = sum(1 << each for each in PLACES if gated(each, name) in inside)
    return own, len(inside) - own.bit_count()


def permuted(silos: int, places: tuple[int, ...]) -> int:
    return sum(1 << places[each] for each in bits(silos))


@cache
def bits(silos: int) -> tuple[int, ...]:
    return tuple(each for each in PLACES if silos >> each & 1)


def _rename(event: Event, places: tuple[int, ...]) -> Event:
    match event:
        case ("admit", name, silo):
            return "admit", name, places[silo]
        case ("take", name, silos, fakes):
            return "take", name, permuted(silos, places), fakes
        case ("commit", name, (silos, *rest)):
            return "commit", name, (permuted(silos, places), *rest)
        case ("release", name, (silos, *rest), confirmed):
            listed = permuted(silos, places), *rest
            return "release", name, listed, permuted(confirmed, places)
    return event


@cache
def gated(silo: int, name: Name) -> bytes:
    """SHA-256 of a silo's gated report of D, in this world."""
    return sha256(f"gated {silo} {name}".encode()).digest()


@cache
def joined(listed: Listed, name: Name) -> bytes:
    """The list as it is signed."""
    silos, fakes, doubled = listed
    own = [gated(each, name) for each in bits(silos)]
    others = [sha256(f"nobody {each} {name}".encode()).digest() for each in range(fakes)]
    listing = sorted([*own, *others])
    return b"".join([*listing, *listing[:doubled]])


@cache
def _lists_by_hash(name: Name) -> dict[bytes, Listed]:
    every = ((silos, fakes, 0) for silos in range(8) for fakes in range(4))
    return {sha256(joined(each, name)).digest(): each for each in every}


def _known_list(list_hash: bytes, name: Name) -> Listed:
    return _lists_by_hash(name)[list_hash]


def listed_of(listed: bytes, name: Name) -> Listed:
    """Which list this is."""
    return _known_list(sha256(listed).digest(), name)


_CONFIRMATIONS: dict[Hashable, round_pb2.Confirmation] = {}


def _confirmed(
    questions: Questions, name: Name, listed: Listed, silo: int
) -> round_pb2.Confirmation:
    digest, key = questions.secrets(name).digest, questions.silo_keys[silo]
    place = digest, listed, silo
    if place not in _CONFIRMATIONS:
        _CONFIRMATIONS[place] = sign_confirmation(digest, joined(listed, name), silo, key)
    return _CONFIRMATIONS[place]


def _digests(listed: bytes) -> list[bytes]:
    return [listed[at : at + 32] for at in range(0, len(listed), 32)]


def _fields(batch: Batch) -> dict[str, Any]:
    return {
        each.name: _copied(getattr(batch, each.name))
        for each in fields(batch)
        if each.name != "descriptor"
    }


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _known(memory: dict[str, Any]) -> Hashable:
    """What a process knows of a round; what it had of one that was aborted nobody reads again."""
    if memory["batch"]["state"] is State.ABORTED:
        return bool(memory["chain"]), memory["delivered"], bool(memory["reason"])
    return _plain(memory)


def _plain(value: Any) -> Hashable:
    """The same for the same content; of keys and of reasons, only whether they are there."""
    if isinstance(value, dict):
        return tuple(
            sorted(
                (str(name), _plain(bool(each) if name == "reason" else each))
                for name, each in value.items()
            )
        )
    if isinstance(value, frozenset):
        return tuple(sorted(value))
    if isinstance(value, tuple | list):
        return tuple(_plain(each) for each in value)
    if isinstance(value, str | bytes | int | bool) or value is None:
        return repr(value)
    if isinstance(value, State):
        return value.value
    if isinstance(value, round_pb2.HopStatement):
        return value.output, bool(value.aborted)
    return "there"


@dataclass(slots=True)
class _Boot:
    """What the system says about when it was started."""

    now: str = "one"

    def read_text(self) -> str:
        return self.now


class _Disk:
    """`Disk` without its thread; bodies are not kept."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def do(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)


@dataclass(slots=True)
class _NoSpool:
    path: Path
    length: int

    def delete(self) -> None: ...

    def close(self) -> None: ...

    def rename(self, path: Path) -> None:
        self.path = path


class _NoDelivery(Delivery):
    """Nothing leaves by itself: the world says when."""

    def __init__(self, disk: _Disk) -> None:
        self._disk = disk  # type: ignore[assignment]

    def ready(self, current: Round) -> bool:
        return False

    async def deliver(self, current: Round) -> None:
        return
