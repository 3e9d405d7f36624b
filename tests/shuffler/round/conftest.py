"""Three silos before one mix, and before two."""

from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@pytest.fixture
def pair(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)
