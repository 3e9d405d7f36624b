"""Calls of Flower's Fleet API: protobuf over HTTPS, each signed with the node's key.

A silo speaks this API itself, as it stands in proto/fleet.proto, instead of loading Flower: half of
a silo's start was Flower's own client, whose list of errors brings a web server with it.
tests/client/network/test_fleet_contract.py holds it against the Flower that is installed.
"""

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TypeVar

import httpcore
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.message import Message
from silomix_protocol.connections.route import Route
from silomix_protocol.host import logs

from silomix_client.network.bounded_http import STEP_S, BoundedHttp
from silomix_client.network.outbound import sentence

_PATH = "/v1/fleet/"
_MEDIA_TYPE = "application/protobuf"
_ANOTHER_VERSION = 1001  # the code of Flower's error
_UNKNOWN_KEY = "Failed to activate SuperNode"  # the words of Flower

Answer = TypeVar("Answer", bound=Message)


class FleetUnreachable(ConnectionError):
    """The SuperLink does not answer; try again later."""


class FleetRefused(PermissionError):
    """The SuperLink answers, but refuses this node."""


class FleetVersion(FleetRefused):
    """The SuperLink runs a release of Flower that does not go with this one."""


class FleetCalls:
    """The Fleet API at one address, as the node with this key."""

    def __init__(
        self, address: str, authority: bytes, key: ec.EllipticCurvePrivateKey, route: Route
    ) -> None:
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.load_verify_locations(
            cadata=(authority + b"\n" + route.authorities).decode("ascii")
        )
        self.public_key = key.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        self._key, self._url = key, f"https://{address}{_PATH}"
        self._http = BoundedHttp(trusted, route)
        self._headers = {
            "content-type": _MEDIA_TYPE,
            "accept": _MEDIA_TYPE,
            "flwr-package-name": "flwr",
            "flwr-package-version": version("flwr"),
            "flwr-component-name": "SuperNode",
            "flwr-public-key": b64encode(self.public_key).decode("ascii"),
        }

    def ask(
        self, method: str, question: Message, kind: type[Answer], step_s: float = STEP_S
    ) -> Answer:
        """Call a method; raises FleetUnreachable, FleetRefused or FleetVersion."""
        content = question.SerializeToString()
        with translated():
            headers = self._headers | self._signature()
            answer = self._http.post(self._url + method, headers, content, step_s)
            if answer.status != 200:
                raise _refusal(answer.status, answer.content)
            return kind.FromString(answer.content)

    def _signature(self) -> dict[str, str]:
        """A signature over the time, which Flower believes for a while."""
        now = datetime.now(UTC).isoformat()
        signature = self._key.sign(now.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        return {
            "flwr-timestamp": now,
            "flwr-signature": b64encode(signature).decode("ascii"),
        }

    def close(self) -> None:
        self._http.close()


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever a server may send or do into an error that ends this connection only."""
    try:
        yield
    except (FleetRefused, FleetUnreachable):
        raise
    except httpcore.ProxyError as error:
        raise FleetUnreachable(f"the proxy answered {logs.foreign(error)}") from error
    except Exception as error:
        raise FleetUnreachable(sentence(error)) from error


def _refusal(status: int, content: bytes) -> FleetRefused | FleetUnreachable:
    """What an answer other than 200 means, by its status and by what Flower says in it."""
    code, told = _flower_error(content)
    if code == _ANOTHER_VERSION:
        return FleetVersion(logs.foreign(told))
    said = f"the server answered {status}" + (f": {logs.foreign(told)}" if told else "")
    if told.startswith(_UNKNOWN_KEY):
        said += " It does not know this silo's node.key: it is starting, or has another study"
    if 400 <= status < 500 and status not in (408, 425, 429):
        return FleetRefused(said)
    return FleetUnreachable(said)


def _flower_error(content: bytes) -> tuple[int | None, str]:
    """Code and text of Flower's error; no code and no text if it is somebody else's."""
    try:
        error = json.loads(content)
        told = " ".join([error["detail"], error.get("extra") or ""])
        return int(error["code"]), " ".join(told.split())
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, ""
