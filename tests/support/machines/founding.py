"""A consortium founded as people do it: every command on the machine of the one who types it.

Of commands that need no network only the first of a kind; the others need no process either.
What passes from hand to hand (invitations, the roster, the study) is copied between the folders;
everything else goes over the network.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Role

from support.commands import typed
from support.consortia import SMALL_TASK, write_data
from support.machines.network import Network
from support.machines.spread import ProcessesOnMachines
from support.processes import wait_until

_COMMAND_S = 120.0
_AUTHORITY = "203.0.113.9:9090"
_SERVER = ("--fleet-address", "203.0.113.10:9092", "--channel-address", "203.0.113.10:9094")
_POLICY = "epsilon = 2.0\ndelta = 1e-5\nminimum_batch = 2\n"
_OUTLINE = """\
version = 1
name = "machines"
[task]
loss = "logistic"
label = "outcome"
scaling = "unit-ball"
bias = 0.3
features = [
    { name = "age", low = 0.0, high = 100.0, missing = 50.0 },
    { name = "dose", low = -1.0, high = 1.0, missing = 0.0 },
]
[algorithm]
name = "noisy-mb-sgd"
rounds = %(rounds)d
radius = 50.0
[privacy]
clip = 0.25
epsilon = 2.0
delta = 1e-5
[batch]
minimum = 2
deadline_s = %(deadline_s)g
[server]
name = "server"
"""


@contextmanager
def authority(
    network: Network, folder: Path, certificate_life_s: float
) -> Iterator[ProcessesOnMachines]:
    """`silomix authority init` and `run` on a machine of its own, until the block is left."""
    network.add_host("authority", _AUTHORITY.partition(":")[0])
    days = str(certificate_life_s / 86_400)
    arguments = "authority", "--address", _AUTHORITY, "--certificate-days", days
    folder.mkdir()
    command(network, "authority", "authority", "init", *arguments, cwd=folder)
    (folder / "logs").mkdir()
    with ProcessesOnMachines(network, folder / "logs") as processes:
        running = processes.start(Role.AUTHORITY, folder / "authority" / "authority.toml")
        wait_until(lambda: "authority_ready" in running.log.read_text(), "the authority listens")
        yield processes


def found(
    network: Network, folder: Path, *, rounds: int, deadline_s: float, people: Sequence[int]
) -> Consortium:
    """Two mixes and a silo for each number of people: invited, joined, their study approved."""
    mixes, silos = ["mix-1", "mix-2"], [f"silo-{place + 1}" for place in range(len(people))]
    network.add_host("server", "203.0.113.10")
    for place, mix in enumerate(mixes):
        network.add_host(mix, f"203.0.113.{21 + place}")
    for place, silo in enumerate(silos):
        network.add_hospital(silo, f"203.0.113.{31 + place}")
    _invite(network, folder, mixes, silos)
    everybody = ["server", *mixes, *silos]
    together(network, folder, [(name, _join(name)) for name in everybody])
    study = _assembled(network, folder, mixes, silos, people, rounds, deadline_s)
    for name in everybody:
        shutil.copy(folder / "study.toml", folder / name)
    with (folder / "server" / "server.toml").open("a") as settings:
        settings.write("wait_for_silos_s = 120.0\n")
    for place, silo in enumerate(silos):
        write_data(folder / silo / "data.csv", SMALL_TASK, people[place], seed=place)
        (folder / silo / "policy.toml").write_text(_POLICY)
    approve = "--hash", study.identity.hex()
    approvals = [
        (silo, ("silo", "approve", f"{silo}/silo.toml", f"{silo}/study.toml", *approve))
        for silo in silos
    ]
    in_turn(network, folder, approvals)
    return Consortium(
        folder=folder,
        study=study,
        server=folder / "server" / "server.toml",
        mixes=tuple(folder / name / "mix.toml" for name in mixes),
        silos=tuple(folder / name / "silo.toml" for name in silos),
    )


def command(network: Network, machine: str, *arguments: str, cwd: Path) -> str:
    """What `silomix ARGUMENTS` prints on a machine; it must succeed."""
    (said,) = together(network, cwd, [(machine, arguments)])
    return said


def in_turn(
    network: Network, cwd: Path, commands: Sequence[tuple[str, Sequence[str]]]
) -> list[str]:
    """Commands of one kind that need no network; what each of them printed."""
    first, *others = commands
    said = together(network, cwd, [first])
    for _, arguments in others:
        done = typed(*arguments, cwd=cwd)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        said.append(done.stdout)
    return said


def together(
    network: Network, cwd: Path, commands: Sequence[tuple[str, Sequence[str]]]
) -> list[str]:
    """Commands on their machines, all at a time; what each of them printed."""
    started = [
        subprocess.Popen(
            network.hosts[machine].namespace.command(sys.executable, "-m", "silomix", *arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for machine, arguments in commands
    ]
    try:
        said = [child.communicate(timeout=_COMMAND_S) for child in started]
    finally:
        for child in started:
            child.kill()
            child.wait()
    for child, (_, complaint) in zip(started, said, strict=True):
        assert child.returncode == 0, f"{child.args}: {complaint}"
    return [printed for printed, _ in said]


def _invite(network: Network, folder: Path, mixes: list[str], silos: list[str]) -> None:
    invite = "authority", "invite", "authority/authority.toml"
    invited = [
        (*invite, "server", "--kind", "server", *_SERVER),
        *(
            (*invite, mix, "--kind", "mix", "--address", f"{network.hosts[mix].address}:9101")
            for mix in mixes
        ),
        *((*invite, silo, "--kind", "silo") for silo in silos),
    ]
    in_turn(network, folder, [("authority", arguments) for arguments in invited])


def _join(name: str) -> tuple[str, ...]:
    return "join", f"{name}.invitation", "--into", name


def _assembled(
    network: Network,
    folder: Path,
    mixes: list[str],
    silos: list[str],
    people: Sequence[int],
    rounds: int,
    deadline_s: float,
) -> Study:
    """The study lead's work, on the server's machine."""
    outline = _OUTLINE % {"rounds": rounds, "deadline_s": deadline_s}
    outline += "".join(f'[[mixes]]\nname = "{mix}"\n' for mix in mixes)
    for silo, count in zip(silos, people, strict=True):
        outline += f'[[silos]]\nname = "{silo}"\nrecords = {count}\n'
    (folder / "outline.toml").write_text(outline)
    command(network, "authority", "authority", "roster", "authority/authority.toml", cwd=folder)
    command(network, "server", "study", "assemble", "outline.toml", "roster.toml", cwd=folder)
    return parse_study((folder / "study.toml").read_bytes())
