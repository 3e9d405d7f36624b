"""The protocol version that a party speaks: sent with every call, checked by whoever is called.

Parties that speak different versions of the protocol must not try: the one that is called refuses
with a sentence, which its own log has too.  The version goes as the call's user agent, which gRPC
sends once per connection.
"""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from silomix_protocol.rounds.descriptor import VERSION

_SPOKEN = re.compile(r"silomix/(?P<release>[\w.+-]{1,40}) protocol/(?P<version>\d{1,9})(?: |$)")


class WrongVersion(Exception):
    """The caller speaks another version of the protocol; the message says what to do."""


@cache
def release() -> str:
    """The release of the installed silomix."""
    try:
        return installed("silomix")
    except PackageNotFoundError:  # run from its sources
        return "unreleased"


def user_agent() -> str:
    return f"silomix/{release()} protocol/{VERSION}"


def check_user_agent(text: str) -> None:
    """Raise WrongVersion unless the caller speaks our version of the protocol."""
    spoken = _SPOKEN.match(text)
    if spoken is None:
        raise WrongVersion(
            "you did not say which version of the silomix protocol you speak; "
            f"this is version {VERSION} (silomix {release()})"
        )
    check_version(int(spoken["version"]), spoken["release"])


def check_version(version: int, caller: str) -> None:
    if version != VERSION:
        raise WrongVersion(
            f"you speak version {version} of the protocol (silomix {caller}), this is version "
            f"{VERSION} (silomix {release()}); install the same release on both sides"
        )
