"""`make bundle`: everything that a machine without network needs, in one folder and one archive.

    silomix-VERSION/wheelhouse/*.whl    silomix and all that it needs, as tested together
    silomix-VERSION/requirements.txt    each with its version and SHA-256
    silomix-VERSION/SHA256SUMS          of every file
    silomix-VERSION/install.sh, systemd/

For machines of this machine's kind (system, processor, Python).  Extras: all but demo and dev.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NOT_FOR_OPERATORS = {"demo", "dev"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist")
    out = parser.parse_args().out
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = out / f"silomix-{project['version']}"
    shutil.rmtree(folder, ignore_errors=True)
    wheelhouse = folder / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    _pip("wheel", "--no-deps", "--wheel-dir", wheelhouse, ROOT)
    (own,) = wheelhouse.glob("silomix-*.whl")
    extras = sorted(set(project["optional-dependencies"]) - _NOT_FOR_OPERATORS)
    wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
    constraints = ("--constraint", ROOT / "constraints.txt")
    _pip("download", "--only-binary=:all:", "--dest", wheelhouse, *constraints, wanted)
    archive = assemble(folder, project["version"])
    print(f"{sha256(archive.read_bytes()).hexdigest()}  {archive}")


def assemble(folder: Path, version: str) -> Path:
    """Complete a folder that has its wheelhouse; the archive beside it."""
    here = Path(__file__).resolve().parent
    shutil.copy(here / "install.sh", folder)
    shutil.copytree(here.parent / "systemd", folder / "systemd")
    (folder / "VERSION").write_text(f"{version}\n", encoding="ascii")
    wheels = sorted((folder / "wheelhouse").iterdir())
    lines = [f"{_requirement(wheel)} --hash=sha256:{_digest(wheel)}\n" for wheel in wheels]
    (folder / "requirements.txt").write_text("".join(lines), encoding="ascii")
    write_sums(folder)
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:  # wheels are packed already
        packed.add(folder, folder.name, filter=_without_owner)
    return archive


def _requirement(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version}"


def write_sums(folder: Path) -> None:
    files: Iterable[Path] = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{_digest(path)}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
