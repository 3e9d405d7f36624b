"""Packages that only some hospitals need: a missing one is named with what installs it."""

from importlib import import_module
from types import ModuleType

from silomix_client.errors import InvalidConfig


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, which `pip install silomix[extra]` brings."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"{purpose} needs a package that is not installed ({error.name}): "
            f"pip install 'silomix[{extra}]'"
        ) from error
