"""What `silomix silo doctor` finds: how bad it is, what was seen, what to do about it."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Severity(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    subject: str
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """This machine's clock and disk."""

    now: Callable[[], float] = time.time
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
