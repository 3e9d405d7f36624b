"""Text that is filled into lines, or cut to one."""

from textwrap import fill

_WIDTH = 97


def filled(text: str, first: str, others: str, width: int = _WIDTH) -> list[str]:
    """The lines of a text, the first and the others behind their indents."""
    lines = fill(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return lines.split("\n")


def titled(title: str, text: str) -> list[str]:
    """The lines of a text, its title before the first of them."""
    return filled(text, f"{title:<17}", " " * 17)


def short(text: str) -> str:
    """The text, so short that no terminal starts a new line within it."""
    return text if len(text) <= 50 else f"{text[:49]}…"
