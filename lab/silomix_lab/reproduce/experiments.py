"""The experiments that `silomix reproduce` knows."""

from silomix_lab.reproduce import balle2020, gao2024, lowy2023
from silomix_lab.reproduce.experiment import Experiment
from silomix_lab.reproduce.noble2022.findings import EXPERIMENT as NOBLE2022

_ALL = (gao2024.EXPERIMENT, lowy2023.EXPERIMENT, NOBLE2022, balle2020.EXPERIMENT)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
