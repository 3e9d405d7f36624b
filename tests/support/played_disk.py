"""A disk that is almost full, as processes see it that are told so."""

from pathlib import Path

import pytest

_HOOK = """
import os, pathlib, shutil
def disk_usage(path, _file=pathlib.Path(os.environ["PLAYED_DISK"])):
    return shutil._ntuple_diskusage(10**12, 0, int(_file.read_text()))
shutil.disk_usage = disk_usage
"""


def played_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that tells processes from now on how much of the disk is free: too little."""
    (folder / "sitecustomize.py").write_text(_HOOK)
    free = folder / "free"
    free.write_text("30000000")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PLAYED_DISK", str(free))
    return free
