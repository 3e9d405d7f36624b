"""`silomix silo run`: a silo's process, from its folder to leases, until it is told to stop."""

import asyncio
import fcntl
import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version

import uvloop
from silomix_core.noise import prepare_tables
from silomix_core.study import StudyId
from silomix_protocol import logs
from silomix_protocol.keys import SigningKey, load_node_key
from silomix_protocol.renewal import Keeper
from silomix_protocol.route import ignore_environment
from silomix_protocol.tls import Identity

from silomix_client.answer import StudyDesk
from silomix_client.approve import forget_revoked, operator
from silomix_client.audit_check import check_chain, check_named, note_unlogged
from silomix_client.audit_log import AuditLog, audit_log
from silomix_client.config import Policy, SiloConfig
from silomix_client.entries import Approval
from silomix_client.errors import NotApproved, OutsideHours, OutsidePolicy, SiloError
from silomix_client.fleet import (
    FleetMessage,
    FleetNode,
    FleetRefused,
    FleetUnreachable,
    FleetVersion,
    join_fleet,
)
from silomix_client.hours import Hours
from silomix_client.lease import Ending, Lease, LeaseHolder
from silomix_client.ledger import Ledger
from silomix_client.ledger_check import verify
from silomix_client.links import Links, LinkTo, Purpose
from silomix_client.retries import pause_s
from silomix_client.snapshot import FOLDER as SNAPSHOTS
from silomix_client.snapshot import thaw

_POLL_S = (0.2, 2.0)  # first and longest pause between two looks for a lease
_LONGEST_PAUSE_S = 10.0  # between two tries to reach a server
_REFUSALS_BEFORE_STOP = 7
_LONGEST_LEASE = 64  # characters of its identity, which goes to the log


def run(config: SiloConfig) -> None:
    """Serve approved studies; raises SiloError when this silo can do nothing."""
    logs.configure(config.name)
    ignore_environment()
    with audit_log(config) as log:
        try:
            process = _Process(config, log)
            with logs.heard_by(log.hear):
                uvloop.run(process.run())
        except SiloError as error:
            log.append("silo_failed", warning=True, reason=error)
            raise


def _lock(config: SiloConfig) -> int:
    """Held as long as the process lives: one silo, one process."""
    descriptor = os.open(config.state, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise SiloError(f"{config.name} is already running from {config.folder}") from busy
    return descriptor


def within_hours(lease: Lease, hours: Hours | None, now: datetime) -> Lease:
    """The lease, cut where the hours end; OutsideHours if they have not begun."""
    if hours is None:
        return lease
    left = hours.seconds_left(now, lease.deadline_s)
    if not left:
        raise OutsideHours(f"this silo answers {hours.text}")
    return replace(lease, deadline_s=left)


class _Process:
    """What lives as long as the process: ledger, keys, one lease holder per study."""

    def __init__(self, config: SiloConfig, log: AuditLog) -> None:
        self._config, self._log = config, log
        self._lock = _lock(config)
        self._ledger = Ledger(config.state, config.policy)
        verify(self._ledger)  # a ledger that was tampered with answers nothing
        checked = check_chain(config.state)  # nor does one beside a changed audit log
        check_named(self._ledger, checked)  # nor one that was put back to an earlier state
        note_unlogged(self._ledger, log, checked)
        log.append("silo_started", version=version("silomix"), user=operator())
        self._tell_policy()
        self._ledger.sweep()
        forget_revoked(self._ledger, config)
        self._identity = Identity.load(config.name, config.folder)
        self._sign_key = SigningKey.load(config.folder / "sign.key")
        self._node_key = load_node_key(config.folder / "node.key")
        self._holders: dict[StudyId, LeaseHolder] = {}
        self._allowed: dict[StudyId, Policy] = {}  # the policy that allowed a study last
        self._links = Links(config.state)
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
        keeper = Keeper(self._config.folder, self._config.network.web)
        await keeper.look()  # it may have been switched off for long
        for entry in approvals:
            self._prepare(entry)
        keeping = asyncio.create_task(keeper.keep())
        try:
            ended = await asyncio.gather(
                *(self._serve(address) for address in sorted(addresses)), return_exceptions=True
            )
        finally:
            keeping.cancel()
            for holder in self._holders.values():
                await holder.close()
            self._ledger.close()
            self._links.close()
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
        link = self._links.to(Purpose.LEASES, "server", address)
        tries = refusals = 0
        while not self._stop.is_set():
            try:
                with ExitStack() as stack:
                    node = await self._join(stack, address)
                    logs.event("silo_ready", server=address)
                    link.connected()
                    tries = refusals = 0
                    await self._take_leases(node, address)
            except (FleetUnreachable, FleetRefused) as error:
                tries += 1
                refusals += isinstance(error, FleetRefused)
                await self._wait(link, address, error, tries, refusals)

    async def _wait(
        self, link: LinkTo, address: str, error: Exception, tries: int, refusals: int
    ) -> None:
        """Until the next try; SiloError if there is no use in another one."""
        if isinstance(error, FleetVersion):
            link.refused(error)
            raise SiloError(f"the server at {address} runs another Flower: {error}") from error
        if refusals >= _REFUSALS_BEFORE_STOP:
            link.refused(error)
            raise SiloError(
                f"the server at {address} refuses this silo ({error}); "
                "ask its operator whether your key is in the study it runs"
            ) from error
        pause = pause_s(tries, _LONGEST_PAUSE_S)
        link.waiting(error, pause)
        await self._pause(pause)

    async def _join(self, stack: ExitStack, address: str) -> FleetNode:
        memory = self._config.state / f"flower-node-{sha256(address.encode()).hexdigest()[:16]}"
        context = join_fleet(
            address, self._identity.authority, self._node_key, memory, self._config.network.web
        )
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
            await asyncio.to_thread(self._log.sync)
            pause = _POLL_S[0] / 4

    async def _take_lease(self, message: FleetMessage, address: str) -> dict[str, str]:
        """Follow one lease and say how it ended; an unapproved study is refused."""
        try:
            lease, holder = self._accept(message.fields, address)
        except OutsideHours as refusal:
            logs.warning("lease_refused", reason=refusal)
            return {"silo": self._config.name, "ending": Ending.HOURS.value, "answered": "0"}
        except SiloError as refusal:
            logs.warning("lease_refused", reason=refusal)
            return {"silo": self._config.name, "ending": "refused", "answered": "0"}
        logs.event("lease_started", lease=lease.identity, study=message.fields["study"][:12])
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
        if ending is Ending.DEADLINE and self._hours_are_over():
            ending = Ending.HOURS
            logs.event("hours_over", lease=lease.identity)
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
        self._read_policy()
        approval = self._ledger.approval(study)
        if approval.closed:
            raise SiloError("the study was revoked here")
        if approval.study.server.fleet_address != address:
            raise SiloError("the study belongs to another server")
        self._check_policy(approval)
        lease = within_hours(lease, self._ledger.policy.rules.hours, datetime.now(UTC))
        if study not in self._holders:
            self._holders[study] = self._holder(approval)
        return lease, self._holders[study]

    def _read_policy(self) -> None:
        """The policy as it is now, and an audit log that can be written; or no lease."""
        if self._log.failure is not None:
            raise SiloError(f"the audit log cannot be written: {self._log.failure}")
        policy = self._config.reread_policy()
        if policy != self._ledger.policy:
            self._tell_policy()
        self._ledger.policy = policy

    def _tell_policy(self) -> None:
        content = self._config.policy_file.read_bytes()
        self._log.append(
            "policy_read",
            file=self._config.policy_file,
            sha256=sha256(content).hexdigest(),
            text=content.decode("utf-8", "replace"),
        )

    def _check_policy(self, approval: Approval) -> None:
        """A rule that was tightened after the approval holds too."""
        policy, study = self._ledger.policy, approval.study
        if self._allowed.get(study.identity) == policy:
            return
        budget = policy.budgets[approval.population]
        if objections := policy.rules.objections(study, approval.participant, budget):
            raise OutsidePolicy(f"your policy does not allow this study: {'; '.join(objections)}")
        self._allowed[study.identity] = policy

    def _hours_are_over(self) -> bool:
        hours = self._ledger.policy.rules.hours
        return hours is not None and not hours.has(datetime.now(UTC))

    def _holder(self, approval: Approval) -> LeaseHolder:
        folder = self._config.state / SNAPSHOTS
        records = thaw(approval.study.identity, approval.snapshot, folder)
        prepare_tables()
        desk = StudyDesk(
            self._config.name, approval, records, self._ledger, lambda: datetime.now(UTC)
        )
        network = self._config.network
        return LeaseHolder(desk, self._ledger, self._identity, self._sign_key, network, self._links)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
