"""The offline bundle: installs what was bundled and nothing else, keeps the release before it.

With small wheels of our own in place of the product and all that it needs; `make bundle` gives the
real ones.
"""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from support.bundles import build_module, bundle, install, write_wheel


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
    components = target / "current" / "sbom.cdx.json"
    assert components.read_bytes() == (second / "sbom.cdx.json").read_bytes()
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
    build_module().write_sums(folder)
    status, said = install(folder, target)
    assert status != 0
    assert "DO NOT MATCH THE HASHES" in said
    assert installed(target) == "0.9.0"


def test_an_incomplete_bundle_is_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "0.9.0")
    (folder / "wheelhouse" / "needed-1.0-py3-none-any.whl").unlink()
    build_module().write_requirements(folder)
    build_module().write_sums(folder)
    status, said = install(folder, tmp_path / "in")
    assert status == 1
    assert "the bundle is not complete: silomix 0.9.0 requires needed" in said
    assert not (tmp_path / "in" / "bin" / "silomix").exists()


def test_another_python_is_refused_in_words(tmp_path: Path) -> None:
    status, said = install(bundle(tmp_path, "0.9.0"), tmp_path / "in", python="/bin/true-not")
    assert status == 1
    wanted = "{}.{}".format(*sys.version_info[:2])
    assert f"is not Python {wanted} with venv; name one: PYTHON=/path/to/python{wanted}" in said


def test_a_bundle_made_with_another_python_is_refused(tmp_path: Path) -> None:
    """Its wheels would not fit, or not be found."""
    folder = bundle(tmp_path, "0.9.0")
    (folder / "PYTHON").write_text("3.7\n")
    build_module().write_sums(folder)
    status, said = install(folder, tmp_path / "in")
    assert status == 1
    assert "is not Python 3.7 with venv" in said
    assert not (tmp_path / "in").exists()


def test_an_added_file_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    """The list of hashes holds, and one more unit lies beside those that root installs."""
    folder, target = bundle(tmp_path, "0.9.0"), tmp_path / "in"
    (folder / "systemd" / "system" / "more.service").write_text("[Service]\n")
    status, said = install(folder, target)
    assert status == 1
    assert "there are files that are not in SHA256SUMS" in said
    assert not target.exists()


def test_the_list_of_components_is_cyclonedx_with_hashes_licences_and_what_needs_what(
    tmp_path: Path,
) -> None:
    from cyclonedx.schema import SchemaVersion  # takes seconds, wherever tests are looked for
    from cyclonedx.validation.json import JsonStrictValidator

    folder = bundle(tmp_path, "0.9.0")
    text = (folder / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)
    own, (more, needed, quicker) = components["metadata"]["component"], components["components"]
    assert (own["name"], own["version"], own["purl"]) == (
        "silomix",
        "0.9.0",
        "pkg:generic/silomix@0.9.0",
    )
    assert (quicker["name"], quicker["purl"]) == ("quick-er", "pkg:pypi/quick-er@2.0")
    for each in (own, more, needed, quicker):
        path = folder / each["externalReferences"][0]["url"]
        assert each["hashes"] == [
            {"alg": "SHA-256", "content": sha256(path.read_bytes()).hexdigest()}
        ]
    assert [each.get("licenses") for each in (own, more, needed, quicker)] == [
        [{"expression": "Apache-2.0"}],
        None,
        [{"license": {"name": "MIT License"}}],
        [{"license": {"name": "3-clause BSD"}}],
    ]
    assert {each["ref"]: each["dependsOn"] for each in components["dependencies"]} == {
        "silomix": ["more", "needed"],
        "needed": ["quick-er"],
        "more": [],
        "quick-er": [],
    }


def test_a_wheel_that_is_missing_or_that_nobody_needs_is_not_bundled(tmp_path: Path) -> None:
    build = build_module()
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    write_wheel(wheelhouse, "silomix", "0.9.0", ("needed==1.0",))
    with pytest.raises(Exception, match=r"silomix needs needed==1\.0, which is not there"):
        build.sbom(wheelhouse, "silomix")
    write_wheel(wheelhouse, "needed", "1.0")
    write_wheel(wheelhouse, "stray", "1.0")
    with pytest.raises(Exception, match="nobody needs stray"):
        build.sbom(wheelhouse, "silomix")


def test_the_same_wheels_give_the_same_archive(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "first", "0.9.0")
    other = tmp_path / "second" / folder.name
    (other / "wheelhouse").mkdir(parents=True)
    for wheel in sorted((folder / "wheelhouse").iterdir(), reverse=True):
        (other / "wheelhouse" / wheel.name).write_bytes(wheel.read_bytes())
        os.utime(other / "wheelhouse" / wheel.name, (1e9, 1e9))
        (other / "wheelhouse" / wheel.name).chmod(0o600)
    build = build_module()
    build.complete(other, "0.9.0")
    assert build.pack(folder).read_bytes() == build.pack(other).read_bytes()
