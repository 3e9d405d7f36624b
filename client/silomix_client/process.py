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
from silomix_core.discrete_gaussian import prepare_tables
from silomix_core.study.study import Study, StudyId
from silomix_protocol.connections.route import ignore_environment
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.renewal import Keeper
from silomix_protocol.host import logs
from silomix_protocol.host.backoff import pause_s
from silomix_protocol.host.free_disk import lack_of_room
from silomix_protocol.host.pacing import Pace
from silomix_protocol.keys import SigningKey, load_node_key

from silomix_client.approval.approve import forget_revoked, operator
from silomix_client.audit_log.log import AuditLog, audit_log
from silomix_client.audit_log.verify_log import (
    at_one_moment,
    check_chain,
    check_named,
    note_unlogged,
)
from silomix_client.config.hours import Hours
from silomix_client.config.silo_config import Policy, SiloConfig
from silomix_client.data.snapshot import FOLDER as SNAPSHOTS
from silomix_client.data.snapshot import thaw
from silomix_client.errors import NotApproved, OutsideHours, OutsidePolicy, SiloError
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_client.ledger.witnessed_height import Witness
from silomix_client.network.connection_status import Links, LinkTo, Purpose
from silomix_client.network.fleet import FleetNode, join_fleet
from silomix_client.network.fleet_calls import FleetRefused, FleetUnreachable, FleetVersion
from silomix_client.network.fleet_objects import FleetMessage
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.lease import Ending, LeaseHolder, LeaseTerms

_POLL_S = (0.2, 2.0)  # first and longest pause between two looks for a lease
_LONGEST_PAUSE_S = 10.0  # between two tries at a server that refuses this silo
_REFUSALS_BEFORE_STOP = 7
_LONGEST_LEASE = 64  # characters of its identity, which goes to the log
_JOINS, _JOIN_S = 20, 10.0  # so many at once, then one in so many seconds
_LEASES, _LEASE_S = 60, 6.0  # in which no round is charged: so many, then one in so many seconds
_SETTLE_S = 60.0  # between two looks for lines that were left out of the log


def run(config: SiloConfig) -> None:
    """Serve approved studies; raises SiloError when this silo can do nothing."""
    logs.configure(config.name)
    ignore_environment()
    with audit_log(config) as log:
        try:
            process = _Process(config, log)
            with logs.heard_by(log.hear):
                try:
                    uvloop.run(process.run())
                finally:
                    logs.settle()
        except SiloError as error:
            log.append("silo_failed", warning=True, reason=error)
            raise


def _lock(config: SiloConfig) -> int:
    """Take the lock that is held as long as the process lives: one silo, one process."""
    descriptor = os.open(config.state, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise SiloError(f"{config.name} is already running from {config.folder}") from busy
    return descriptor


def within_hours(lease: LeaseTerms, hours: Hours | None, now: datetime) -> LeaseTerms:
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
        self._note_unlogged()
        log.append("silo_started", version=version("silomix"), user=operator())
        self._tell_policy()
        self._ledger.sweep()
        forget_revoked(self._ledger, config)
        self._identity = Identity.load(config.name, config.folder)
        self._sign_key = SigningKey.load(config.folder / "sign.key")
        self._node_key = load_node_key(config.folder / "node.key")
        self._witness = Witness(self._ledger, config.name, self._sign_key)
        self._witness.check()  # nor does a ledger that others know to be an earlier one
        self._holders: dict[StudyId, LeaseHolder] = {}
        self._allowed: dict[StudyId, Policy] = {}  # the policy that allowed a study last
        self._links = Links(config.state)
        self._stop = asyncio.Event()

    def _note_unlogged(self) -> None:
        """Log which ledger entries have no line; refuse a changed log, or a ledger put back."""
        with at_one_moment(self._config.state, self._ledger) as end:
            checked = check_chain(self._config.state, end=end)
            check_named(self._ledger, checked)
            note_unlogged(self._ledger, self._log, checked)
        self._log.missed = 0

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
        keeper = Keeper(self._config.folder, self._config.network.web, self._witness)
        await keeper.look()  # the silo may have been switched off for long
        self._witness.check()
        for entry in approvals:
            self._prepare(entry)
        keeping = [asyncio.create_task(each) for each in (keeper.keep(), _settle_log())]
        try:
            ended = await asyncio.gather(
                *(self._serve(address) for address in sorted(addresses)), return_exceptions=True
            )
        finally:
            for task in keeping:
                task.cancel()
            for holder in self._holders.values():
                await holder.close()
            self._ledger.close()
            self._links.close()
        for outcome in ended:  # one server's refusal did not end the service of the others
            if outcome is not None:
                raise outcome
        logs.event("silo_stopped")

    def _prepare(self, approval: Approval) -> None:
        """Prepare a study before its first query; an unusable study spoils no other."""
        try:
            self._holders[approval.study.identity] = self._holder(approval)
        except SiloError as error:
            logs.warning("study_unusable", study=approval.study.short_id, reason=error)

    async def _serve(self, address: str) -> None:
        """Stay a node of the fleet at `address`, joining again after interruptions."""
        link = self._links.to(Purpose.LEASES, "server", address)
        joins, leases = Pace(_JOINS, _JOIN_S), Pace(_LEASES, _LEASE_S)
        tries = refusals = 0
        while not self._stop.is_set():
            try:
                await self._pause(joins.wait_s)
                with ExitStack() as stack:
                    node = await self._join(stack, address)
                    joins.take()
                    logs.paced("silo_ready", server=address)
                    link.connected()
                    tries = refusals = 0
                    await self._take_leases(node, address, leases)
            except (FleetUnreachable, FleetRefused) as error:
                tries += 1
                refusals += isinstance(error, FleetRefused)
                await self._wait(link, address, error, tries, refusals)

    async def _wait(
        self, link: LinkTo, address: str, error: Exception, tries: int, refusals: int
    ) -> None:
        """Wait until the next try; SiloError if there is no use in another one."""
        if isinstance(error, FleetVersion):
            link.refused(error)
            raise SiloError(f"the server at {address} runs another Flower: {error}") from error
        if refusals >= _REFUSALS_BEFORE_STOP:
            link.refused(error)
            raise SiloError(
                f"the server at {address} refuses this silo ({error}); "
                "ask its operator whether your key is in the study it runs"
            ) from error
        longest = _LONGEST_PAUSE_S if refusals > 1 else _POLL_S[1]  # refused once: it is starting
        pause = pause_s(tries, longest)
        link.waiting(error, pause)
        await self._pause(pause)

    async def _join(self, stack: ExitStack, address: str) -> FleetNode:
        memory = self._config.state / f"flower-node-{sha256(address.encode()).hexdigest()[:16]}"
        context = join_fleet(
            address, self._identity.authority, self._node_key, memory, self._config.network.web
        )
        return await asyncio.to_thread(stack.enter_context, context)

    async def _take_leases(self, node: FleetNode, address: str, paced: Pace) -> None:
        """Follow one lease after the other; leases in which no round is charged are paced."""
        pause = _POLL_S[0]
        while not self._stop.is_set():
            if (wait_s := paced.wait_s) > 0:
                logs.warning("leases_come_to_nothing", server=address, next_in_s=wait_s)
                await self._pause(wait_s)
                continue
            message = await asyncio.to_thread(node.receive)
            if message is None:
                await self._pause(pause)
                pause = min(1.1 * pause, _POLL_S[1])
                continue
            reply = await self._take_lease(message, address, paced)
            await asyncio.to_thread(node.reply, message, reply)
            await asyncio.to_thread(self._log.sync)
            pause = _POLL_S[0] / 4

    async def _take_lease(self, message: FleetMessage, address: str, paced: Pace) -> dict[str, str]:
        """Follow one lease and say how it ended; an unapproved study is refused."""
        paced.take()
        try:
            lease, study = self._accept(message.fields, address)
        except OutsideHours as refusal:
            logs.warning("lease_refused", reason=refusal)
            return {"silo": self._config.name, "ending": Ending.HOURS.value, "answered": "0"}
        except SiloError as refusal:
            logs.warning("lease_refused", reason=refusal)
            return {"silo": self._config.name, "ending": "refused", "answered": "0"}
        logs.event("lease_started", lease=lease.identity, study=study.short_id)
        account = self._ledger.account(study)
        charged = account.last_round()
        following = asyncio.create_task(self._holders[study.identity].follow(lease))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if account.last_round() > charged:
            paced.give_back()
        if not following.done():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            return {"silo": self._config.name, "ending": "stopped", "answered": "0"}
        try:
            ending, answered = following.result()
        except Exception as error:  # of this study: others must not suffer from it
            logs.warning("lease_failed", study=study.short_id, reason=error)
            return {"silo": self._config.name, "ending": "refused", "answered": "0"}
        if ending is Ending.DEADLINE and self._hours_are_over():
            ending = Ending.HOURS
            logs.event("hours_over", lease=lease.identity)
        return {"silo": self._config.name, "ending": ending.value, "answered": str(answered)}

    def _accept(self, fields: dict[str, str], address: str) -> tuple[LeaseTerms, Study]:
        """Read the terms of a lease and its study, or refuse it; the study then has a holder."""
        try:
            identity = StudyId(bytes.fromhex(fields["study"]))
            lease = LeaseTerms(fields["lease"], float(fields["deadline_s"]))
        except (KeyError, ValueError) as error:
            raise SiloError("the message is not a lease") from error
        if len(fields) > 3 or len(lease.identity) > _LONGEST_LEASE:
            raise SiloError("the message is more than a lease")
        if not 0 < lease.deadline_s <= 7 * 86_400:
            raise SiloError("a lease lasts at most a week")
        self._check_disk()
        self._witness.check()
        self._read_policy()
        approval = self._ledger.approval(identity)
        if approval.closed:
            raise SiloError("the study was revoked here")
        if approval.study.server.fleet_address != address:
            raise SiloError("the study belongs to another server")
        self._check_policy(approval)
        lease = within_hours(lease, self._ledger.policy.rules.hours, datetime.now(UTC))
        if identity not in self._holders:
            self._holders[identity] = self._holder(approval)
        return lease, approval.study

    def _check_disk(self) -> None:
        if (lack := lack_of_room(self._config.state)) is not None:
            raise SiloError(f"{lack}; nothing is answered until then")

    def _read_policy(self) -> None:
        """Read the policy as it is now; refuse the lease if the audit log cannot be written."""
        if self._log.failure is not None:
            raise SiloError(f"the audit log cannot be written: {self._log.failure}")
        if self._log.missed:
            self._note_unlogged()  # there is room again for the lines that had none
        policy = self._config.reread_policy()
        if policy != self._ledger.policy:
            self._tell_policy()
        self._ledger.follow(policy)

    def _tell_policy(self) -> None:
        content = self._config.policy_file.read_bytes()
        self._log.append(
            "policy_read",
            file=self._config.policy_file,
            sha256=sha256(content).hexdigest(),
            text=content.decode("utf-8", "replace"),
        )

    def _check_policy(self, approval: Approval) -> None:
        """Check a study against the policy: rules tightened after its approval hold too."""
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
        return LeaseHolder(
            desk,
            self._ledger,
            self._identity,
            self._sign_key,
            self._config.state,
            self._config.network,
            self._links,
        )

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return


async def _settle_log() -> None:
    """Log what was left out of the log, also when nothing else is logged."""
    while True:
        await asyncio.sleep(_SETTLE_S)
        logs.settle()
