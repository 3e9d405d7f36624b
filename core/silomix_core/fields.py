"""Strict reading of parsed TOML: every key is known, typed and named in the error if it is not."""

from collections.abc import Callable, Iterable
from math import isfinite
from typing import TypeVar

Value = TypeVar("Value")


class InvalidField(ValueError):
    """A file says something that we do not accept; the message names the key."""


class Table:
    """One TOML table being read: take every expected key, then `finish`."""

    def __init__(self, data: object, where: str = "") -> None:
        if not isinstance(data, dict):
            raise InvalidField(f"{where or 'the file'}: expected a table")
        self._left = dict(data)
        self._where = where

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, str, "a string", default)
        if not value.isprintable():  # a terminal would obey control characters
            raise InvalidField(f"{self._path(key)}: control characters are not allowed")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        return self._take(key, int, "a whole number", default)

    def number(self, key: str, default: float | None = None) -> float:
        if type(self._left.get(key)) is int:
            whole = self.whole(key)
            if abs(whole) > 2**1000:
                raise InvalidField(f"{self._path(key)}: expected a finite number")
            return float(whole)
        value = self._take(key, float, "a number", default)
        if not isfinite(value):
            raise InvalidField(f"{self._path(key)}: expected a finite number")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key, list, "a list of strings")
        if not all(isinstance(item, str) and item.isprintable() for item in value):
            raise InvalidField(f"{self._path(key)}: expected a list of strings")
        return tuple(value)

    def table(self, key: str) -> "Table":
        return Table(self._take(key, dict, "a table"), self._path(key))

    def tables(self, key: str) -> list["Table"]:
        rows = self._take(key, list, "an array of tables")
        return [Table(row, f"{self._path(key)}[{index}]") for index, row in enumerate(rows)]

    def has(self, key: str) -> bool:
        return key in self._left

    def choice(self, key: str, options: Iterable[str], default: str | None = None) -> str:
        value, known = self.text(key, default), sorted(options)
        if value not in known:
            raise InvalidField(f"{self._path(key)}: {value!r} is not one of {', '.join(known)}")
        return value

    def build(self, make: Callable[[], Value]) -> Value:
        """`make()`, its ValueError renamed to this table."""
        try:
            return make()
        except InvalidField:
            raise
        except ValueError as error:
            where = f"{self._where}: " if self._where else ""
            raise InvalidField(f"{where}{error}") from error

    def finish(self) -> None:
        if self._left:
            names = ", ".join(self._path(key) for key in sorted(self._left))
            raise InvalidField(f"unknown key: {names}")

    def _take(
        self, key: str, kind: type[Value], described: str, default: Value | None = None
    ) -> Value:
        if key not in self._left:
            if default is None:
                raise InvalidField(f"missing key: {self._path(key)} ({described})")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidField(f"{self._path(key)}: expected {described}, got {value!r}")
        return value

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key
