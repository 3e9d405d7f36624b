"""Descriptors: connections never take all of them, however few there are."""

import resource

import pytest
from silomix_protocol.host import file_descriptors


@pytest.mark.parametrize(
    ("allowed", "expected"), [(65_536, 4096), (1024, 512), (700, 350), (96, 48), (4700, 4096)]
)
def test_some_are_left_for_files(
    monkeypatch: pytest.MonkeyPatch, allowed: int, expected: int
) -> None:
    monkeypatch.setattr(file_descriptors, "allow_many", lambda: allowed)
    assert file_descriptors.connections(4096) == expected


def test_a_process_takes_what_the_system_allows_and_no_more_than_it_needs() -> None:
    allowed = file_descriptors.allow_many()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allowed == soft
    assert soft >= min(hard, 65_536) or hard == resource.RLIM_INFINITY
