"""A bundle's list of components (SBOM) as CycloneDX 1.6 JSON, read from its wheels alone.

Every wheel with its version, package URL, SHA-256, licence as its metadata states it, and what it
needs of the others on this kind of machine.  The same wheels give the same bytes: no time, no
serial number.  Native libraries inside a wheel are in the wheel's own list where it brings one
(PEP 770), which is named.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_FOR_OPERATORS = {"demo", "dev"}
"""Extras of ours that no bundle has."""

Json = dict[str, object]


class IncompleteWheelhouse(Exception):
    """A wheel needs another that is not there, or nobody needs one that is."""


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    path: Path
    distribution: PathDistribution
    lists: tuple[str, ...]
    """Names of the wheel's own SBOMs, inside of it."""

    @classmethod
    def read(cls, path: Path) -> "Wheel":
        with ZipFile(path) as packed:
            names = packed.namelist()
        (info,) = {top for name in names if (top := name.split("/")[0]).endswith(".dist-info")}
        distribution = PathDistribution(ZipPath(path, f"{info}/"))
        lists = tuple(sorted(name for name in names if name.startswith(f"{info}/sboms/")))
        return cls(canonicalize_name(distribution.metadata["Name"]), path, distribution, lists)

    def needs(self, extras: Iterable[str]) -> Iterator[Requirement]:
        """What it requires on this machine, with these extras."""
        for line in self.distribution.requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
                yield requirement


def sbom(wheelhouse: Path, main: str) -> str:
    """The components of a wheelhouse, `main` being the application that needs the others."""
    wheels = {wheel.name: wheel for wheel in map(Wheel.read, sorted(wheelhouse.iterdir()))}
    offered = wheels[main].distribution.metadata.get_all("Provides-Extra") or []
    needs = _graph(wheels, main, frozenset(offered) - NOT_FOR_OPERATORS)
    own = wheels.pop(main)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(own, "application", "generic")},
        "components": [_component(wheels[name], "library", "pypi") for name in sorted(wheels)],
        "dependencies": [
            {"ref": name, "dependsOn": sorted(others)} for name, others in sorted(needs.items())
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _graph(wheels: dict[str, Wheel], main: str, extras: frozenset[str]) -> dict[str, set[str]]:
    """The wheels that each wheel needs, from `main` on."""
    needs: dict[str, set[str]] = {}
    pending, seen = [(main, extras)], set()
    while pending:
        name, wanted = pending.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for requirement in wheels[name].needs(wanted):
            other = canonicalize_name(requirement.name)
            if other not in wheels:
                raise IncompleteWheelhouse(f"{name} needs {requirement}, which is not there")
            needs.setdefault(name, set()).add(other)
            pending.append((other, frozenset(requirement.extras)))
        needs.setdefault(name, set())
    if idle := wheels.keys() - needs.keys():
        raise IncompleteWheelhouse(f"nobody needs {', '.join(sorted(idle))}")
    return needs


def _component(wheel: Wheel, kind: str, registry: str) -> Json:
    version = wheel.distribution.version
    file = f"{wheel.path.parent.name}/{wheel.path.name}"
    component: Json = {
        "type": kind,
        "bom-ref": wheel.name,
        "name": wheel.name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256(wheel.path.read_bytes()).hexdigest()}],
        "purl": f"pkg:{registry}/{wheel.name}@{version.replace('+', '%2B')}",
        "externalReferences": [
            {"type": "distribution", "url": file},
            *({"type": "bom", "url": f"{file}#{name}"} for name in wheel.lists),
        ],
    }
    if licenses := _licenses(wheel.distribution):
        component["licenses"] = licenses
    return component


def _licenses(distribution: PathDistribution) -> list[Json]:
    """What the metadata says: an SPDX expression, else classifiers, else a line of its own."""
    metadata = distribution.metadata
    if expressions := metadata.get_all("License-Expression"):
        return [{"expression": expressions[0]}]
    classifiers = metadata.get_all("Classifier") or []
    names = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License :: ")]
    if not names:
        texts = [each.strip() for each in metadata.get_all("License") or []]
        names = [text for text in texts if text and "\n" not in text]  # not a whole licence
    return [{"license": {"name": name}} for name in names]
