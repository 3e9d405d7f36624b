"""A script: `silomix` with audits that approve in their own process what `silo approve` would.

Twenty studies cost less than two such processes, and as many fewer silos run.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from silomix.main import run
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load
from silomix_lab.audit import scratch
from silomix_lab.audit.run_audit import AuditOptions
from silomix_lab.consortium.create import Consortium


async def _approve(_command: Sequence[str], made: Consortium, name: str, _turns: object) -> None:
    config = load(made.silos[0])
    content = (made.folder / f"{name}.toml").read_bytes()
    approve(config, review(config, content, name), datetime.now(UTC))


if __name__ == "__main__":
    scratch._approve = _approve
    AuditOptions.studies = 20  # type: ignore[misc]
    run()
