"""A silo's state folder as it was, kept aside and put back, as a machine's snapshot is."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from silomix_client.config.silo_config import SiloConfig


@dataclass(frozen=True, slots=True)
class StateCopy:
    """All of `state/` at one moment."""

    state: Path
    copy: Path

    @classmethod
    def of(cls, config: SiloConfig, name: str = "earlier") -> "StateCopy":
        copy = config.folder.parent / f"{config.folder.name}-{name}"
        shutil.copytree(config.state, copy)
        return cls(config.state, copy)

    def put_back(self) -> None:
        """The whole folder, whatever has happened to it since."""
        shutil.rmtree(self.state)
        shutil.copytree(self.copy, self.state)
