"""`make bundle`: everything that a machine without network needs, in one folder and one archive.

    silomix-VERSION/wheelhouse/*.whl    silomix and all that it needs, as tested together
    silomix-VERSION/requirements.txt    each with its version and SHA-256
    silomix-VERSION/sbom.cdx.json       what each is, its licence and what it needs (CycloneDX)
    silomix-VERSION/SHA256SUMS          of every file; SHA256SUMS.sig with `--sign`
    silomix-VERSION/install.sh, systemd/

For machines of this machine's kind (system, processor, Python).  Extras: all but demo and dev.
The same commit on the same kind of machine gives the same bytes.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path

from sbom import sbom

ROOT = Path(__file__).resolve().parents[2]
_EPOCH_S = 315_532_800  # 1980, the first year that every archive format knows


class KeyOfOthers(Exception):
    """The signing key can be read by others than its owner."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="private key in PEM, for openssl")
    arguments = parser.parse_args()
    if arguments.sign:
        try:
            require_private(arguments.sign)
        except (KeyOfOthers, OSError) as refused:
            parser.error(str(refused))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = arguments.out / f"silomix-{project['version']}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(f"{folder.name}.tar.gz").unlink(missing_ok=True)
    wheelhouse = folder / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    # hatchling is here already, by its hash (locks/build.txt).
    _pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheelhouse, ROOT)
    lock = ROOT / "locks" / "operators.txt"
    _pip("download", "--require-hashes", "--only-binary=:all:", "--dest", wheelhouse, "-r", lock)
    complete(folder, project["version"])
    if arguments.sign:
        sign(folder, arguments.sign)
    archive = pack(folder)
    print(f"{_digest(archive)}  {archive}")


def complete(folder: Path, version: str) -> None:
    """Add to a folder that has its wheelhouse whatever else a bundle has."""
    here = Path(__file__).resolve().parent
    shutil.copy(here / "install.sh", folder)
    shutil.copytree(here.parent / "systemd", folder / "systemd")
    (folder / "VERSION").write_text(f"{version}\n", encoding="ascii")
    # Some wheels are for one Python only: for the one that runs this.
    (folder / "PYTHON").write_text("{}.{}\n".format(*sys.version_info[:2]), encoding="ascii")
    components = sbom(folder / "wheelhouse", "silomix")
    (folder / "sbom.cdx.json").write_text(components, encoding="ascii")
    write_requirements(folder)
    write_sums(folder)


def write_requirements(folder: Path) -> None:
    wheels = sorted((folder / "wheelhouse").iterdir())
    lines = [f"{_requirement(wheel)} --hash=sha256:{_digest(wheel)}\n" for wheel in wheels]
    (folder / "requirements.txt").write_text("".join(lines), encoding="ascii")


def _requirement(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version}"


def write_sums(folder: Path) -> None:
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    sums = [f"{_digest(folder / file)}  {file}\n" for file in files if file.name != "SHA256SUMS"]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


def require_private(key: Path) -> None:
    """Refuse a signing key that its owner shares."""
    if key.stat().st_mode & 0o077:
        raise KeyOfOthers(f"others may read or change {key}: chmod 600 {key}, or make another key")


def sign(folder: Path, key: Path) -> None:
    """Sign the list of hashes; the key is read by openssl only."""
    sums = folder / "SHA256SUMS"
    pair = ["-in", str(sums), "-out", f"{sums}.sig"]
    subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", str(key), *pair], check=True)


def pack(folder: Path) -> Path:
    """The archive beside the folder."""
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with (
        archive.open("wb") as file,
        gzip.GzipFile(
            "", "wb", compresslevel=1, fileobj=file, mtime=0
        ) as zipped,  # wheels are packed
        tarfile.open(fileobj=zipped, mode="w") as packed,
    ):
        packed.add(folder, folder.name, filter=_without_origin)
    return archive


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _without_origin(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of who packed it, when, and with which umask."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = _EPOCH_S
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
