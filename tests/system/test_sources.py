"""A study whose hospitals keep their data in five different ways, as real processes."""

from pathlib import Path

import numpy as np
import tomli_w
from silomix_server.study.results import MODEL
from support.consortia import make_consortium
from support.people import CLINIC, QUERY, SOURCES, Clinic, visits
from support.postgres import PASSWORD, postgres
from support.processes import approve_all, progress, running, spending

PLACES = {
    "csv": {"kind": "csv", "path": "visits.csv"},
    "parquet": {"kind": "parquet", "path": "visits.parquet"},
    "sqlite": {"kind": "sql", "url": "sqlite:///visits.sqlite", "query": QUERY},
    "duckdb": {"kind": "sql", "url": "duckdb:///visits.duckdb", "query": QUERY},
    "postgresql": {"kind": "sql", "url_file": "database.url", "query": QUERY},
}


def test_a_study_over_mixed_sources_runs_on_what_was_approved(tmp_path: Path) -> None:
    """Files and database are gone when it runs: the snapshots of the approvals are all there is."""
    made = make_consortium(tmp_path / "c", records=(40,) * 5, mixes=1, rounds=3, task=CLINIC)
    with postgres() as server:
        for seed, (kind, config) in enumerate(zip(SOURCES, made.silos, strict=True)):
            Clinic(config.parent, server.url).source(kind, visits(40, seed))
            settings = {"name": config.parent.name, "policy": "policy.toml", "data": PLACES[kind]}
            config.write_text(tomli_w.dumps(settings))
        approve_all(made)
    for config in made.silos:
        for path in (*config.parent.glob("visits.*"), *config.parent.glob("*.url")):
            path.unlink()
    with running(made) as system:
        assert system.server_status() == 0, system.all_logs()
        assert PASSWORD not in system.all_logs()
    assert len(progress(made)) == 3
    assert [spent.rounds for spent in spending(made)] == [3] * 5
    model = np.load(made.server.parent / "state" / MODEL)
    assert model["columns"].tolist() == [*CLINIC.coordinates, "(bias)"]
    assert model["weights"].shape == (CLINIC.dimension,)
    assert np.any(model["weights"])
