"""Who can be asked now: leases over Flower, and what silos need before the rounds of a stretch.

A lease bounds how many rounds one Flower message covers; before each, nodes are looked up anew.
Within a lease the mixes' keys and the silos' tokens are exchanged for a stretch of rounds at once,
before the first of them, so that no token can be recognized by the time at which it was asked for.
"""

import secrets
import time

from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host import logs
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH

from silomix_server.config import ServerConfig
from silomix_server.errors import MixFailed, ServerError, StudyFailed
from silomix_server.mixes.mix_chain import MixChain, Stretch
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.silos.leases import LeaseOffice, OpenLease
from silomix_server.silos.round_channel import RoundChannel

_FOLLOW_S = 20.0  # from a lease's message to all its silos on the channel, with their tokens
_TOKENS_S = 10.0  # from a stretch's announcement to everybody's tokens
_REJOIN_S = 10.0  # how long to wait when too few silos follow
_REPLY_S = 15.0
_RENEW = 0.8  # a lease is renewed after this part of its deadline


class Membership:
    """The current lease and the current stretch: which silos can be asked now."""

    def __init__(
        self,
        config: ServerConfig,
        office: LeaseOffice,
        channel: RoundChannel,
        chain: MixChain,
        tokens: TokenDesk | None,
    ) -> None:
        self._config, self._study = config, config.study
        self._office, self._channel, self._chain = office, channel, chain
        self._tokens = tokens
        self._lease: OpenLease | None = None
        self._lease_left = 0
        self._lease_ends = 0.0
        self._stretch: Stretch | None = None
        self._gone: frozenset[str] = frozenset()
        self._awaited: frozenset[str] = frozenset()  # silos that a round waited for in vain

    async def open(self, round_number: int, *, tried_before: bool = False) -> None:
        """Make sure of a lease, and of a stretch that covers the round unless it was tried before.

        A further attempt brings keys of its own; the stretch then starts with the round after it.
        """
        first = round_number + 1 if tried_before else round_number
        if self._lease is None or not self._lease_left or time.monotonic() > self._lease_ends:
            await self._next_lease(round_number, first)
        elif self._stretch is None or first not in self._stretch:
            await self._next_stretch(round_number, first)
            await self._channel.wait_for(self._channel.followers, round_number, _TOKENS_S)
        self._lease_left -= 1

    async def enough(self, round_number: int, *, tried_before: bool = False) -> bool:
        """Return whether as many of the silos that the round asks can answer as a batch needs.

        If too few are connected, a new lease is offered: silos that were started again have none.
        StudyFailed if that does not help either, and no later round would fare better.
        """
        minimum, refusals = self._study.batching.minimum, ""
        if await self._are_ready(round_number):
            return True
        if len(self._channel.followers) < minimum:
            refusals = await self._refusals()
            self._gone = self._awaited = frozenset()  # whoever is back is waited for
            await self._next_lease(round_number, round_number + tried_before)
            self._lease_left -= 1
            if await self._are_ready(round_number):
                return True
        connected = len(self._channel.followers)
        if connected >= minimum and self._study.participants < len(self._study.silos):
            return False
        raise StudyFailed(
            f"only {len(self._channel.ready(round_number))} silos are connected and a batch needs "
            f"{minimum}; {self._without_token(round_number)}"
            f"{refusals or await self._refusals()}"
            "start the missing silos and run the server again to go on"
        )

    async def _are_ready(self, round_number: int) -> bool:
        asked, minimum = frozenset(self._study.asked(round_number)), self._study.batching.minimum
        ready = await self._ready(round_number, asked, minimum)
        if self._lease is not None:
            self._gone = self._lease.silos - self._channel.ready(round_number)
        return len(ready) >= minimum

    async def _ready(
        self, round_number: int, asked: frozenset[str], minimum: int
    ) -> frozenset[str]:
        """The silos in `asked` that can answer; waits for more, unless that was in vain before."""
        ready = asked & self._channel.ready(round_number)
        self._awaited -= self._channel.followers
        if len(ready) >= minimum or len(asked - self._awaited) < minimum:
            return ready
        ready = asked & await self._channel.wait_for(asked, round_number, _REJOIN_S, minimum)
        self._awaited |= asked - ready
        return ready

    def keys(self, round_number: int) -> tuple[round_pb2.RoundKeys, ...]:
        """The mixes' keys for the first attempt of a round that `open` was called for."""
        if self._stretch is None:
            raise ValueError("no stretch is open")
        return self._stretch.of(round_number)

    def end_stretch(self) -> None:
        """Fetch keys anew before the next round: a mix may have lost those that it announced."""
        self._stretch = None

    async def _next_lease(self, round_number: int, first: int) -> None:
        await self.close("the lease is used up")
        config, minimum = self._config, self._study.batching.minimum
        members = {silo.name for silo in self._study.silos if not self._office.bars(silo.name)}
        wanted = len(members - self._gone)
        nodes = await self._office.wait_for_nodes(wanted, minimum, config.wait_for_silos_s)
        if len(nodes) < minimum:
            raise StudyFailed(
                f"only {len(nodes)} of {len(self._study.silos)} silos are online after "
                f"{config.wait_for_silos_s:g} s and a batch needs {minimum}"
            )
        try:
            await self._chain.check_reachable()
        except MixFailed as failure:
            raise not_asked(failure) from failure
        identity = secrets.token_hex(8)
        self._lease_left = config.lease_rounds
        await self._next_stretch(round_number, first)
        self._channel.open_lease(identity)
        self._lease = await self._office.offer(identity, nodes, config.lease_deadline_s)
        self._lease_ends = time.monotonic() + _RENEW * config.lease_deadline_s
        logs.event("lease_offered", lease=identity, silos=len(nodes), rounds=self._lease_left)
        expected = frozenset(name for name in nodes if not self._office.bars(name)) - self._gone
        await self._channel.wait_for(expected, round_number, _FOLLOW_S)

    async def _next_stretch(self, round_number: int, first: int) -> None:
        """Have keys made from round `first` on, as far as lease and study go, and announce them."""
        end = min(round_number + self._lease_left, self._study.rounds + 1)
        rounds = min(LONGEST_STRETCH, end - first)
        if rounds < 1:
            return
        try:
            self._stretch = await self._chain.prepare(1, first, rounds)
        except MixFailed as failure:
            raise not_asked(failure) from failure
        self._channel.open_stretch(
            channel_pb2.StretchOpened(
                first_round=first,
                lists=self._stretch.lists,
                token_keys=self._tokens.public_keys(first, rounds) if self._tokens else [],
            )
        )
        logs.event("stretch_opened", first_round=first, rounds=rounds)

    def _without_token(self, round_number: int) -> str:
        """How many silos follow but were refused a token, given to them before; for an error."""
        without = len(self._channel.followers - self._channel.ready(round_number))
        if not without:
            return ""
        return f"{without} more are connected but have no token for round {round_number}; "

    async def _refusals(self) -> str:
        """What silos said when they left the lease, if they did; for an error."""
        if self._lease is None:
            return ""
        replies = await self._office.replies(self._lease, len(self._lease.silos), 1.0)
        refused = _ended(replies, "refused")
        closed = _ended(replies, "outside-hours")
        said = f"outside the hours of their policies: {', '.join(closed)}; " if closed else ""
        if not refused:
            return said
        return (
            f"{said}{', '.join(refused)} refused: is study {self._study.short_id} the one that "
            "they approved (silomix study show), and does their policy allow it? Then "
        )

    async def close(self, reason: str) -> None:
        """End the current lease and take the Flower replies of those who followed it."""
        self._stretch = None
        if self._lease is None:
            return
        followers = self._channel.followers
        self._channel.close_lease(reason)
        replies = await self._office.replies(self._lease, len(followers), _REPLY_S)
        for reply in replies:
            logs.event("lease_reply", **reply)
        self._lease = None


def _ended(replies: list[dict[str, str]], ending: str) -> list[str]:
    """The silos whose lease ended with this `ending`."""
    return sorted(reply["silo"] for reply in replies if reply.get("ending") == ending)


def not_asked(failure: ServerError) -> StudyFailed:
    """The error for a mix that failed before any silo heard of the round."""
    return StudyFailed(
        f"{failure}; no silo was asked and no budget spent; see to that mix (silomix mix run) and "
        "run the server again"
    )
