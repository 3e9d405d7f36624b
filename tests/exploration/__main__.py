"""Search greater worlds than the tests do: `python -m exploration [WORLD] [--seconds S] …`.

Without a world: those of the tests, the greater ones, a coordinator with two faults, and then the
whole one (three silos, two mixes of which one is the adversary's, two rounds, two attempts, two
questions of each, everything that the vocabulary has): breadth first, then far away at random.  In
the folder tests/, or as `make explore`.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from exploration.coordinator import Coordination
from exploration.lab import Lab, quiet
from exploration.questions import Questions
from exploration.search import search, wander
from exploration.silo import SiloMachine
from exploration.vocabulary import Evil
from exploration.worlds import (
    ATTEMPTS_AND_ROUNDS,
    EVERYTHING,
    GREAT,
    THREE_SILOS,
    check_world,
)
from support.consortia import make_consortium
from support.controls import ONE_STEP
from support.silos import altered

_ROUNDS = 3
_RARELY = frozenset({"seal", "abandon", "void", "expire", "crash", "power", "closed"})


def main() -> int:
    known = THREE_SILOS | ATTEMPTS_AND_ROUNDS | GREAT
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m exploration")
    parser.add_argument("world", nargs="?", choices=[*known, "coordinator", "everything"])
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600.0,
        help="for each of the greater worlds, and for the whole one",
    )
    parser.add_argument("--states", type=int, default=8_000_000, help="at most, breadth first")
    parser.add_argument("--seed", type=int, default=1, help="of the walks at random")
    parser.add_argument("--evil", choices=[each.value for each in Evil], default="last")
    parser.add_argument("--faults", type=int, default=2, help="of the coordinator's world")
    args = parser.parse_args()
    with quiet(), tempfile.TemporaryDirectory() as folder:
        for name, described in known.items():
            if args.world in (None, name):
                lab = _lab(Path(folder) / name.replace(" ", "-"))
                if name in GREAT:
                    _as_far_as_it_goes(lab, name, args)
                else:
                    check_world(lab, name, described)
        if args.world in (None, "coordinator"):
            _coordinate(Path(folder) / "coordinator", args.faults)
        if args.world in (None, "everything"):
            _everything(Path(folder) / "everything", Evil(args.evil), args)
    return 0


def _lab(folder: Path) -> Lab:
    folder.mkdir()
    return Lab(folder, _ROUNDS)


def _as_far_as_it_goes(lab: Lab, name: str, args: argparse.Namespace) -> None:
    """A greater world, within time and memory; it is said whether that was all of it."""
    world = lab.world(GREAT[name].evil, GREAT[name].may)
    found = search(world, most_s=args.seconds, most_states=args.states, tell=_tell)
    print(f"{name}: {found}", flush=True)
    assert found.broken is None


def _coordinate(folder: Path, faults: int) -> None:
    folder.mkdir()
    made = make_consortium(folder / "consortium", rounds=_ROUNDS, tokens=False)
    questions = Questions(altered(made, ONE_STEP))
    began = time.monotonic()
    looked = Coordination(questions, SiloMachine(questions), folder, _ROUNDS).look(faults)
    print(f"coordinator, {faults} faults: {looked}, {time.monotonic() - began:.0f} s", flush=True)
    assert looked.broken is None


def _everything(folder: Path, evil: Evil, args: argparse.Namespace) -> None:
    """Breadth first as far as time (half of it) and memory go, then far away at random.

    States are visited as the code takes them: finding out which are the same would take long.
    """
    began = time.monotonic()
    world = _lab(folder).raw_world(evil, EVERYTHING)
    found = search(world, most_s=args.seconds / 2, most_states=args.states, tell=_tell)
    print(f"everything: {found}")
    print(f"searched to the end: {'yes' if found.complete else 'no'}", flush=True)
    assert found.broken is None
    if not found.complete:
        left_s = args.seconds - (time.monotonic() - began)
        rng = random.Random(args.seed)
        walked = wander(world, rng, most_s=left_s, rarely=_RARELY, tell=_tell)
        print(f"at random: {walked}")
        print(", ".join(f"{' '.join(map(str, k))} {n}" for k, n in sorted(walked.kinds.items())))
        assert walked.broken is None


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
