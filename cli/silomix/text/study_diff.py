"""What differs between two study files, key by key: nothing that a study can say is left out.

The files are compared as the tables they are, not as the values that we make of them: a key that
this module has never heard of shows too.  Parties and columns are told apart by their names.
"""

import tomllib
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from silomix_protocol.keys import fingerprint

_MOST_OF_A_KIND = 6  # so that many changes of one kind do not hide one of another
_LONGEST_VALUE = 40
_KEYS = (".sign_key", ".node_key")


def changes(before: bytes, after: bytes) -> list[str]:
    """The differences of two valid studies, a line for each, at most so many of a kind."""
    old, new = (dict(_flat(tomllib.loads(each.decode("utf-8")))) for each in (before, after))
    kinds: dict[str, list[str]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) != new.get(key):
            kinds.setdefault(_kind(key), []).append(_line(key, old.get(key), new.get(key)))
    return [line for found in kinds.values() for line in _bounded(found)]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; a path names a table's rows, or else gives their places."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
        for place, row in enumerate(value):
            name = row.get("name", place)
            yield f"{path}[{name}]", "there"
            inner = {key: each for key, each in row.items() if key != "name"}
            yield from _flat(inner, f"{path}[{name}]")
    else:
        yield path, value


def _kind(key: str) -> str:
    """The kind of a change, to show together: a table, or one field in all rows of a table."""
    table, bracket, rest = key.partition("[")
    if bracket:
        return f"{table}{rest.rpartition(']')[2]}"
    return table.partition(".")[0]


def _line(key: str, old: Any, new: Any) -> str:
    if old is None:
        return f"{key}: new" if new == "there" else f"{key}: new, {_shown(key, new)}"
    if new is None:
        return f"{key}: gone"
    return f"{key}: {_shown(key, old)} before, now {_shown(key, new)}"


def _shown(key: str, value: Any) -> str:
    if key.endswith(_KEYS) and isinstance(value, str):
        return f"key {fingerprint(b64decode(value)).hex()[:16]}…"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _bounded(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_OF_A_KIND
    if more <= 0:
        return lines
    return [*lines[:_MOST_OF_A_KIND], f"and {more} more such changes"]
