"""silomix from Python and on the command line: thin over silo, mix and server."""

from typing import TYPE_CHECKING

import silomix_protocol  # noqa: F401 before anything imports grpc

if TYPE_CHECKING:
    from silomix.estimators import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]


def __getattr__(name: str) -> object:
    """What notebooks import, loaded when it is asked for: commands start without it."""
    if name in __all__:
        from silomix import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'silomix' has no attribute {name!r}")
