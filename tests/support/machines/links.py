"""Links between a host and the internet that are as slow and lossy as a test wants.

With `tc netem` where the kernel has it; elsewhere a wire of our own: a TAP interface at each end,
and a thread that carries the frames from one to the other, later, or not at all.  Both act on the
frames that leave the host, so that the way from one host to another is delayed once.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from support.machines.namespaces import Namespace

TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME = 65536
_BURST = 64  # frames of one host, before the others have their turn


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to the frames that leave a host."""

    latency_ms: float = 0.0
    jitter_ms: float = 0.0  # uniform, to either side: frames may overtake each other
    loss: float = 0.0  # share of the frames

    def __post_init__(self) -> None:
        if not (0 <= self.jitter_ms <= self.latency_ms and 0 <= self.loss <= 1):
            raise ValueError(f"no such weather: {self}")


def has_netem() -> bool:
    namespace = Namespace()
    try:
        namespace.tc("qdisc add dev lo root netem delay 1ms")
    except OSError:
        return False
    finally:
        namespace.close()
    return True


class NetemLink:
    """A pair of virtual interfaces; the kernel delays and drops what leaves the host."""

    def __init__(self, host: Namespace, name: str, hub: Namespace, port: str) -> None:
        self._host, self._name = host, name
        hub.ip(f"link add {port} type veth peer name {name} netns {host.path}")
        # Frames as they are on a wire, not 64 KB that are lost at once.
        host.ip(f"link set {name} gso_max_segs 1")
        host.tc(f"qdisc add dev {name} root netem limit 100000")

    def set(self, weather: Weather) -> None:
        self._host.tc(
            f"qdisc change dev {self._name} root netem limit 100000 "
            f"delay {weather.latency_ms}ms {weather.jitter_ms}ms loss {100 * weather.loss}%"
        )


class WireLink:
    """A pair of TAP interfaces, joined by the wires' thread."""

    def __init__(self, host: Namespace, name: str, hub: Namespace, port: str) -> None:
        self.weather = Weather()
        self.host_end = _tap(host, name)
        self.hub_end = _tap(hub, port)

    def set(self, weather: Weather) -> None:
        self.weather = weather


class Wires:
    """The thread that carries the frames of all links; leaving the block ends it."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._links: list[WireLink] = []
        self._selector = selectors.DefaultSelector()
        self._under_way: list[tuple[float, int, int, bytes]] = []  # due, order, to whom, frame
        self._order = count()
        self._stop, self._stopper = os.pipe()
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._carry, name="wires", daemon=True)

    def add(self, link: WireLink) -> None:
        self._links.append(link)
        self._selector.register(link.host_end, selectors.EVENT_READ, (link, True))
        self._selector.register(link.hub_end, selectors.EVENT_READ, (link, False))

    def __enter__(self) -> "Wires":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stopper)
        self._thread.join()
        self._selector.close()
        os.close(self._stop)
        for link in self._links:
            os.close(link.host_end)
            os.close(link.hub_end)

    def _carry(self) -> None:
        while True:
            due = self._under_way[0][0] if self._under_way else None
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(wait_s):
                if key.data is None:
                    return
                self._take(*key.data)
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(self._under_way)
                _write(end, frame)

    def _take(self, link: WireLink, leaving: bool) -> None:
        """Frames that leave the host get today's weather; those for it arrive at once."""
        source, end = (link.host_end, link.hub_end) if leaving else (link.hub_end, link.host_end)
        for _ in range(_BURST):
            try:
                frame = os.read(source, _FRAME)
            except OSError:  # nothing more, or the interface is down
                return
            weather = link.weather if leaving else Weather()
            if self._rng.random() < weather.loss:
                continue
            if weather.latency_ms == 0:
                _write(end, frame)
                continue
            delay_ms = weather.latency_ms + weather.jitter_ms * self._rng.uniform(-1, 1)
            due = time.monotonic() + delay_ms / 1000
            heapq.heappush(self._under_way, (due, next(self._order), end, frame))


def _tap(namespace: Namespace, name: str) -> int:
    """A TAP interface in the namespace; it exists as long as its descriptor is open."""
    with namespace.entered():
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", name.encode("ascii"), _TAP_WITHOUT_HEADER)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
    return descriptor


def _write(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except OSError:  # down, or its queue is full: the frame is lost as on any wire
        return
