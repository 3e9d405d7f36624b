"""Every Python process that finds this on its path tells what it writes and syncs (`power`)."""

import importlib.util
import os
from pathlib import Path

_path = Path(__file__).parent.parent / "power.py"
_spec = importlib.util.spec_from_file_location("silomix_test_power", _path)
assert _spec is not None
assert _spec.loader is not None
_power = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_power)
_power.listen(
    _power.Disk(Path(os.environ[_power.ROOT]), Path(os.environ[_power.MEMORY])),
)
