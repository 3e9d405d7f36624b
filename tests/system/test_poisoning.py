"""One hospital of eight runs modified software; everybody else's processes are the real ones."""

import csv
import json
import os
from pathlib import Path

from support.processes import silomix

# Read by Python when it starts, in every process; only that of silo-1 is changed.  In odd rounds it
# sends the opposite of its own answer, without noise, as long as the server accepts; in even ones
# the largest value that a coordinate can have.
MODIFIED = """
import sys

if "run" in sys.orig_argv and any("silo-1/silo.toml" in each for each in sys.orig_argv):
    import numpy as np
    from silomix_core.reports.length_bound import longest_reports
    from silomix_core.reports.reporter import Reporter

    values = Reporter.values

    def quiet(count):
        return (bytes(7) + b"\\x80") * (count // 8)

    def pushing(self, question, streams, kept=None):
        away = -values(self, question, lambda _: quiet, kept)
        if question.round % 2 == 0:
            return np.sign(away).astype(np.int64) * self._mechanism.largest_value
        longest = longest_reports(self._mechanism, [self._participant] * 8)[0]
        return np.rint(0.99 * longest * away / np.linalg.norm(away)).astype(np.int64)

    Reporter.values = pushing
    print("modified", file=sys.stderr)
"""


def test_the_model_stays_good_and_everybody_is_warned_though_nobody_is_named(
    tmp_path: Path,
) -> None:
    software = tmp_path / "software"
    software.mkdir()
    (software / "sitecustomize.py").write_text(MODIFIED, encoding="utf-8")
    ended = silomix(
        *("demo", "--silos", "8", "--mixes", "1", "--rounds", "20", "--json", "out.json"),
        "--plain",
        cwd=tmp_path,
        limit_s=240.0,
        env=os.environ | {"PYTHONPATH": str(software)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = tmp_path / "silomix-demo"
    assert "modified" in (folder / "logs" / "silo-1.log").read_text()
    assert "modified" not in (folder / "logs" / "silo-2.log").read_text()
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["test_error"] < summary["pooled_error"] + 0.03
    assert summary["rounds_void"] == 0
    assert summary["reports_too_long"] == summary["reports_dropped"] == 10
    assert summary["rounds_outlying"] == 10
    assert "10 reports that no agreed software sends" in " ".join(ended.stdout.split())
    with (folder / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        even = int(row["round"]) % 2 == 0
        assert (int(row["too_long"]), int(row["outlying"])) == (even, not even)
    log = (folder / "logs" / "serverapp.log").read_text()
    warnings = [line for line in log.splitlines() if " reports_" in line]
    assert len(warnings) == 20
    assert not any("silo-1" in line for line in warnings)
