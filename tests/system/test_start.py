"""What a party loads when it starts: every process of a consortium pays for that."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "silomix_client.process",
        "silomix_shuffler.process",
        "silomix_server.process",
        "silomix_server.flower.serverapp",
        "silomix_authority.process",
    ],
)
def test_a_party_starts_without_what_only_research_needs(module: str) -> None:
    """scipy.stats alone took 0.8 s and 60 MB of each."""
    heavy = "scipy.stats", "scipy.optimize", "matplotlib", "sklearn", "pandas"
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_silo_starts_without_flower() -> None:
    """Flower took half of a silo's start: its list of errors loads a web server."""
    heavy = "flwr", "fastapi", "httpx", "requests", "rich", "sqlalchemy", "pyarrow"
    code = f"""
import sys, silomix.main, silomix_client.process
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
