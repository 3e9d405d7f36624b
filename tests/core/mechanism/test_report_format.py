"""The plaintext of a report: all alike in length, and nothing but the mechanism's integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import discrete_gaussian
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.report_format import (
    MalformedReport,
    decode_report,
    encode_report,
    report_bytes,
)
from support.privacy_checks import SIGMA, check_gaussian, full_batch, seeded_bytes


def mechanism(dimension: int = 3, records: int = 1734) -> Mechanism:
    target = PrivacyTarget(3, 1e-6)
    return full_batch(target, clip=1.0, rounds=1, dimension=dimension, records=records)


NARROW, WIDE = mechanism(), mechanism(records=10**6)
WIDTHS = pytest.mark.parametrize("made", [NARROW, WIDE], ids=["narrow", "wide"])
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_the_two_mechanisms_have_different_widths() -> None:
    assert (NARROW.width, WIDE.width) == (4, 8)


@WIDTHS
@given(data=st.data())
def test_decode_undoes_encode(made: Mechanism, data: st.DataObject) -> None:
    inside = st.integers(-made.largest_value, made.largest_value)
    values = np.array(data.draw(st.lists(inside, min_size=3, max_size=3)))
    decoded = decode_report(encode_report(values, made), made)
    assert decoded.dtype == np.int64
    assert np.array_equal(decoded, values)


@WIDTHS
@given(st.lists(INT64, min_size=3, max_size=3))
def test_values_beyond_the_range_saturate(made: Mechanism, values: list[int]) -> None:
    bound = made.largest_value
    decoded = decode_report(encode_report(np.array(values), made), made)
    assert decoded.tolist() == [max(-bound, min(bound, value)) for value in values]


@WIDTHS
@given(st.lists(INT64, min_size=3, max_size=3))
def test_all_reports_have_the_same_length(made: Mechanism, values: list[int]) -> None:
    assert len(encode_report(np.array(values), made)) == report_bytes(made) == 8 + 3 * made.width


@WIDTHS
@given(st.binary(max_size=40))
def test_arbitrary_bytes_decode_to_values_in_range_or_are_refused(
    made: Mechanism, data: bytes
) -> None:
    try:
        values = decode_report(data, made)
    except MalformedReport:
        return
    assert np.all(np.abs(values) <= made.largest_value)
    assert encode_report(values, made) == data


@WIDTHS
@given(data=st.data())
def test_one_changed_header_byte_is_refused(made: Mechanism, data: st.DataObject) -> None:
    report = bytearray(encode_report(np.array([1, -2, 3]), made))
    report[data.draw(st.integers(0, 7))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedReport, match="header"):
        decode_report(bytes(report), made)


@WIDTHS
@pytest.mark.parametrize("change", [lambda r: r[:-1], lambda r: r + b"\0", lambda r: b""])
def test_another_length_is_refused(made: Mechanism, change) -> None:
    with pytest.raises(MalformedReport, match="length"):
        decode_report(change(encode_report(np.zeros(3, dtype=np.int64), made)), made)


@WIDTHS
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_one_beyond_the_range_is_refused(made: Mechanism, position: int, sign: int) -> None:
    values = np.zeros(3, dtype=f"<i{made.width}")
    values[position] = sign * (made.largest_value + 1)
    report = encode_report(np.zeros(3, dtype=np.int64), made)[:8] + values.tobytes()
    with pytest.raises(MalformedReport, match="range"):
        decode_report(report, made)
    values[position] = np.iinfo(values.dtype).min
    with pytest.raises(MalformedReport, match="range"):
        decode_report(report[:8] + values.tobytes(), made)


def test_a_report_of_another_study_is_refused() -> None:
    report = encode_report(np.zeros(3, dtype=np.int64), NARROW)
    with pytest.raises(MalformedReport):
        decode_report(report, WIDE)
    with pytest.raises(MalformedReport):
        decode_report(report, mechanism(dimension=4))


@pytest.mark.parametrize("records", [1734, 10**6])
def test_noise_passes_the_wire_format_unchanged_in_distribution(records: int) -> None:
    """At the end of the range too: what saturates is only what the mechanism never makes."""
    made = mechanism(dimension=200_000, records=records)
    noise = discrete_gaussian(200_000, seeded_bytes(17))
    noise += made.largest_signal
    decoded = decode_report(encode_report(noise, made), made)
    check_gaussian(decoded - made.largest_signal, SIGMA)


@pytest.mark.parametrize(
    "batch", [Minibatch(), Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.5)], ids=["full", "fixed size"]
)
def test_reports_of_different_silos_look_alike(batch: Minibatch) -> None:
    """Weights, sizes and promises differ; noise, range, width and length of a report do not."""
    silos = [
        Participant(100, PrivacyTarget(3, 1e-6), weight=0.5),
        Participant(5000, PrivacyTarget(1, 1e-7), weight=2.5),
        Participant(900, PrivacyTarget(2, 1e-5)),
    ]
    phases = [Phase(3, 0.5), Phase(7, 0.25)]
    made, turned = (
        Mechanism.calibrate(each, clip=1.0, dimension=3, phases=phases, minibatch=batch)
        for each in (silos, silos[::-1])
    )
    assert made == turned  # one value for all, whoever computes it
    assert {made.event(silo, phase).noise for silo in silos for phase in (0, 1)} == {SIGMA}
    for silo in silos:
        for phase in (0, 1):
            largest = int(silo.weight * made.clip / made.grids[phase])
            assert largest <= made.largest_signal
            report = encode_report(np.array([largest, 0, -largest]), made)
            assert len(report) == report_bytes(made)
            assert decode_report(report, made)[0] == largest
