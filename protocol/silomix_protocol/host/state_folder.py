"""Where a party keeps what it writes: the folder `state` beside its configuration."""

from pathlib import Path

from silomix_protocol.host.durable import make_folder


def state_of(folder: Path) -> Path:
    """The state of the party in `folder`, whether it is there or not."""
    return folder / "state"


def made_state_of(folder: Path) -> Path:
    """The state of the party in `folder`, made on first use."""
    state = state_of(folder)
    make_folder(state)
    return state
