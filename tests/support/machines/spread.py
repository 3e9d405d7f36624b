"""A consortium on machines of its own: every process of the product where it belongs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_lab.consortium.create import Addresses, Consortium
from silomix_lab.consortium.processes import Process, Processes, Role
from silomix_server.flower.child_processes import spawn

from support.consortia import make_consortium
from support.machines.network import Network, internet
from support.processes import Running

_FLEET, _CHANNEL, _CONTROL, _MIX = 9092, 9093, 9091, 7100  # ports


def addresses(network: Network, mixes: int, silos: int) -> Addresses:
    """Add the machines of a consortium to the network; where its processes listen."""
    server = network.add_host("server", "203.0.113.10")
    chain = [
        network.add_host(f"mix-{place}", f"203.0.113.{20 + place}") for place in range(1, mixes + 1)
    ]
    for place in range(1, silos + 1):
        network.add_hospital(f"silo-{place}", f"203.0.113.{30 + place}")
    return Addresses(
        fleet=f"{server.address}:{_FLEET}",
        channel=f"{server.address}:{_CHANNEL}",
        control=f"127.0.0.1:{_CONTROL}",
        mixes=tuple(f"{mix.address}:{_MIX}" for mix in chain),
    )


@contextmanager
def spread(made: Consortium, network: Network) -> Iterator[Running]:
    """All processes of an approved consortium, each on its machine, ended whatever happens."""
    logs = made.folder / "logs"
    logs.mkdir(exist_ok=True)
    with ProcessesOnMachines(network, logs) as processes:
        mixes = [processes.start(Role.MIX, config) for config in made.mixes]
        silos = [processes.start(Role.SILO, config) for config in made.silos]
        server = processes.start(Role.SERVER, made.server)
        yield Running(made, processes, mixes, silos, server)


class ProcessesOnMachines(Processes):
    """A party's process runs on the host of its name."""

    def __init__(self, network: Network, folder: Path) -> None:
        super().__init__(folder)
        self._network = network

    def start(self, role: Role, config: Path) -> Process:
        name = config.parent.name
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "silomix", role.value, "run", str(config)]
        machine = self._network.hosts[name].namespace
        process = Process(name, role, log, spawn(machine.command(*command), log))
        self.running.append(process)
        return process


def wait_to_be_killed(folder: str) -> None:
    """In a process of its own: a machine with a mix on it, its number printed, and no end."""
    with internet() as network:
        made = make_consortium(Path(folder) / "c", addresses=addresses(network, mixes=1, silos=3))
        (made.folder / "logs").mkdir()
        with ProcessesOnMachines(network, made.folder / "logs") as processes:
            processes.start(Role.MIX, made.mixes[0])
            print(network.hosts["mix-1"].namespace.identity, flush=True)
            signal.pause()
