"""The algorithms that a study can name."""

from silomix_core.algorithms import (
    accelerated,
    check_ins,
    local_updates,
    localized,
    noisy_mb_sgd,
    plain_mb_sgd,
    shuffled,
    smoothed,
)
from silomix_core.algorithms.base import Algorithm

AUTO = "auto"  # chosen when a study is written, by `study.defaults`
_ALL = (
    noisy_mb_sgd.ALGORITHM,
    plain_mb_sgd.ALGORITHM,
    noisy_mb_sgd.ONE_PASS,
    accelerated.ALGORITHM,
    accelerated.ONE_PASS,
    accelerated.MULTI_STAGE,
    localized.MB_SGD,
    localized.ACCELERATED,
    localized.SUBGRADIENT,
    smoothed.MOREAU,
    smoothed.CONVOLUTION,
    local_updates.LOCAL_SGD,
    local_updates.FED_AVG,
    local_updates.FED_SGD,
    local_updates.SCAFFOLD,
    local_updates.WARM_SCAFFOLD,
    check_ins.FIXED,
    check_ins.AVERAGED,
    check_ins.SLIDING,
    shuffled.ALGORITHM,
)
ALGORITHMS: dict[str, Algorithm] = {entry.name: entry for entry in _ALL}


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name; ValueError with the known names otherwise."""
    if name == AUTO:
        raise ValueError(f"{name} is chosen when a study is written, and is none here; name one")
    if name not in ALGORITHMS:
        known = ", ".join(sorted([AUTO, *ALGORITHMS]))
        raise ValueError(f"unknown algorithm {name!r}; known: {known}")
    return ALGORITHMS[name]
