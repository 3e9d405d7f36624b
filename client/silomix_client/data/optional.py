"""Packages that only some hospitals need: a missing one is named with what installs it."""

from importlib import import_module
from types import ModuleType

from silomix_client.errors import InvalidSiloConfig

_INSTALL = "pip install --require-hashes --only-binary :all: -r locks/operators.txt"


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that an extra of silomix asks for; operators get all extras, by hash."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidSiloConfig(
            f"{purpose} needs a package that is not installed ({error.name}, of silomix[{extra}]); "
            f"in the checkout: {_INSTALL}"
        ) from error
