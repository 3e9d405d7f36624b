"""docs/extending.md does what it says: its diffs, applied to a copy, add what they name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
PACKAGES = ("core", "proto", "protocol", "client", "shuffler", "server", "authority", "lab", "cli")
COPIED = (*PACKAGES, "tests/core/study", "tests/support")
SIMULATE = "simulate --data breast-cancer --silos 3 --seeds 1 --epsilon 50 --processes 1 --json out"


class Copy:
    """The sources with one section of the page applied to them."""

    def __init__(self, folder: Path, heading: str) -> None:
        self.folder = folder
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.changed = [folder / path for path in applied(section(heading), folder)]

    def run(self, *arguments: object) -> str:
        paths = os.pathsep.join(str(self.folder / name) for name in (*PACKAGES, "tests"))
        result = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def simulated(self, *arguments: object) -> float:
        """The error, in percent, of a simulated study with these options."""
        self.run("-m", "silomix", *SIMULATE.split(), *arguments)
        (line,) = json.loads((self.folder / "out").read_text())
        return float(line["error"])


def section(heading: str) -> str:
    """The text of the page under this heading."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def applied(text: str, folder: Path) -> list[str]:
    """Apply all diffs of a text; return the files that they change, each once."""
    paths = []
    for block in re.findall(r"```diff\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\+\+\+ ", block, flags=re.MULTILINE)[1:]:
            path, _, hunks = part.partition("\n")
            paths.append(path)
            for hunk in hunks.split("@@\n"):
                change(folder / path, hunk.splitlines())
    return list(dict.fromkeys(paths))


def change(path: Path, hunk: list[str]) -> None:
    """Put the lines of a hunk in the one place of the file where its context stands."""
    before = "".join(f"{line[1:]}\n" for line in hunk if line[:1] in (" ", "-"))
    after = "".join(f"{line[1:]}\n" for line in hunk if line[:1] in (" ", "+"))
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    assert f"\n{content}".count(f"\n{before}") == 1 if before else not content, (path, before)
    path.write_text(f"\n{content}".replace(f"\n{before}", f"\n{after}")[1:], encoding="utf-8")


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Copy:
    made = Copy(tmp_path / "copy", request.param)
    where = made.run("-c", "import silomix_core as core; print(core.__file__)")
    assert Path(where.strip()).is_relative_to(made.folder)
    return made


@pytest.mark.parametrize("copy", ["A loss"], indirect=True)
def test_a_loss_is_added_as_the_page_says(copy: Copy) -> None:
    """A number is learned (its mean has an error of 63 %), the derivative is the derivative, and
    a study file with the loss is read as it was written."""
    loss = ("--loss", "charbonnier", "--label-bounds", "0,1", "--rounds", "60")
    assert copy.simulated(*loss) < 30
    assert "charbonnier" in copy.run("-m", "silomix", "simulate", "--help")
    copy.run(
        "-c",
        "import numpy as np\n"
        "from silomix_core.task.losses import LossName, loss\n"
        "made, s, y = loss(LossName('charbonnier')), np.linspace(-3, 3, 61), np.full(61, 0.5)\n"
        "slope = (made.value(s + 1e-6, y) - made.value(s - 1e-6, y)) / 2e-6\n"
        "assert np.allclose(slope, made.residual(s, y), atol=1e-6)\n"
        "assert np.isfinite(made.residual(np.array([np.inf, -np.inf]), np.zeros(2))).all()\n",
    )
    copy.run("-m", "pytest", "-q", "tests/core/study/test_round_trip.py")


@pytest.mark.parametrize("copy", ["An algorithm"], indirect=True)
def test_an_algorithm_is_added_as_the_page_says(copy: Copy) -> None:
    """A classifier is learned (the commoner label is wrong for 37 of 100); a study can name it."""
    assert copy.simulated("--algorithm", "slowing-sgd", "--rounds", "60") < 20
    listed = json.loads(copy.run("-m", "silomix", "algorithms", "--json"))
    assert "slowing-sgd" in [each["name"] for each in listed]
    copy.run(
        "-c",
        "from support.studies import parse, with_value\n"
        "study = parse(with_value(('algorithm', 'name'), 'slowing-sgd'))\n"
        "assert study.mechanism().rounds == study.most_rounds\n",
    )


@pytest.mark.parametrize("copy", ["A data source"], indirect=True)
def test_a_data_source_is_added_as_the_page_says(copy: Copy) -> None:
    """It gives the same rows as a CSV file of the same cells, and refuses what is no such file."""
    copy.run(
        "-c",
        "from pathlib import Path\n"
        "from silomix_client.data.settings import read_source\n"
        "from silomix_client.errors import BadRecords\n"
        "from silomix_core.toml_table import TomlTable\n"
        "from support.consortia import SMALL_TASK\n"
        "text = 'dose,years,outcome\\n0.5,30,1\\n,41,0\\n'\n"
        "Path('x.csv').write_text(text)\n"
        "Path('x.tab').write_text(text.replace(',', '\\t'))\n"
        "def rows(kind):\n"
        "    data = {'kind': kind, 'path': f'x.{kind}', 'columns': {'years': 'age'}}\n"
        "    source = read_source(TomlTable({'data': data}), Path())\n"
        "    return list(source.rows(SMALL_TASK))\n"
        "assert rows('tab') == rows('csv') and len(rows('csv')) == 2\n"
        "Path('x.tab').unlink()\n"
        "try:\n"
        "    rows('tab')\n"
        "except BadRecords as refusal:\n"
        "    assert str(refusal).startswith('x.tab: ')\n"
        "else:\n"
        "    raise AssertionError\n",
    )


@pytest.mark.parametrize("copy", ["A parameter of a study"], indirect=True)
def test_a_parameter_of_a_study_is_added_as_the_page_says(copy: Copy) -> None:
    """It is written as it is read, refused out of bounds, and changes what is learned."""
    copy.run("-m", "pytest", "-q", "tests/core/study/test_round_trip.py")
    usual, timid = (copy.simulated("--rounds", "5", "--boldness", value) for value in (1.0, 0.01))
    assert usual != timid
    copy.run(
        "-c",
        "from silomix_core.study.study import InvalidStudy\n"
        "from support.studies import parse, study_tree\n"
        "tree = study_tree()\n"
        "tree['algorithm']['boldness'] = 1000\n"
        "try:\n"
        "    parse(tree)\n"
        "except InvalidStudy as refusal:\n"
        "    assert 'boldness must lie between' in str(refusal)\n"
        "else:\n"
        "    raise AssertionError\n",
    )


@pytest.mark.parametrize(
    "copy", ["A loss", "An algorithm", "A data source", "A parameter of a study"], indirect=True
)
def test_what_the_page_adds_is_in_our_style(copy: Copy) -> None:
    copy.run("-m", "ruff", "check", *copy.changed)
    copy.run("-m", "ruff", "format", "--check", *copy.changed)
