"""A specification to be changed by tests, alone or within the options of a command."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.study.specification import Specification
from silomix_lab.audit.run_audit import AuditOptions
from silomix_lab.demo.run_demo import DemoOptions
from silomix_lab.simulate import SimulateOptions

Options = TypeVar("Options", AuditOptions, DemoOptions, SimulateOptions)
USUAL = Specification(
    algorithm="noisy-mb-sgd",
    most_rounds=20,
    radius=50.0,
    clip=0.25,
    target=PrivacyTarget(4.0, 1e-5),
    name="test",
)


def specification(algorithm: str = "noisy-mb-sgd", **changes: Any) -> Specification:
    return replace(USUAL, algorithm=algorithm, **changes)


def changed(options: Options, **changes: Any) -> Options:
    """The options with these changes, those of their specification within it."""
    inner = {each.name for each in fields(Specification)} & set(changes)
    within = replace(options.specification, **{name: changes.pop(name) for name in inner})
    return replace(options, specification=within, **changes)
