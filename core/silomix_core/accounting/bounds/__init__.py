"""The papers' bounds as pure functions: each names its theorem and refuses outside its validity.

Nothing here calibrates a silo's noise; that is `silomix_core.mechanism.mechanism`.
"""

from silomix_core.accounting.bounds.validity import OutsideValidity

__all__ = ["OutsideValidity"]
