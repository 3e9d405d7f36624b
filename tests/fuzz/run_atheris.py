"""Coverage-guided fuzzing (atheris, libFuzzer) of all targets; `test_atheris.py` runs it briefly.

    PYTHONPATH=tests python tests/fuzz/run_atheris.py CORPUS [libFuzzer options]

The first byte of an input chooses the target, the rest is for it.  CORPUS is a folder; valid
messages are put there first, what reached new code is added.  The process ends with an error,
and the input that caused it, if a target raised what it does not declare.  With SILOMIX_PLANTED=1
there is one more target, with a bug that only guidance finds.
"""

import os
import sys
from hashlib import sha256
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["silomix_core", "silomix_protocol", "fuzz"]):
    from fuzz.planted import planted
    from fuzz.targets import TARGETS, Target


def main() -> None:
    corpus, *options = sys.argv[1:]
    targets = list(TARGETS.values())
    if os.environ.get("SILOMIX_PLANTED") == "1":
        targets = [Target(planted, (ValueError,), (b"nothing",))]
    write_corpus(Path(corpus), targets)

    def one_input(data: bytes) -> None:
        if data:
            targets[data[0] % len(targets)](data[1:])

    atheris.Setup([sys.argv[0], *options, corpus], one_input)
    atheris.Fuzz()


def write_corpus(folder: Path, targets: list[Target]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place, target in enumerate(targets):
        for valid in target.valid:
            content = bytes([place]) + valid
            (folder / sha256(content).hexdigest()).write_bytes(content)


if __name__ == "__main__":
    main()
