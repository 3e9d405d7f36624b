"""locks/: each has what pyproject.toml asks for and all that this needs, by hash, and nothing else.

Without network: what a package needs is read from the installed one, which came from the locks.
"""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
# The roots of each lock.
LOCKS = {
    "build": PYPROJECT["build-system"]["requires"],
    "operators": [f"silomix[{','.join(sorted(EXTRAS.keys() - {'demo', 'dev'}))}]"],
    "demo": ["silomix[demo]"],
    "dev": ["silomix[dev]"],
}
ENTRY = re.compile(r"(\S+==[^;\\]+?)(?: ; ([^\\]+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def entries(lock: str) -> dict[str, tuple[Requirement, str]]:
    """Each package of a lock, with its hashes; other lines are comments."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text(encoding="ascii")
    assert all(line.startswith("#") for line in ENTRY.sub("", text).splitlines())
    pins = {}
    for pin, marker, hashes in ENTRY.findall(text):
        requirement = Requirement(f"{pin} ; {marker}" if marker else pin)
        pins[canonicalize_name(requirement.name)] = requirement, hashes
    return pins


def needs(requirement: Requirement) -> list[Requirement]:
    """What a package needs with the extras that are asked for, here."""
    if requirement.name == PROJECT["name"]:  # the installed one may be of an older pyproject.toml
        lines = [
            *PROJECT["dependencies"],
            *(line for each in requirement.extras for line in EXTRAS[each]),
        ]
    else:
        lines = distribution(requirement.name).requires or []
    extras = ("", *requirement.extras)
    return [
        need
        for need in map(Requirement, lines)
        if need.marker is None or any(need.marker.evaluate({"extra": each}) for each in extras)
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_all_that_pyproject_asks_for_and_nothing_else(lock: str) -> None:
    pins = entries(lock)
    reached: set[str] = set()
    pending = [Requirement(root) for root in LOCKS[lock]]
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = canonicalize_name(requirement.name)
        if name != PROJECT["name"]:
            assert name in pins, f"{requirement} is not in locks/{lock}.txt: make lock"
            (version,) = (each.version for each in pins[name][0].specifier)
            assert requirement.specifier.contains(version, prereleases=True), (
                f"locks/{lock}.txt has {name} {version}, wanted is {requirement}: make lock"
            )
            reached.add(name)
        pending += needs(requirement)
    here = {name for name, (pin, _) in pins.items() if pin.marker is None or pin.marker.evaluate()}
    assert here == reached, f"make lock: nobody needs {here - reached} of locks/{lock}.txt"


def test_what_is_installed_is_what_is_locked() -> None:
    for lock in ("build", "dev"):
        for pin, _ in entries(lock).values():
            if pin.marker is None or pin.marker.evaluate():
                assert pin.specifier.contains(distribution(pin.name).version, prereleases=True), (
                    f"{pin} is locked, {distribution(pin.name).version} installed: make .venv/.dev"
                )


@pytest.mark.parametrize("lock", ["build", "operators", "demo"])
def test_the_locks_agree(lock: str) -> None:
    """What runs is what was tested: the same files, by their hashes."""
    tested = entries("dev")
    for name, (pin, hashes) in entries(lock).items():
        if lock != "build" or name in tested:
            assert (pin.specifier, hashes) == (tested[name][0].specifier, tested[name][1])
