"""One study over hospitals whose data are of different kinds, with real processes."""

from pathlib import Path

import numpy as np
from silomix_client.config.silo_config import load
from silomix_client.data.records import read
from silomix_client.data.snapshot import thaw
from silomix_client.ledger.ledger import Ledger
from support.consortia import make_consortium
from support.hospitals import (
    AT,
    HOSPITAL,
    csv_source,
    ndjson_source,
    omop_source,
    people,
    resources,
)
from support.processes import approve_all, progress, running, spending

DATA = {
    "silo-1": 'kind = "csv"\npath = "data.csv"\n',
    "silo-2": f'kind = "omop"\nurl = "sqlite:///omop.sqlite"\nat = "{AT}"\n',
    "silo-3": f'kind = "fhir"\npath = "export"\nat = "{AT}"\n',
}


def test_a_study_over_csv_omop_and_fhir(tmp_path: Path) -> None:
    made = make_consortium(
        tmp_path / "c", records=(30, 30, 30), mixes=1, rounds=3, task=HOSPITAL, minimum_batch=3
    )
    expected = {}
    for seed, path in enumerate(made.silos):
        folder = path.parent
        persons, events = people(30, seed)
        (tmp_path / folder.name).mkdir()
        source = csv_source(tmp_path / folder.name, persons, events)
        expected[folder.name] = read(source, HOSPITAL).records
        csv_source(folder, persons, events)
        omop_source(folder, "sqlite:///omop.sqlite", persons, events)
        ndjson_source(folder, resources(persons, events))
        text = path.read_text().replace('data = "data.csv"\n', "")
        path.write_text(f"{text}\n[data]\n{DATA[folder.name]}")
    approve_all(made)
    for config in map(load, made.silos):
        ledger = Ledger(config.state, config.policy)
        (approval,) = ledger.approvals()
        ledger.close()
        frozen = thaw(made.study.identity, approval.snapshot, config.state / "snapshots")
        assert np.array_equal(frozen.features, expected[config.name].features)
        assert np.array_equal(frozen.labels, expected[config.name].labels)
    with running(made) as system:
        assert system.server_status() == 0, system.all_logs()
    assert [line["accepted"] for line in progress(made)] == [3] * 3
    assert [entry.rounds for entry in spending(made)] == [3, 3, 3]
