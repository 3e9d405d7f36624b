"""The experiments that `silomix reproduce` knows."""

from silomix.reproduce import loc, lr, rc, scaf
from silomix.reproduce.experiment import Experiment

_ALL = (loc.EXPERIMENT, lr.EXPERIMENT, scaf.EXPERIMENT, rc.EXPERIMENT)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
