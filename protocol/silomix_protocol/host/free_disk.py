"""A floor of free disk: below it a party begins nothing that costs budget.

A round that is charged and then cannot be stored, sent or summed is budget spent on nothing.  What
is left above the floor is for what comes after: a ledger's journal, a log's lines.
"""

import shutil
from pathlib import Path

LEAST_FREE_BYTES = 100 * 10**6
_MB = 10**6


def lack_of_room(folder: Path) -> str | None:
    """The sentence for the operator if the disk of `folder` has less than the floor free."""
    free = shutil.disk_usage(folder).free
    if free >= LEAST_FREE_BYTES:
        return None
    return f"only {free // _MB} MB are free in {folder}: free at least {LEAST_FREE_BYTES // _MB} MB"
