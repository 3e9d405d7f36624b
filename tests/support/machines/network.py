"""The internet of a test: one switch, hosts with addresses of their own, hospitals behind NAT.

    server 203.0.113.10 ─┐                     ┌─ 203.0.113.31 router ─ 192.168.1.10 silo-1
    mix-1  203.0.113.21 ─┼── bridge (the hub) ─┼─ 203.0.113.32 router ─ 192.168.1.10 silo-2
    mix-2  203.0.113.22 ─┘                     └─ 203.0.113.33 router ─ 192.168.1.10 silo-3

Every hospital uses the same private addresses, as hospitals do.
"""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.machines.links import TUN, NetemLink, Weather, WireLink, Wires, has_netem
from support.machines.namespaces import Namespace
from support.machines.nat import INSIDE, OUTSIDE, make_router

_RIGHTS = "; run as root, or start pytest by: unshare --user --map-root-user --net --mount"
_ALL_FRAMES = 0x0003  # ETH_P_ALL
SILO, ROUTER = "192.168.1.10", "192.168.1.1"


def why_not() -> str | None:
    """Why this computer cannot play several machines, in one line; None if it can."""
    missing = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"machines as network namespaces: {', '.join(missing)} not installed"
    try:
        with internet() as network:
            network.add_hospital("silo-1", "203.0.113.31")
    except OSError as problem:
        cause = problem.strerror or str(problem)
        unprivileged = problem.errno in (errno.EPERM, errno.EACCES)
        return f"no machines as network namespaces: {cause}" + (_RIGHTS if unprivileged else "")
    return None


class Host:
    """A machine on the internet."""

    def __init__(self, name: str, address: str, namespace: Namespace) -> None:
        self.name, self.address, self.namespace = name, address, namespace


class Hospital(Host):
    """A machine behind a router: `address` is the router's, which others see as the sender."""

    def __init__(self, name: str, address: str, silo: Namespace, router: Namespace) -> None:
        super().__init__(name, address, silo)
        self.router = router


class Network:
    """Hosts by name, and the links that join them."""

    def __init__(self, hub: Namespace, stack: ExitStack, wires: Wires | None) -> None:
        self.hosts: dict[str, Host] = {}
        self._hub, self._stack, self._wires = hub, stack, wires
        self._links: dict[str, NetemLink | WireLink] = {}
        self._weather = Weather()
        hub.ip("link add hub type bridge forward_delay 0 stp_state 0", "link set hub up")

    def add_host(self, name: str, address: str) -> Host:
        namespace = self._namespace()
        self._plug(name, namespace, "internet", address)
        return self._added(Host(name, address, namespace))

    def add_hospital(self, name: str, address: str) -> Hospital:
        router, silo = self._namespace(), self._namespace()
        self._plug(name, router, OUTSIDE, address)
        router.ip(
            f"link add {INSIDE} type veth peer name office netns {silo.path}",
            f"address add {ROUTER}/24 dev {INSIDE}",
            f"link set {INSIDE} up",
        )
        make_router(router)
        silo.ip(
            f"address add {SILO}/24 dev office",
            "link set office up",
            f"route add default via {ROUTER}",
        )
        hospital = Hospital(name, address, silo, router)
        self._added(hospital)
        return hospital

    def set_weather(self, weather: Weather) -> None:
        """For all frames from one host to another, from now on."""
        self._weather = weather
        for link in self._links.values():
            link.set(weather)

    def cut(self, name: str) -> None:
        """Take a host (a hospital with its router) off the net: nothing says so to anybody.

        Its link stays up, as where the break is somewhere else: what it sends is simply gone.
        """
        self._hub.ip(f"link set {name} nomaster")

    def join(self, name: str) -> None:
        self._hub.ip(f"link set {name} master hub")

    def tapped(self, name: str) -> socket.socket:
        """A socket that gets a copy of every frame that comes from a host, also while it is cut."""
        with self._hub.entered():
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
            tap.bind((name, _ALL_FRAMES))
        return tap

    def _plug(self, port: str, namespace: Namespace, interface: str, address: str) -> None:
        link: NetemLink | WireLink
        if self._wires is None:
            link = NetemLink(namespace, interface, self._hub, port)
        else:
            link = WireLink(namespace, interface, self._hub, port)
            self._wires.add(link)
        self._hub.ip(f"link set {port} master hub", f"link set {port} up")
        namespace.ip(f"address add {address}/24 dev {interface}", f"link set {interface} up")
        link.set(self._weather)
        self._links[port] = link

    def _namespace(self) -> Namespace:
        namespace = Namespace()
        self._stack.callback(namespace.close)
        return namespace

    def _added(self, host: Host) -> Host:
        self.hosts[host.name] = host
        return host


@contextmanager
def internet(seed: int = 1) -> Iterator[Network]:
    """A network without hosts; it is gone after the block, or when this process is.

    `seed` decides which frames the wires lose.
    """
    with ExitStack() as stack:
        hub = Namespace()
        stack.callback(hub.close)
        wires: Wires | None = None
        if not has_netem():
            if not TUN.exists():
                raise OSError(errno.ENOENT, f"neither tc netem nor {TUN}: {os.strerror(2)}")
            wires = stack.enter_context(Wires(seed))
        yield Network(hub, stack, wires)
