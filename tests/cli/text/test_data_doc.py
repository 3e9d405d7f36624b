"""Every example in docs/data.md is one that the programs take."""

import re
import tomllib
from pathlib import Path

from silomix_client.config.silo_config import load
from support.studies import parse, study_tree

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)


def test_the_specification_of_the_page_is_one_that_a_study_can_have() -> None:
    told = tomllib.loads(EXAMPLES[0])["task"]
    task = parse(study_tree() | {"task": told}).task
    assert [feature.kind.value for feature in task.features] == [
        "number",
        "number",
        "flag",
        "category",
    ]
    assert task.coordinates[-1] == "smoker × systolic_bp"


def test_every_silo_of_the_page_can_be_configured_so(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("epsilon = 1.0\ndelta = 1e-6\n")
    path, kinds = tmp_path / "silo.toml", []
    for example in EXAMPLES[1:]:
        path.write_text(example, encoding="utf-8")
        kinds.append(type(load(path).data).__name__)
    tables = ["CsvFile", "CsvFile", "ParquetFile", "SqlQuery", "SqlQuery"]
    assert kinds == [*tables, "Omop", "Fhir"]
