"""A study with the papers' printed σ in place of the exact one, to compare the two."""

from dataclasses import replace
from enum import Enum

from silomix_core.accounting.bounds.noise_formulas import multi_pass_sigma, one_pass_sigma
from silomix_core.simulation.one_process import Rehearsal


class NoiseFormula(Enum):
    EXACT = "exact"
    PRINTED = "printed formula"


def with_printed_noise(made: Rehearsal) -> Rehearsal:
    """The same study with the papers' σ; raise OutsideValidity where no theorem gives that σ.

    Every noised gradient of a local walk counts as a round of its own.
    """
    mechanism, target = made.mechanism, made.setting.target
    one_pass = len(mechanism.phases) == mechanism.rounds > 1
    grids = []
    for phase in mechanism.phases:
        records = phase.records(made.setting.records)
        if one_pass:
            sigma = one_pass_sigma(
                lipschitz=mechanism.clip,
                batch=records,
                epsilon=target.epsilon,
                delta=target.delta,
            )
        else:
            sigma = multi_pass_sigma(
                lipschitz=mechanism.clip,
                records=records,
                batch=records,
                rounds=phase.events,
                epsilon=target.epsilon,
                delta=target.delta,
            )
        grids.append(sigma / mechanism.sigma_units)
    return replace(made, mechanism=replace(mechanism, grids=tuple(grids)))
