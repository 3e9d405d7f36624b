"""Hypothesis for the core: the same examples on every machine, and no clock."""

from hypothesis import settings

settings.register_profile("core", deadline=None, derandomize=True)
settings.load_profile("core")
