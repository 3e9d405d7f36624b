"""File descriptors: every connection takes one; a process without any left does nothing more."""

import resource
from contextlib import suppress

_ENOUGH = 65_536
_RESERVE = 512  # for other things than connections: databases, files, another listener


def connections(most: int) -> int:
    """The connections that a listener may hold so that descriptors are left for the rest."""
    allowed = allow_many()
    return min(most, max(allowed - _RESERVE, allowed // 2))


def allow_many() -> int:
    """Raise the limit of this process as far as the system allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if most > soft:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
