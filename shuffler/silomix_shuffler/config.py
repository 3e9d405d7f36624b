"""A mix's configuration: one TOML file, unknown keys refused.

    name = "mix-1"
    listen = "0.0.0.0:9101"
    studies = ["study.toml"]            # the studies that this mix's operator agreed to serve
    metrics_listen = "127.0.0.1:9201"   # optional: /metrics for Prometheus and /health
    grace_s = 2.0                       # how long a silo whose connection broke may take to return
    inspected_listen = "0.0.0.0:9102"   # optional, first mix: for silos behind a proxy that looks
                                        # into TLS (docs/network.md)

    [limits]                            # optional, as is every key of it
    open_rounds = 4                     # of one study at once
    disk_mb = 20000                     # that the bodies of all batches may take together
    free_disk_mb = 200                  # that must stay free
    report_s = 120.0                    # from a report's first byte to its last
    retention_s = 3600.0                # how long a finished round is kept for questions about it

Relative paths start at the file's folder, which also holds ca.crt, tls.crt, tls.key, sign.key
and, in state/, everything that the mix keeps.
"""

from dataclasses import dataclass
from pathlib import Path

from silomix_core.study.study import Study
from silomix_core.toml_table import InvalidField, TomlTable
from silomix_protocol.host.operator_files import named, read_own_study, read_own_table
from silomix_protocol.host.ownership import check_state
from silomix_protocol.host.state_folder import state_of

_MB = 10**6


class InvalidMixConfig(ValueError):
    """The configuration cannot be used; the message names file and key."""


@dataclass(frozen=True, slots=True)
class Limits:
    open_rounds: int = 4
    disk_bytes: int = 20_000 * _MB
    free_disk_bytes: int = 200 * _MB
    report_s: float = 120.0
    retention_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class MixConfig:
    name: str
    folder: Path
    listen: str
    studies: tuple[Study, ...]
    grace_s: float
    metrics_listen: str | None = None
    limits: Limits = Limits()
    inspected_listen: str | None = None

    @property
    def state(self) -> Path:
        return state_of(self.folder)


def load(path: Path) -> MixConfig:
    with named(path, InvalidMixConfig):
        table = read_own_table(path)
        check_state(state_of(path.parent))
        name, listen = table.text("name"), table.text("listen")
        files = table.texts("studies")
        grace_s = table.number("grace_s", 2.0)
        metrics_listen = table.address("metrics_listen") if table.has("metrics_listen") else None
        inspected = table.address("inspected_listen") if table.has("inspected_listen") else None
        limits = _limits(table.table("limits")) if table.has("limits") else Limits()
        table.finish()
        if grace_s < 0:
            raise InvalidField("grace_s must not be negative")
        if not files:
            raise InvalidField("studies: name at least one study file")
    studies = tuple(_study(path.parent / file, name) for file in files)
    return MixConfig(name, path.parent, listen, studies, grace_s, metrics_listen, limits, inspected)


def _limits(table: TomlTable) -> Limits:
    limits = Limits(
        open_rounds=table.whole("open_rounds", 4),
        disk_bytes=table.whole("disk_mb", 20_000) * _MB,
        free_disk_bytes=table.whole("free_disk_mb", 200) * _MB,
        report_s=table.number("report_s", 120.0),
        retention_s=table.number("retention_s", 3600.0),
    )
    table.finish()
    if limits.open_rounds < 1 or limits.disk_bytes <= 0 or limits.free_disk_bytes < 0:
        raise InvalidField(
            "limits: open_rounds and disk_mb must be above 0, free_disk_mb not below 0"
        )
    if limits.report_s <= 0 or limits.retention_s <= 0:
        raise InvalidField("limits: report_s and retention_s must be above 0")
    return limits


def _study(path: Path, name: str) -> Study:
    with named(path, InvalidMixConfig):
        study = read_own_study(path)
    if name not in {mix.name for mix in study.mixes}:
        raise InvalidMixConfig(f"{path}: the mix chain of this study does not name {name!r}")
    return study
