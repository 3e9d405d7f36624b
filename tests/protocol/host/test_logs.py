"""Logs: one event, one line, whatever stands in its fields."""

import io
import logging
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_protocol.host import logs

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_an_event_is_one_line_with_time_party_name_and_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("mix-1")
    logs.event("round_closed", round=3, reports=41, waited_s=0.123456789)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"{STAMP} mix-1 round_closed round=3 reports=41 waited_s=0\.123457\n", err)


def test_an_event_without_fields_is_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.event("mix_stopped")
    assert re.fullmatch(rf"{STAMP} mix-1 mix_stopped\n", capsys.readouterr().err)


def test_every_event_and_warning_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.event("one")
    logs.warning("two", code="UNAVAILABLE")
    logs.event("three")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["one", "two", "three"]


def test_a_newline_in_a_field_does_not_start_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.warning("batch_aborted", reason="x\n2026-01-01T00:00:00.000Z mix-1 batch_released round=1")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith('reason="x 2026-01-01T00:00:00.000Z mix-1 batch_released round=1"')


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.sampled_from("ab%={}\n \\'"), max_size=20))
def test_no_field_breaks_the_line_or_is_taken_for_a_format(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    logs.configure("mix-1")
    logs.event("named", field=text)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert text.replace("\n", " ") in err


def test_text_with_spaces_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.event("named", short="word", long="two words")
    assert capsys.readouterr().err.endswith(' named short=word long="two words"\n')


def test_configuring_again_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.configure("mix-2")
    logs.event("named")
    assert re.fullmatch(rf"{STAMP} mix-2 named\n", capsys.readouterr().err)


@pytest.mark.parametrize("char", ["\r", "\x0b", "\x0c", "\x1b", "\x85", "\u2028", "\0", "\x08"])
def test_no_control_character_reaches_the_log(
    capsys: pytest.CaptureFixture[str], char: str
) -> None:
    """Each of these starts a line, or rewrites one, for some reader of the log."""
    logs.configure("mix-1")
    logs.event("named", field=f"one{char}two")
    assert capsys.readouterr().err.endswith(' named field="one two"\n')


def test_a_field_cannot_end_its_own_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    logs.event("named", reason='x" round="7')
    assert capsys.readouterr().err.count('"') == 2


def test_each_event_has_its_own_moment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("mix-1")
    for moment in (0.0, 0.9996, 1.25, 86_400.5, 1.0):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        logs.event("named")
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.999Z",
        "1970-01-01T00:00:01.250Z",
        "1970-01-02T00:00:00.500Z",
        "1970-01-01T00:00:01.000Z",
    ]


def test_lines_of_many_threads_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("mix-1")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: logs.event("named", number=number), range(2000)))
    lines = capsys.readouterr().err.splitlines()
    assert sorted(int(line.partition(" mix-1 named number=")[2]) for line in lines) == [
        *range(2000)
    ]


class FullLog(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("log", [FullLog(), None], ids=["full", "none"])
def test_a_log_that_cannot_be_written_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO | None
) -> None:
    logs.configure("mix-1")
    monkeypatch.setattr(sys, "stderr", log)
    heard: list[str] = []
    with logs.heard_by(lambda name, _, *, warning: heard.append(f"{name} {warning}")):
        logs.event("one")
        logs.warning("two")
    assert heard == ["one False", "two True"]


def test_in_somebody_elses_program_logging_has_the_events(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, logger="silomix")
    logs.event("one", round=1)
    logs.warning("two")
    assert caplog.record_tuples == [
        ("silomix", logging.INFO, "one round=1"),
        ("silomix", logging.WARNING, "two"),
    ]
    assert capsys.readouterr().err == ""


# What others can cause ---------------------------------------------------------------------------


def warned(times: int, **fields: object) -> None:
    for _ in range(times):
        logs.warning("query_refused", **fields)


def names(text: str) -> list[str]:
    return [line.split()[2] for line in text.splitlines()]


def test_of_a_warning_that_never_ends_the_first_are_told_and_the_others_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("silo-1")
    warned(2500)
    logs.warning("lease_refused")  # another name is not held back
    assert names(capsys.readouterr().err) == ["query_refused"] * 100 + ["lease_refused"]
    logs.settle()
    told = capsys.readouterr().err
    assert names(told) == ["lines_left_out"]
    assert told.rstrip().endswith("lines_left_out name=query_refused times=2400")
    logs.settle()
    assert capsys.readouterr().err == ""


def test_what_was_left_out_is_told_after_a_minute_with_whatever_comes_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(logs, "_left_out", logs._LeftOut(lambda: now))
    logs.configure("silo-1")
    warned(103)
    logs.event("round_charged")
    assert "lines_left_out" not in capsys.readouterr().err
    now += 59.0
    logs.event("round_charged")
    assert "lines_left_out" not in capsys.readouterr().err
    now += 1.5
    logs.event("round_charged")
    assert names(capsys.readouterr().err) == ["lines_left_out", "round_charged"]
    warned(3)  # a minute has passed: one of them is told
    assert names(capsys.readouterr().err) == ["query_refused"]


def test_what_a_party_does_itself_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("silo-1")
    for number in range(1000):
        logs.event("round_charged", round=number)
        logs.paced("rounds_connected")
    told = names(capsys.readouterr().err)
    assert told.count("round_charged") == 1000
    assert told.count("rounds_connected") == 100


def test_whoever_hears_events_hears_those_that_are_told_and_the_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[str] = []

    def hear(name: str, fields: dict[str, object], *, warning: bool) -> None:
        heard.append(f"{name} {fields.get('times', '')}".strip())

    logs.configure("silo-1")
    with logs.heard_by(hear):
        warned(150)
        logs.settle()
    assert heard == ["query_refused"] * 100 + ["lines_left_out 50"]
    assert capsys.readouterr().err.count("\n") == 101


def test_a_field_is_cut_and_so_is_what_somebody_else_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "\U0001f4a3" * 260_000
    heard: list[object] = []
    logs.configure("silo-1")
    with logs.heard_by(lambda name, fields, warning: heard.append(fields["reason"])):
        logs.warning("report_refused", reason=ValueError(long))
    assert len(capsys.readouterr().err) < 1100
    assert [len(str(each)) for each in heard] == [1000]
    assert logs.foreign(long) == long[:299] + "…"
    assert logs.foreign("a\x1b[2J\nb") == "a [2J b"
    assert logs.foreign(None) == "None"
