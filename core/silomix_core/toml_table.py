"""Strict reading of parsed TOML: every key is known, typed and named in the error if it is not.

Whoever wrote the file may be hostile to whoever reads it on a terminal: what is shown again is
short, printable and without gaps that could pass for a new line.
"""

import re
from collections.abc import Callable, Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from math import isfinite
from typing import TypeVar

Value = TypeVar("Value")
LONGEST_TEXT = 100  # characters of a text that people are shown
# Printable to Python, but drawn as nothing: combining grapheme joiner, Hangul and Khmer fillers,
# blank Braille pattern.  A row of them is a gap as a row of spaces is.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_HOST_PORT = re.compile(r"(?P<host>[0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")
_HOST_LABEL = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0[Xx][0-9A-Fa-f]*")


class InvalidField(ValueError):
    """A file says something that we do not accept; the message names the key."""


class TomlTable:
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

    def lines(self, key: str) -> str:
        """A text that may go over several lines, such as a query."""
        value = self._take(key, str, "a string")
        if not value.strip() or not all(line.isprintable() for line in value.split("\n")):
            raise InvalidField(f"{self._path(key)}: empty, or with control characters")
        return value

    def short_text(self, key: str) -> str:
        """A text that people are shown: one that stays within its line and looks like itself."""
        return _short(self.text(key), self._path(key))

    def short_texts(self, key: str) -> tuple[str, ...]:
        """A list of texts that people are shown, empty if there is none."""
        if not self.has(key):
            return ()
        path = self._path(key)
        return tuple(_short(each, f"{path}[{index}]") for index, each in enumerate(self.texts(key)))

    def address(self, key: str) -> str:
        """host:port, the host being a DNS name, an IPv4 address or an IPv6 address in brackets."""
        value = self.short_text(key)
        if not _is_address(value):
            raise InvalidField(f"{self._path(key)}: {value!r} is not host:port")
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

    def flag(self, key: str, *, default: bool) -> bool:
        return self._take(key, bool, "true or false", default)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key, list, "a list of strings")
        if not all(isinstance(item, str) and item.isprintable() for item in value):
            raise InvalidField(f"{self._path(key)}: expected a list of strings")
        return tuple(value)

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty if there is none."""
        value: list[object] = self._take(key, list, "a list of whole numbers", [])
        numbers = tuple(item for item in value if type(item) is int)
        if len(numbers) < len(value):
            raise InvalidField(f"{self._path(key)}: expected a list of whole numbers")
        return numbers

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """A list of pairs of texts, empty if there is none."""
        value: list[object] = self._take(key, list, "a list of pairs of names", [])
        return tuple(_pair(each, f"{self._path(key)}[{index}]") for index, each in enumerate(value))

    def table(self, key: str) -> "TomlTable":
        return TomlTable(self._take(key, dict, "a table"), self._path(key))

    def texts_by_name(self, key: str) -> dict[str, str]:
        """A table of strings, empty if there is none."""
        if not self.has(key):
            return {}
        inner = self.table(key)
        return {name: inner.text(name) for name in inner.left()}

    def left(self) -> list[str]:
        """The keys that were not taken yet."""
        return list(self._left)

    def tables(self, key: str) -> list["TomlTable"]:
        rows = self._take(key, list, "an array of tables")
        return [TomlTable(row, f"{self._path(key)}[{index}]") for index, row in enumerate(rows)]

    def has(self, key: str) -> bool:
        return key in self._left

    def has_table(self, key: str) -> bool:
        return isinstance(self._left.get(key), dict)

    def choice(self, key: str, options: Iterable[str], default: str | None = None) -> str:
        value, known = self.text(key, default), sorted(options)
        if value not in known:
            raise InvalidField(
                f"{self._path(key)}: {value!r:.100} is not one of {', '.join(known)}"
            )
        return value

    def build(self, make: Callable[[], Value]) -> Value:
        """Call `make`; its ValueError becomes an InvalidField that names this table."""
        try:
            return make()
        except InvalidField:
            raise
        except ValueError as error:
            where = f"{self._where}: " if self._where else ""
            raise InvalidField(f"{where}{error}") from error

    def finish(self) -> None:
        if self._left:
            names = ", ".join(self._path(_printable(key)) for key in sorted(self._left))
            raise InvalidField(f"unknown key: {names:.500}")

    def _take(
        self, key: str, kind: type[Value], described: str, default: Value | None = None
    ) -> Value:
        if key not in self._left:
            if default is None:
                raise InvalidField(f"missing key: {self._path(key)} ({described})")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidField(f"{self._path(key)}: expected {described}, got {value!r:.100}")
        return value

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key


def _short(value: str, path: str) -> str:
    if len(value) > LONGEST_TEXT:
        raise InvalidField(f"{path}: longer than {LONGEST_TEXT} characters")
    if value != value.strip() or "  " in value:
        raise InvalidField(f"{path}: spaces at an end or two in a row are not allowed")
    if not _BLANKS.isdisjoint(value):
        raise InvalidField(f"{path}: invisible characters are not allowed")
    return value


def _pair(value: object, path: str) -> tuple[str, str]:
    match value:
        case [str() as first, str() as second]:
            return first, second
    raise InvalidField(f"{path}: expected a pair of names, got {value!r:.100}")


def split_address(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port of what `TomlTable.address` takes."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_address(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        return False
    return _is_host(match["host"])


def _is_host(host: str) -> bool:
    labels = host.split(".")
    try:
        if host.startswith("["):
            IPv6Address(host[1:-1])
        elif _NUMERIC_LABEL.fullmatch(labels[-1]):  # 127.1 and 0x7f are addresses to a resolver
            IPv4Address(host)
        else:
            return all(_HOST_LABEL.fullmatch(label) for label in labels)
    except AddressValueError:
        return False
    return True


def _printable(key: str) -> str:
    return key if key.isprintable() else ascii(key)
