"""The process that runs the ServerApp: `python -m silomix_server.flower.serverapp SERVER.toml`.

Does what Flower's SuperExec and its `flwr-serverapp` child do, in one process: waits at the
SuperLink's Runtime API for the run's task and runs the ServerApp.  So the task's token stays out
of any command line, and everything is imported before the run starts.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from queue import Queue

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import httpx
from silomix_protocol.host import logs
from silomix_protocol.keys import read_secret

from silomix_server.config import ServerConfig, load
from silomix_server.flower.child_processes import end_with_parent
from silomix_server.flower.inside_flower import uncollected

_POLL_S = 0.1
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def main() -> None:
    end_with_parent()
    with uncollected():
        from flwr.superlink.runtime.run_serverapp import run_serverapp

        import silomix_server.flower.app  # noqa: F401 imported early: the run starts sooner

    config = load(Path(sys.argv[1]))
    logs.configure("coordinator")
    authority = (config.folder / "ca.crt").read_bytes()
    logs.event("coordinator_waiting")
    run_serverapp(
        runtime_api_address=config.control_listen,
        log_queue=Queue(),
        token=_acquire(config, authority),
        insecure=False,
        certificates=authority,
        parent_pid=os.getppid(),
        runtime_dependency_install=False,
    )


def _acquire(config: ServerConfig, authority: bytes) -> str:
    """The token of the task that the run created, as soon as there is one."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    secret = read_secret(config.task_secret, 32)
    client = RuntimeHttpClient.from_server_address(
        config.control_listen,
        False,
        authority,
        [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE),
        ],
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    with client:
        while True:
            with suppress(httpx.TransportError):  # the SuperLink is still starting
                if token := client.AcquireTask(request).token:
                    return str(token)
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
