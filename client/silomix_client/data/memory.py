"""How much memory reading may take: too much data ends in a sentence, not in the end of a process.

A file of a megabyte can stand for a hundred million rows.  While data is read, this process may
take most of what the machine, or its control group, has free and no more; the system then says so
instead of ending whatever process it likes.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_client.errors import BadRecords

_SHARE = 0.8  # of what is free
_GB = 2**30
_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def bounded(description: str) -> Iterator[int]:
    """Let this process take no more than the bytes yielded; BadRecords if that is too little."""
    room = int(_SHARE * free_bytes())
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _taken_bytes() + room
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == -1 else min(most, hard), hard))
    try:
        yield room
    except MemoryError:
        raise too_much(description, room) from None  # whatever was read goes with its traceback
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def too_much(what: str, room: int) -> BadRecords:
    """The error that tells the operator of too much data."""
    return BadRecords(
        f"{what}: more than there is memory for ({room / _GB:.1f} GB); is it the right data? If "
        "so, give only the rows and columns of the study, or read it where there is more memory"
    )


def free_bytes() -> int:
    """The bytes that this process may still take, as far as the system tells."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    rooms = [_available_bytes(), *_group_rooms()]
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - _taken_bytes())
    return max(0, min(rooms))


def _available_bytes() -> int:
    return 1024 * _field(Path("/proc/meminfo"), "MemAvailable:")


def _taken_bytes() -> int:
    return 1024 * _field(Path("/proc/self/status"), "VmSize:")


def _group_rooms() -> Iterator[int]:
    """The free bytes of each control group (v2) around this process, cached files included."""
    try:
        line = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()[-1]
    except (OSError, IndexError):
        return
    group = _GROUPS / line.rpartition("::")[2].strip("/")
    for folder in (group, *group.parents):
        try:
            most = (folder / "memory.max").read_text(encoding="ascii").strip()
            if most != "max":
                taken = int((folder / "memory.current").read_text(encoding="ascii"))
                yield int(most) - taken + _field(folder / "memory.stat", "inactive_file")
        except (OSError, ValueError):
            continue


def _field(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ValueError(f"{path} has no {name}")
