"""The experiments' sizes, methods and trials, and the figures that the paper prints."""

from dataclasses import dataclass
from enum import Enum

from silomix_lab.reproduce.synthetic import Population

EPSILON, DATA_RATIO, USER_RATIO, USERS = 3.0, 0.2, 0.05, 100
PRINTED_DELTA = 1 / (USERS * 4000)
SIGMAS_G = (10, 20, 40, 80, 160)
PRINTED_ROUNDS = {  # by K, for each of SIGMAS_G; the same in Tables 1 and 4
    1: (542, 545, 546, 546, 546),
    5: (488, 502, 505, 506, 506),
    10: (428, 451, 457, 458, 458),
    20: (324, 352, 360, 362, 362),
    40: (72, 83, 86, 87, 87),
}
PRINTED_SIGMA_G = 10
PRINTED_ACCURACIES = {  # DP-SCAFFOLD at σ_g = 10, by (α = β, K)
    (0.0, 1): 31.29,
    (0.0, 5): 44.37,
    (0.0, 10): 44.17,
    (5.0, 1): 27.41,
    (5.0, 5): 45.53,
    (5.0, 10): 43.52,
}
LEVELS = (0.0, 5.0)  # α = β
CLIP, RIDGE = 1.0, 5e-3  # the ridge is the paper's
FED_AVG, SCAFFOLD, WARM, ONE_STEP = "dp-fedavg", "dp-scaffold", "dp-scaffold-warm", "noisy-mb-sgd"
RADII = (5.0, 10.0, 20.0, 40.0)
ONE_STEP_RADII = (20.0, 40.0, 80.0)


class NobleNoise(Enum):
    OURS = "ε = 3 towards the server"
    PRINTED = "printed noise"


@dataclass(frozen=True, slots=True)
class Size:
    """The users, records of each (a fifth for the test), users that a round asks, rounds by K."""

    name: str
    users: int
    records: int
    asked: int
    rounds: tuple[tuple[int, int], ...]
    printed: bool  # whether the printed noise belongs to it

    def rounds_of(self, local_steps: int) -> int:
        return dict(self.rounds)[local_steps]

    @property
    def local_steps(self) -> tuple[int, ...]:
        return tuple(steps for steps, _ in self.rounds)

    def population(self, level: float) -> Population:
        return Population(level, level, self.users, self.records)

    @property
    def methods(self) -> tuple["NobleMethod", ...]:
        found = [NobleMethod(ONE_STEP, 1)]
        for name in (FED_AVG, SCAFFOLD, WARM):
            found += [NobleMethod(name, steps) for steps in self.local_steps]
        if self.printed:
            for name in (FED_AVG, SCAFFOLD):
                found += [
                    NobleMethod(name, steps, NobleNoise.PRINTED) for steps in self.local_steps
                ]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class NobleMethod:
    algorithm: str
    local_steps: int
    noise: NobleNoise = NobleNoise.OURS

    @property
    def radii(self) -> tuple[float, ...]:
        return ONE_STEP_RADII if self.algorithm == ONE_STEP else RADII

    @property
    def name(self) -> str:
        return self.algorithm + (
            f", {self.noise.value}" if self.noise is NobleNoise.PRINTED else ""
        )


REDUCED = Size("reduced", 20, 1000, 4, ((1, 60), (5, 60), (10, 60)), printed=False)
FULL = Size("full", USERS, 5000, 5, ((1, 542), (5, 488), (10, 428)), printed=True)
ROUNDS = "rounds"
UNLESS_TOLD = (ROUNDS, REDUCED.name)


@dataclass(frozen=True, slots=True)
class NobleTrial:
    """One study, or with no method the floor: everybody's records together, no privacy."""

    size: Size
    level: float
    seed: int
    method: NobleMethod | None = None
    radius: float = 0.0

    @property
    def key(self) -> str:
        where = f"{self.size.name} level={self.level:g} seed={self.seed}"
        if self.method is None:
            return f"floor {where}"
        how = self.method
        return f"{where} {how.name} K={how.local_steps} radius={self.radius:g}"

    def key_at(self, number: int) -> str:
        """The key of the model after this many rounds."""
        return f"{self.key} round={number}"
