"""Leases over Flower: one message to every node, one reply from each when it is over."""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from silomix_core.study.study import Study
from silomix_protocol.certificates.revocation import Revocations
from silomix_protocol.host import logs

RECORD = "lease"
_POLL_S = 0.15
_ENDING, _COUNT = re.compile("[a-z-]{1,32}"), re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class OpenLease:
    identity: str
    sent_to: dict[str, str]  # message id → silo

    @property
    def silos(self) -> frozenset[str]:
        return frozenset(self.sent_to.values())


class LeaseOffice:
    """Sends leases through Flower's grid and takes the replies."""

    def __init__(self, study: Study, grid: Grid, revocations: Revocations | None = None) -> None:
        self._study = study
        self._grid = grid
        self._revocations = revocations

    async def wait_for_nodes(self, wanted: int, minimum: int, timeout_s: float) -> dict[str, int]:
        """Wait for `wanted` silos to be online, or until time is up; return their node ids."""
        end = time.monotonic() + timeout_s
        while True:
            online = await asyncio.to_thread(self._online)
            if len(online) >= wanted or time.monotonic() > end:
                break
            await asyncio.sleep(_POLL_S)
        if len(online) < minimum:
            logs.warning("too_few_silos", online=len(online), minimum=minimum)
        return online

    async def offer(self, identity: str, nodes: dict[str, int], deadline_s: float) -> OpenLease:
        """Send one message to each of these nodes; the lease must be open when they get it."""
        return await asyncio.to_thread(self._push, identity, nodes, deadline_s)

    async def replies(
        self, lease: OpenLease, wanted: int, timeout_s: float
    ) -> list[dict[str, str]]:
        """Collect silos' replies at the end of a lease: at least `wanted`, or until time is up."""
        end = time.monotonic() + timeout_s
        waiting = set(lease.sent_to)
        replies: list[dict[str, str]] = []
        while waiting and len(replies) < wanted and time.monotonic() < end:
            for message in await asyncio.to_thread(self._grid.pull_messages, list(waiting)):
                asked = message.metadata.reply_to_message_id
                waiting.discard(asked)
                if asked in lease.sent_to and message.has_content() and RECORD in message.content:
                    replies.append(_reply(lease.sent_to[asked], message.content[RECORD]))
            if waiting and len(replies) < wanted:
                await asyncio.sleep(_POLL_S)
        return replies

    def bars(self, name: str) -> bool:
        """Whether a silo is revoked; Flower, which knows nodes by other keys, still admits it."""
        return self._revocations is not None and self._revocations.bars(name)

    def _online(self) -> dict[str, int]:
        roster = {silo.name for silo in self._study.silos if not self.bars(silo.name)}
        return {node.name: node.node_id for node in self._grid.get_nodes() if node.name in roster}

    def _push(self, identity: str, nodes: dict[str, int], deadline_s: float) -> OpenLease:
        fields = {
            "lease": identity,
            "study": self._study.identity.hex(),
            "deadline_s": str(deadline_s),
        }
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord(dict(fields))}),
                node_id,
                "query",
                ttl=deadline_s + 60,
            )
            for node_id in nodes.values()
        ]
        ids = self._grid.push_messages(messages)
        return OpenLease(identity, dict(zip(ids, nodes, strict=True)))


def _reply(silo: str, record: Any) -> dict[str, str]:
    """Check what a silo says: how its lease ended, how much it answered.  Who it is we know."""
    ending, answered = str(record.get("ending", "")), str(record.get("answered", ""))
    return {
        "silo": silo,
        "ending": ending if _ENDING.fullmatch(ending) else "unknown",
        "answered": answered if _COUNT.fullmatch(answered) else "unknown",
    }
