"""`python -m silomix` is the same as `silomix`."""

from silomix.main import run

run()
