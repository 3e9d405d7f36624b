"""The experiments that `silomix reproduce` knows."""

from silomix.reproduce import loc, rc
from silomix.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (loc.EXPERIMENT, rc.EXPERIMENT)}
