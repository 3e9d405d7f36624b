"""The experiments that `silomix reproduce` knows."""

from silomix_lab.reproduce import balle2020, gao2024, lowy2023
from silomix_lab.reproduce.experiment import Experiment
from silomix_lab.reproduce.noble2022 import findings as noble2022

_ALL = (gao2024.EXPERIMENT, lowy2023.EXPERIMENT, noble2022.EXPERIMENT, balle2020.EXPERIMENT)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
