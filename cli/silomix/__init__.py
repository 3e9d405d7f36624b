"""silomix from Python and on the command line: a thin layer over silo, mix and server."""

from typing import TYPE_CHECKING

import silomix_protocol  # noqa: F401 before anything imports grpc

if TYPE_CHECKING:
    from silomix_lab.estimators import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]


def __getattr__(name: str) -> object:
    """Load an estimator for notebooks when it is asked for: commands start without estimators."""
    if name in __all__:
        from silomix_lab import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'silomix' has no attribute {name!r}")
