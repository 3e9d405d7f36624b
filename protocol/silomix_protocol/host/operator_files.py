"""Reading the files that an operator writes: every error names the file."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy, Study
from silomix_core.toml_table import InvalidField, TomlTable

from silomix_protocol.host.ownership import OpenToOthers, read_own

_WRONG = (
    tomllib.TOMLDecodeError,
    UnicodeDecodeError,
    InvalidField,
    InvalidStudy,
    CalibrationImpossible,
)


@contextmanager
def named(path: Path, error: type[Exception]) -> Iterator[None]:
    """Turn whatever is wrong with the file at `path` into `error`, which names the file."""
    try:
        yield
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from problem
    except _WRONG as problem:
        raise error(f"{path}: {problem}") from problem
    except OpenToOthers as problem:  # it says itself which file or folder
        raise error(str(problem)) from problem


def read_table(path: Path) -> TomlTable:
    return TomlTable(tomllib.loads(path.read_text(encoding="utf-8")))


def read_own_table(path: Path) -> TomlTable:
    """Read a party's own configuration, or refuse a file that others could change."""
    return TomlTable(tomllib.loads(read_own(path).decode("utf-8")))


def read_study(path: Path) -> Study:
    return parse_study(path.read_bytes())


def read_own_study(path: Path) -> Study:
    """Read a study whose keys a party trusts, or refuse a file that others could change."""
    return parse_study(read_own(path))
