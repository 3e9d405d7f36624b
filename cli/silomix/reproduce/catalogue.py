"""The experiments that `silomix reproduce` knows."""

from silomix.reproduce import loc, lr, rc
from silomix.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (loc.EXPERIMENT, lr.EXPERIMENT, rc.EXPERIMENT)
}
