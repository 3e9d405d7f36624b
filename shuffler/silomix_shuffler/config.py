"""A mix's configuration: one TOML file, unknown keys refused.

    name = "mix-1"
    listen = "0.0.0.0:9101"
    studies = ["study.toml"]     # the studies that this mix's operator agreed to serve
    grace_s = 2.0                # how long a silo whose connection broke may take to come back

Relative paths start at the file's folder, which also holds ca.crt, tls.crt, tls.key, sign.key,
seal.key and the state that the mix keeps.
"""

from dataclasses import dataclass
from pathlib import Path

from silomix_core.fields import InvalidField
from silomix_core.study import Study
from silomix_protocol.files import named, read_study, read_table


class InvalidConfig(ValueError):
    """The configuration cannot be used; the message names file and key."""


@dataclass(frozen=True, slots=True)
class MixConfig:
    name: str
    folder: Path
    listen: str
    studies: tuple[Study, ...]
    grace_s: float


def load(path: Path) -> MixConfig:
    with named(path, InvalidConfig):
        table = read_table(path)
        name, listen = table.text("name"), table.text("listen")
        files = table.texts("studies")
        grace_s = table.number("grace_s", 2.0)
        table.finish()
        if grace_s < 0:
            raise InvalidField("grace_s must not be negative")
        if not files:
            raise InvalidField("studies: name at least one study file")
    studies = tuple(_study(path.parent / file, name) for file in files)
    return MixConfig(name, path.parent, listen, studies, grace_s)


def _study(path: Path, name: str) -> Study:
    with named(path, InvalidConfig):
        study = read_study(path)
    if name not in {mix.name for mix in study.mixes}:
        raise InvalidConfig(f"{path}: the mix chain of this study does not name {name!r}")
    return study
