"""Reading the files that an operator writes: what is wrong with one is said with its name."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_core.fields import InvalidField, Table
from silomix_core.study import InvalidStudy, Study


@contextmanager
def named(path: Path, error: type[Exception]) -> Iterator[None]:
    """Whatever is wrong with the file at `path` becomes `error`, which says where."""
    try:
        yield
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidField, InvalidStudy) as problem:
        raise error(f"{path}: {problem}") from problem


def read_table(path: Path) -> Table:
    return Table(tomllib.loads(path.read_text(encoding="utf-8")))


def read_study(path: Path) -> Study:
    return Study.parse(path.read_bytes())
