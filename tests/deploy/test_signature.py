"""The bundle's list of hashes, signed and checked with openssl as docs/operations.md says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.bundles import BUNDLE, build_module, bundle, install

OPERATIONS = BUNDLE.parents[1] / "docs" / "operations.md"


def documented(heading: str) -> str:
    """The commands of the first block below a heading of the documentation."""
    _, below = OPERATIONS.read_text(encoding="utf-8").split(f"### {heading}\n")
    block = re.search(r"```sh\n(.*?)```", below, re.DOTALL)
    assert block is not None
    return block[1]


def shell(commands: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A folder with release.key and release.pem, and a bundle signed with them."""
    folder = bundle(tmp_path, "0.1.0")
    status, said = shell(documented("Make a signing key"), tmp_path)
    assert status == 0, said
    build_module().sign(folder, tmp_path / "release.key")
    return tmp_path


def checked(place: Path) -> tuple[int, str]:
    return shell(documented("Check a bundle"), place)


def test_a_signed_bundle_passes_the_documented_commands(signed: Path) -> None:
    status, said = checked(signed)
    assert status == 0, said
    assert "Signature Verified Successfully" in said
    assert "wheelhouse/needed-1.0-py3-none-any.whl: OK" in said
    assert "sbom.cdx.json: OK" in said


def test_a_signature_made_apart_with_the_documented_command_is_the_same(signed: Path) -> None:
    """Ed25519 has one signature of a key and a text."""
    signature = signed / "silomix-0.1.0" / "SHA256SUMS.sig"
    made_by_build = signature.read_bytes()
    signature.unlink()
    shutil.copy(signed / "silomix-0.1.0" / "SHA256SUMS", signed)
    status, said = shell(documented("Sign a bundle elsewhere"), signed)
    assert status == 0, said
    assert (signed / "SHA256SUMS.sig").read_bytes() == made_by_build


@pytest.mark.parametrize(
    "file",
    [
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "sbom.cdx.json",
        "install.sh",
        "wheelhouse/needed-1.0-py3-none-any.whl",
    ],
)
def test_one_changed_byte_fails_both_checks(signed: Path, file: str) -> None:
    path = signed / "silomix-0.1.0" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    status, said = checked(signed)
    assert status != 0
    assert ("FAILED" in said) == (not file.startswith("SHA256SUMS"))
    if file != "install.sh":  # whoever changes that decides what it checks
        status, _ = install(
            signed / "silomix-0.1.0", signed / "in", "--key", signed / "release.pem"
        )
        assert status == 1
        assert not (signed / "in").exists()


def test_another_key_fails_both_checks(signed: Path) -> None:
    for name in ("release.key", "release.pem"):
        (signed / name).unlink()
    shell(documented("Make a signing key"), signed)
    status, said = checked(signed)
    assert status != 0
    assert "Signature Verification Failure" in said
    status, said = install(signed / "silomix-0.1.0", signed / "in", "--key", signed / "release.pem")
    assert status == 1
    assert "SHA256SUMS was not signed with" in said
    assert not (signed / "in").exists()


def test_a_bundle_without_signature_is_refused_where_a_key_is_given(signed: Path) -> None:
    (signed / "silomix-0.1.0" / "SHA256SUMS.sig").unlink()
    status, said = install(signed / "silomix-0.1.0", signed / "in", "--key", signed / "release.pem")
    assert status == 1
    assert "the bundle has no signature" in said


def test_a_signed_bundle_is_installed(signed: Path) -> None:
    status, said = install(signed / "silomix-0.1.0", signed / "in", "--key", signed / "release.pem")
    assert status == 0, said
    assert said.startswith("Signature Verified Successfully\ninstalled silomix 0.1.0:")


def test_a_key_that_others_may_read_signs_nothing(signed: Path, tmp_path: Path) -> None:
    key = signed / "release.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o640)
    done = subprocess.run(
        [sys.executable, BUNDLE / "build.py", tmp_path / "out", "--sign", key],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"others may read or change {key}: chmod 600" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_key_is_not_in_the_bundle(signed: Path) -> None:
    key = (signed / "release.key").read_bytes().splitlines()[1]
    for path in (signed / "silomix-0.1.0").rglob("*"):
        assert path.is_dir() or key not in path.read_bytes()
