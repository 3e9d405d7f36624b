"""Python's garbage collector in a party that runs for months: seldom, and over what is new only.

What a round makes is let go of at once, without the collector; looking through all that a process
made at its start takes a twentieth of a round's time.
"""

import gc

_YOUNG = 20_000  # new objects between two collections of the youngest


def seldom() -> None:
    """Make collections rare; called before serving, as objects made by now are never scanned."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
