"""What a silo's reply to a lease may say: its own words reach no log and no other silo's name."""

from typing import Any

import pytest
from flwr.app import ConfigRecord
from silomix_protocol.host import logs
from silomix_server.silos.leases import _reply


@pytest.mark.parametrize(
    ("said", "ending", "answered"),
    [
        ({"silo": "silo-2", "ending": "done", "answered": "6"}, "done", "6"),
        ({"name": "x", "ending": "refused", "answered": "0"}, "refused", "0"),
        ({"ending": "done\nforged line", "answered": "6"}, "unknown", "6"),
        ({"ending": "x" * 33, "answered": "1" * 10}, "unknown", "unknown"),
        ({}, "unknown", "unknown"),
        ({"a\nb": "c", "ending": "done", "answered": "-1"}, "done", "unknown"),
    ],
)
def test_a_reply_is_an_ending_and_a_number_from_the_silo_that_was_asked(
    said: dict[str, Any], ending: str, answered: str
) -> None:
    reply = _reply("silo-1", ConfigRecord(said))
    assert reply == {"silo": "silo-1", "ending": ending, "answered": answered}
    logs.event("lease_reply", **reply)


def test_a_log_line_is_one_line_whatever_its_keys_and_values_are() -> None:
    line = logs.shown("event", {"a\nb": "c\x1b[2J\nd", "name": "x"})
    assert line.isprintable()
