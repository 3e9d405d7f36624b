"""Where a database is: an address that may hold a password, and never shows it.

It comes from a file that only its owner can read, from an environment variable, or, if there is
no password in it, from silo.toml itself.  Nothing that is made of it is shown or logged but the
kind of database and where the address came from.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from silomix_core.toml_table import InvalidField, TomlTable

from silomix_client.errors import InvalidSiloConfig

if TYPE_CHECKING:
    from sqlalchemy import URL

_EXAMPLE = "postgresql://reader:PASSWORD@db.example:5432/clinic"
_KEYS = ("url", "url_file", "url_env")
_KINDS = ("duckdb", "postgresql", "sqlite")
_FEWEST_SCRUBBED = 3  # of the settings in an address: shorter texts occur by chance


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """One of three ways to say where a database is; the address itself is read when needed."""

    folder: Path
    key: str
    value: str

    @property
    def description(self) -> str:
        if self.key == "url":
            return self.value
        return str(self.folder / self.value) if self.key == "url_file" else f"${self.value}"

    def parsed(self) -> "URL":
        """Read the address and refuse what is none, or of a database that cannot be read."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        raw = self._read()
        try:
            if raw.count("@") > 1:  # the rest of a password would be the host
                raise ValueError
            url = make_url(raw)
        except (ValueError, ArgumentError):  # their texts may show part of the password
            raise InvalidSiloConfig(
                f"{self.description}: not the address of a database, such as {_EXAMPLE}; in a "
                "password @ is written %40, / is %2F, : is %3A and % is %25"
            ) from None
        if url.get_backend_name() not in _KINDS:
            raise InvalidSiloConfig(
                f"{self.description}: databases of this kind are not supported; use one of "
                f"{', '.join(_KINDS)}"
            )
        return url

    def scrubbed(self, text: str) -> str:
        """A driver's message without anything of the password in it."""
        try:
            url, raw = self.parsed(), self._read()
        except InvalidSiloConfig:
            return "the address cannot be read"
        secrets = [raw, url.password or "", quote(url.password or "", safe="")]
        secrets += [text for value in url.query.values() for text in _texts(value)]
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text

    def _read(self) -> str:
        if self.key == "url":
            return self.value
        if self.key == "url_env":
            if not (found := os.environ.get(self.value, "").strip()):
                raise InvalidSiloConfig(f"the environment variable {self.value} is not set")
            return found
        return _secret_line(self.folder / self.value)


def read_database_url(table: TomlTable, folder: Path) -> DatabaseUrl:
    """Read where a database is, from the one key of url, url_file and url_env that is there."""
    keys = [key for key in _KEYS if table.has(key)]
    if len(keys) != 1:
        raise InvalidField(
            "data: say where the database is by one of url_file (a file with its address, mode "
            "600), url_env (an environment variable) or url (an address without a password)"
        )
    value = table.text(keys[0])
    if keys[0] == "url" and _has_secret(value):
        raise InvalidField(
            "data.url: an address with a password does not belong into this file; put it into "
            "one of its own, of mode 600, and name that by url_file"
        )
    return DatabaseUrl(folder, keys[0], value)


def _has_secret(url: str) -> bool:
    """Whether an address may hold a password.

    Whatever stands before the last @ may be one with signs that should be escaped.
    """
    before, _, _ = url.partition("://")[2].rpartition("@")
    return ":" in before or "pass" in url.partition("?")[2].lower()


def _secret_line(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise InvalidSiloConfig(f"{path}: readable by others; run: chmod 600 {path}")
        content = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidSiloConfig(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidSiloConfig(f"{path}: not a text with the address of a database") from None
    if not content or len(content.splitlines()) > 1:
        raise InvalidSiloConfig(f"{path}: expected one line, the address of a database")
    return content


def _texts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    return tuple(each for each in found if len(each) >= _FEWEST_SCRUBBED)
