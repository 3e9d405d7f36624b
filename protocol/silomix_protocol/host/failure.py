"""Problems that a user can act on: one line and exit status 1 instead of a traceback."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


class Failure(Exception):
    """Something went wrong that the user can act on; printed without a traceback."""


@contextmanager
def failures() -> Iterator[None]:
    """Turn our own errors and the machine's into a `Failure`; a bug keeps its traceback."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has left: click ends without a word
        raise
    except (OSError, sqlite3.Error) as error:
        raise Failure(_sentence(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("silomix") and not isinstance(error, Failure):
            raise Failure(str(error)) from error
        raise


def _sentence(error: OSError | sqlite3.Error) -> str:
    """The sentence that says what is wrong, the file's name first if it is about a file."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
