"""`silomix silo run`: a silo's process, from its folder to leases, until it is told to stop."""

import asyncio
import fcntl
import os
import signal
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256

import uvloop
from silomix_core.noise import prepare_tables
from silomix_core.study import StudyId
from silomix_protocol import logs
from silomix_protocol.keys import SigningKey, load_node_key
from silomix_protocol.tls import Identity

from silomix_client.answer import StudyDesk
from silomix_client.config import SiloConfig
from silomix_client.entries import Approval
from silomix_client.errors import NotApproved, SiloError
from silomix_client.fleet import (
    FleetMessage,
    FleetNode,
    FleetRefused,
    FleetUnreachable,
    join_fleet,
)
from silomix_client.lease import Lease, LeaseHolder
from silomix_client.ledger import Ledger
from silomix_client.ledger_check import verify
from silomix_client.snapshot import thaw

_POLL_S = (0.2, 2.0)  # first and longest pause between two looks for a lease
_CONNECT_PAUSE_S = (0.2, 10.0)
_REFUSALS_BEFORE_STOP = 6
_LONGEST_LEASE = 64  # characters of its identity, which goes to the log


def run(config: SiloConfig) -> None:
    """Serve approved studies; raises SiloError when this silo can do nothing."""
    logs.configure(config.name)
    uvloop.run(_Process(config).run())


def _lock(config: SiloConfig) -> int:
    """Held as long as the process lives: one silo, one process."""
    descriptor = os.open(config.state, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise SiloError(f"{config.name} is already running from {config.folder}") from busy
    return descriptor


class _Process:
    """What lives as long as the process: ledger, keys, one lease holder per study."""

    def __init__(self, config: SiloConfig) -> None:
        self._config = config
        self._lock = _lock(config)
        self._ledger = Ledger(config.state, config.policy)
        verify(self._ledger)  # a ledger that was tampered with answers nothing
        self._ledger.sweep()
        self._identity = Identity.load(config.name, config.folder)
        self._sign_key = SigningKey.load(config.folder / "sign.key")
        self._node_key = load_node_key(config.folder / "node.key")
        self._holders: dict[StudyId, LeaseHolder] = {}
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        approvals = [entry for entry in self._ledger.approvals() if not entry.closed]
        if not approvals:
            config = self._config.folder / "silo.toml"
            raise NotApproved(
                f"no study is approved; run: silomix silo approve {config} STUDY.toml"
            )
        addresses = {entry.study.server.fleet_address for entry in approvals}
        for entry in approvals:
            self._prepare(entry)
        try:
            ended = await asyncio.gather(
                *(self._serve(address) for address in sorted(addresses)), return_exceptions=True
            )
        finally:
            for holder in self._holders.values():
                await holder.close()
            self._ledger.close()
        for outcome in ended:  # one server's refusal did not end the service of the others
            if outcome is not None:
                raise outcome
        logs.event("silo_stopped")

    def _prepare(self, approval: Approval) -> None:
        """Have everything ready before the first query; one unusable study spoils no other."""
        try:
            self._holders[approval.study.identity] = self._holder(approval)
        except SiloError as error:
            logs.warning("study_unusable", study=approval.study.short_id, reason=error)

    async def _serve(self, address: str) -> None:
        """Stay a node of the fleet at `address`, joining again after interruptions."""
        pause, refusals, waiting = _CONNECT_PAUSE_S[0], 0, False
        while not self._stop.is_set():
            try:
                with ExitStack() as stack:
                    node = await self._join(stack, address)
                    logs.event("silo_ready", server=address)
                    pause, refusals, waiting = _CONNECT_PAUSE_S[0], 0, False
                    await self._take_leases(node, address)
            except FleetUnreachable as error:
                if not waiting:
                    logs.warning("waiting_for_server", server=address, reason=error)
                waiting = True
            except FleetRefused as error:
                refusals += 1
                logs.warning("server_refused", server=address, reason=error)
                if refusals >= _REFUSALS_BEFORE_STOP:
                    raise SiloError(
                        f"the server at {address} refuses this silo ({error}); "
                        "ask its operator whether your key is in the study it runs"
                    ) from error
            await self._pause(pause)
            pause = min(2 * pause, _CONNECT_PAUSE_S[1])

    async def _join(self, stack: ExitStack, address: str) -> FleetNode:
        memory = self._config.state / f"flower-node-{sha256(address.encode()).hexdigest()[:16]}"
        context = join_fleet(address, self._identity.authority, self._node_key, memory)
        return await asyncio.to_thread(stack.enter_context, context)

    async def _take_leases(self, node: FleetNode, address: str) -> None:
        pause = _POLL_S[0]
        while not self._stop.is_set():
            message = await asyncio.to_thread(node.receive)
            if message is None:
                await self._pause(pause)
                pause = min(1.1 * pause, _POLL_S[1])
                continue
            reply = await self._take_lease(message, address)
            await asyncio.to_thread(node.reply, message, reply)
            pause = _POLL_S[0] / 4

    async def _take_lease(self, message: FleetMessage, address: str) -> dict[str, str]:
        """Follow one lease and say how it ended; an unapproved study is refused."""
        try:
            lease, holder = self._accept(message.fields, address)
        except SiloError as refusal:
            logs.warning("lease_refused", reason=refusal)
            return {"silo": self._config.name, "ending": "refused", "answered": "0"}
        logs.event("lease_started", lease=lease.identity)
        following = asyncio.create_task(holder.follow(lease))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not following.done():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            return {"silo": self._config.name, "ending": "stopped", "answered": "0"}
        try:
            ending, answered = following.result()
        except Exception as error:  # of this study: others must not suffer from it
            logs.warning("lease_failed", study=message.fields["study"][:12], reason=error)
            return {"silo": self._config.name, "ending": "refused", "answered": "0"}
        return {"silo": self._config.name, "ending": ending.value, "answered": str(answered)}

    def _accept(self, fields: dict[str, str], address: str) -> tuple[Lease, LeaseHolder]:
        try:
            study = StudyId(bytes.fromhex(fields["study"]))
            lease = Lease(fields["lease"], float(fields["deadline_s"]))
        except (KeyError, ValueError) as error:
            raise SiloError("the message is not a lease") from error
        if len(fields) > 3 or len(lease.identity) > _LONGEST_LEASE:
            raise SiloError("the message is more than a lease")
        if not 0 < lease.deadline_s <= 7 * 86_400:
            raise SiloError("a lease lasts at most a week")
        self._ledger.policy = self._config.reread_policy()
        approval = self._ledger.approval(study)
        if approval.closed:
            raise SiloError("the study is closed here")
        if approval.study.server.fleet_address != address:
            raise SiloError("the study belongs to another server")
        if study not in self._holders:
            self._holders[study] = self._holder(approval)
        return lease, self._holders[study]

    def _holder(self, approval: Approval) -> LeaseHolder:
        folder = self._config.state / "snapshots"
        records = thaw(approval.study.identity, approval.snapshot, folder)
        prepare_tables()
        desk = StudyDesk(
            self._config.name, approval, records, self._ledger, lambda: datetime.now(UTC)
        )
        return LeaseHolder(desk, self._ledger, self._identity, self._sign_key)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
