"""The frozen data of a study: what was approved is what is used, to the byte, or nothing is."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_client.data.snapshot import freeze, thaw
from silomix_client.errors import NotApproved
from silomix_core.model.clipped_sum import Records
from silomix_core.study.study import StudyId
from silomix_core.task.task import UNIT
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host.durable import write_durably
from support.consortia import SMALL_TASK, csv_path, write_data
from support.silos import approved_silo, asked, no_noise, open_desk, open_ledger, opened

STUDY = StudyId(b"\7" * 32)


def some_records(count: int, dimension: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    longest = int(UNIT / dimension**0.5)  # a record is one of the unit ball
    features = rng.integers(-longest, longest, size=(count, dimension), endpoint=True)
    labels = rng.integers(-UNIT, UNIT, size=count, endpoint=True) / UNIT
    return Records(features.astype(float), labels)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_thawing_undoes_freezing(
    tmp_path_factory: pytest.TempPathFactory, count: int, dimension: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("snapshots")
    records = some_records(count, dimension, seed)
    thawed = thaw(STUDY, freeze(records, STUDY, folder), folder)
    assert np.array_equal(thawed.features, records.features)
    assert np.array_equal(thawed.labels, records.labels)


def test_every_changed_byte_is_refused(tmp_path: Path) -> None:
    digest = freeze(some_records(4, 3, 1), STUDY, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(NotApproved, match="changed since the study was approved"):
            thaw(STUDY, digest, tmp_path)


@pytest.mark.parametrize("change", ["cut", "longer", "empty"])
def test_a_snapshot_of_another_length_is_refused(tmp_path: Path, change: str) -> None:
    digest = freeze(some_records(4, 3, 1), STUDY, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "longer": content + b"\0", "empty": b""}[change])
    with pytest.raises(NotApproved):
        thaw(STUDY, digest, tmp_path)


def test_a_missing_snapshot_is_refused_with_its_path(tmp_path: Path) -> None:
    digest = freeze(some_records(4, 3, 1), STUDY, tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink(missing_ok=True)
    with pytest.raises(NotApproved, match=path.name):
        thaw(STUDY, digest, tmp_path)


def test_the_snapshot_of_one_study_is_not_that_of_another(tmp_path: Path) -> None:
    digest = freeze(some_records(4, 3, 1), STUDY, tmp_path)
    with pytest.raises(NotApproved):
        thaw(StudyId(b"\1" * 32), digest, tmp_path)


def test_only_the_owner_can_read_a_snapshot(consortium: Consortium) -> None:
    folder = approved_silo(consortium).folder / "state" / "snapshots"
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_durable_write_replaces_the_whole_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"long content")
    write_durably(path, b"short")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"short"


@pytest.mark.parametrize("change", ["other records", "fewer records", "garbage", "gone"])
def test_data_changed_after_approval_changes_no_report(consortium: Consortium, change: str) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    reports = []
    for number in (1, 2):
        desk = open_desk(config, consortium.study, ledger, no_noise)
        point = np.array([0.5, -0.5, 0.25]) * (1 + number * 2.0**-50)  # of the same sum
        reports.append(opened(consortium, desk.answer(asked(consortium, number, point))))
        _change(csv_path(config.data), change)
    ledger.close()
    assert np.array_equal(reports[0], reports[1])


def _change(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink(missing_ok=True)
    elif how == "garbage":
        path.write_bytes(b"\xff\0")
    else:
        write_data(path, SMALL_TASK, 40 if how == "other records" else 3, seed=99)


def test_two_snapshots_of_the_same_records_have_different_hashes(tmp_path: Path) -> None:
    """Else whoever sees the hash could try values for the one record that they do not know."""
    records = some_records(4, 3, 1)
    assert freeze(records, STUDY, tmp_path) != freeze(records, STUDY, tmp_path)
