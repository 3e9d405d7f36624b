"""A text is a date as a whole, or it is none."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_client.data.clinical.omop import _whole
from silomix_client.data.dates import fhir_date, fhir_time, text_time

DAYS = st.dates(min_value=date(1000, 1, 1))


@given(DAYS)
def test_every_day_is_read_in_each_of_its_forms(day: date) -> None:
    text = day.isoformat()
    assert fhir_date(text) == text_time(text).date() == fhir_time(text).date() == day
    assert fhir_date(text[:7]) == day.replace(day=1)
    assert fhir_date(text[:4]) == day.replace(month=1, day=1)


@given(DAYS, st.text(min_size=1))
def test_nothing_may_stand_before_or_behind_a_date(day: date, rubbish: str) -> None:
    for text in (day.isoformat() + rubbish, rubbish + day.isoformat()):
        with pytest.raises(ValueError, match=r"not a date|no such date"):
            fhir_date(text)


@pytest.mark.parametrize(
    "text", ["2025-03-01T12:30:00Z", "2025-03-01 12:30:00+00:00", "20250301T123000Z"]
)
def test_a_time_in_a_table_is_read(text: str) -> None:
    assert text_time(text) == datetime(2025, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["2025-03-01_12", "2025-W09-6", "2025-03-01T", "2025-03-01x12:30", "2025-02-30", "٢٠٢٥"]
)
def test_what_only_python_takes_for_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a date|day is out of range"):
        text_time(text)


@pytest.mark.parametrize(("cell", "number"), [(1960, 1960), (1960.0, 1960), ("1960", 1960)])
def test_a_whole_number_of_omop_is_read(cell: object, number: int) -> None:
    assert _whole(cell) == number


@pytest.mark.parametrize("cell", ["1_960", "1960x", "19e2", " 1960", "١٩٦٠", "nan", 1960.5, True])
def test_what_only_python_takes_for_a_whole_number_is_refused(cell: object) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        _whole(cell)
