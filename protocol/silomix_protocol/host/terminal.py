"""The one way in which a command says something to its operator's terminal.

What is shown may come from anybody: a study's author, a server, a column of the data, a name of a
file.  A terminal obeys what looks like an order to it (its title, its colours, where it writes
next), so nothing but lines of printable characters ever gets there.
"""

import sys

from silomix_protocol.host.logs import printable


def show(text: object = "", *, error: bool = False) -> None:
    """Print lines, whatever is in them, at once; as an `error` on standard error."""
    print(shown(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


def shown(text: str) -> str:
    """The lines of a text, without anything that a terminal would obey."""
    return "\n".join(map(printable, text.split("\n")))
