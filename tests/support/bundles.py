"""Bundles of small wheels, made and installed by the programs in deploy/bundle."""

import importlib.util
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

BUNDLE = Path(__file__).parents[2] / "deploy" / "bundle"


def build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundle_build", BUNDLE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BUNDLE)  # as for a program: it imports its neighbour
        spec.loader.exec_module(module)
    return module


def write_wheel(
    folder: Path, name: str, version: str, needs: tuple[str, ...] = (), fields: str = ""
) -> Path:
    """A wheel whose program, of the same name, prints its version."""
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {each}\n" for each in needs) + fields
    files = {
        f"{name}.py": f"def run():\n    print({version!r})\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:run\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        records = []
        for file, content in files.items():
            wheel.writestr(file, content)
            digest = urlsafe_b64encode(sha256(content.encode()).digest()).rstrip(b"=").decode()
            records.append(f"{file},sha256={digest},{len(content)}\n")
        wheel.writestr(f"{info}/RECORD", "".join(records) + f"{info}/RECORD,,\n")
    return path


def bundle(place: Path, version: str) -> Path:
    folder = place / f"silomix-{version}"
    wheelhouse = folder / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    own = "Provides-Extra: more\nProvides-Extra: dev\nLicense-Expression: Apache-2.0\n"
    needs = ("needed[fast]==1.0", "more; extra == 'more'", "pytest; extra == 'dev'")
    write_wheel(wheelhouse, "silomix", version, needs, own)
    needs = ("quick_er; extra == 'fast'", "windows; sys_platform == 'win32'")
    write_wheel(
        wheelhouse, "needed", "1.0", needs, "Classifier: License :: OSI Approved :: MIT License\n"
    )
    write_wheel(wheelhouse, "quick_er", "2.0", fields="License: 3-clause BSD\n")
    write_wheel(wheelhouse, "more", "3.0")
    build_module().complete(folder, version)
    return folder


def install(
    folder: Path, target: Path, *options: str | Path, python: str = sys.executable
) -> tuple[int, str]:
    done = subprocess.run(
        [folder / "install.sh", *options, target],
        capture_output=True,
        text=True,
        check=False,
        # An index that somebody configured must not be asked.
        env=os.environ | {"PYTHON": python, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
    )
    return done.returncode, done.stdout + done.stderr
