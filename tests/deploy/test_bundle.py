"""The offline bundle: installs what was bundled and nothing else, keeps the release before it.

With small wheels of our own in place of the product and all that it needs; `make bundle` gives the
real ones.
"""

import importlib.util
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

BUNDLE = Path(__file__).parents[2] / "deploy" / "bundle"


def build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundle_build", BUNDLE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_wheel(folder: Path, name: str, version: str, needs: tuple[str, ...] = ()) -> Path:
    """A wheel whose program, of the same name, prints its version."""
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {each}\n" for each in needs)
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


def bundle(place: Path, version: str, *, complete: bool = True) -> Path:
    folder = place / f"silomix-{version}"
    wheelhouse = folder / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    write_wheel(wheelhouse, "silomix", version, ("needed==1.0",))
    if complete:
        write_wheel(wheelhouse, "needed", "1.0")
    build_module().assemble(folder, version)
    return folder


def install(folder: Path, target: Path, python: str = sys.executable) -> tuple[int, str]:
    done = subprocess.run(
        [folder / "install.sh", target],
        capture_output=True,
        text=True,
        check=False,
        # An index that somebody configured must not be asked.
        env=os.environ | {"PYTHON": python, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
    )
    return done.returncode, done.stdout + done.stderr


def installed(target: Path) -> str:
    done = subprocess.run(
        [target / "bin" / "silomix"], capture_output=True, text=True, check=True, env={}
    )
    return done.stdout.strip()


def pretend_installed(target: Path, version: str) -> None:
    """What an earlier installation leaves, without the work."""
    program = target / "releases" / version / "bin" / "silomix"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    (target / "releases" / version / "VERSION").write_text(f"{version}\n")
    (target / "current").symlink_to(f"releases/{version}")
    (target / "bin").mkdir()
    (target / "bin" / "silomix").symlink_to("../current/bin/silomix")


def test_a_bundle_installs_is_replaced_by_a_newer_one_and_refuses_to_go_back(
    tmp_path: Path,
) -> None:
    first, second, target = bundle(tmp_path, "0.9.0"), bundle(tmp_path, "0.10.0"), tmp_path / "in"
    pretend_installed(target, "0.9.0")
    status, said = install(second, target)
    assert status == 0, said
    assert said == f"installed silomix 0.10.0: {target}/bin/silomix\n"
    assert installed(target) == "0.10.0"
    assert (target / "releases" / "0.9.0" / "bin" / "silomix").exists()
    status, said = install(first, target)
    assert status == 1
    assert "0.10.0 is installed and newer than 0.9.0: ledgers and databases" in said
    assert installed(target) == "0.10.0"
    assert install(second, target)[0] == 0  # again: nothing to do


def test_a_changed_file_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    folder, target = bundle(tmp_path, "0.9.0"), tmp_path / "in"
    write_wheel(folder / "wheelhouse", "needed", "1.0", ("more==1",))
    status, said = install(folder, target)
    assert status == 1
    assert "wheelhouse/needed-1.0-py3-none-any.whl: FAILED" in said
    assert not target.exists()


def test_a_wheel_that_the_requirements_do_not_know_is_refused_and_the_old_release_stays(
    tmp_path: Path,
) -> None:
    """Somebody who also wrote new check sums, but not new requirements."""
    folder, target = bundle(tmp_path, "0.10.0"), tmp_path / "in"
    pretend_installed(target, "0.9.0")
    write_wheel(folder / "wheelhouse", "needed", "1.0", ("more==1",))
    (folder / "SHA256SUMS").unlink()
    build_module().write_sums(folder)
    status, said = install(folder, target)
    assert status != 0
    assert "DO NOT MATCH THE HASHES" in said
    assert installed(target) == "0.9.0"


def test_an_incomplete_bundle_is_refused(tmp_path: Path) -> None:
    status, said = install(bundle(tmp_path, "0.9.0", complete=False), tmp_path / "in")
    assert status == 1
    assert "the bundle is not complete: silomix 0.9.0 requires needed" in said
    assert not (tmp_path / "in" / "bin" / "silomix").exists()


def test_another_python_is_refused_in_words(tmp_path: Path) -> None:
    status, said = install(bundle(tmp_path, "0.9.0"), tmp_path / "in", python="/bin/true-not")
    assert status == 1
    assert "is not Python 3.11 with venv; name one: PYTHON=" in said
