"""How a connection leaves a party's network: directly, or through the proxy that its IT runs.

Proxy settings of the environment are ignored: what is configured is all there is.
"""

import os
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import quote

_ENVIRONMENT = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that connects to others on request (CONNECT)."""

    host: str
    port: int
    user: str = ""
    _password: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The proxy's URL with the login in it: never to be shown."""
        if not self.user:
            return f"http://{self.address}"
        login = f"{quote(self.user, safe='')}:{quote(self._password, safe='')}"
        return f"http://{login}@{self.address}"

    @property
    def authorization(self) -> str | None:
        """The value of Proxy-Authorization: never to be shown."""
        if not self.user:
            return None
        return "Basic " + b64encode(f"{self.user}:{self._password}".encode()).decode("ascii")


@dataclass(frozen=True, slots=True)
class Route:
    """A way out; `authorities` (PEM), of an inspecting proxy, are believed beside our own."""

    proxy: Proxy | None = None
    authorities: bytes = field(default=b"", repr=False)


DIRECT = Route()


def ignore_environment() -> None:
    """Forget proxy settings of the environment: gRPC would obey no_proxy, silently."""
    for name in _ENVIRONMENT:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
