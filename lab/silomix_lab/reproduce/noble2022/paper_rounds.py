"""The rounds T of Tables 1 and 4: printed, computed again, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from silomix_core.accounting.bounds.scaffold import (
    largest_rounds,
    server_epsilon,
    third_party_epsilon,
)
from silomix_core.accounting.composition import epsilon_of, largest_mu
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import SIGMA_UNITS

from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.experiment import ClaimVerdict, PaperClaim, ResultTable
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    DATA_RATIO,
    EPSILON,
    PRINTED_DELTA,
    PRINTED_ROUNDS,
    PRINTED_SIGMA_G,
    SIGMAS_G,
    USER_RATIO,
    USERS,
)

ROUNDS_NOTE = (
    f"δ = 1/({USERS}·4000).  Server (paper): Theorem 4.1 (2), numerically.  Ours: every "
    "local step counted, no gain from drawing users, Poisson batches of a fifth; one "
    "record replaced.  For K > 1 we do not rely on the third party's ε: it takes the noise "
    "of every local step to be averaged over users, and a user's second step follows from "
    "its own first."
)


@dataclass(frozen=True, slots=True)
class PaperCell:
    """A cell of Tables 1 and 4: printed and computed T, and ε of the printed T at σ_g.

    third_party, server: ε by the paper's accounting; ours: ε towards the server, numerically, with
    Poisson batches.
    """

    local_steps: int
    sigma_g: int
    printed: int
    rounds: int
    third_party: float
    server: float
    ours: float


def all_cells() -> list[PaperCell]:
    return [
        cell(steps, sigma_g, printed)
        for steps, column in PRINTED_ROUNDS.items()
        for sigma_g, printed in zip(SIGMAS_G, column, strict=True)
    ]


def cell(local_steps: int, sigma_g: int, printed: int) -> PaperCell:
    rounds = largest_rounds(
        epsilon=EPSILON,
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        user_ratio=USER_RATIO,
        data_ratio=DATA_RATIO,
        users=USERS,
    )
    third_party = third_party_epsilon(
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        user_ratio=USER_RATIO,
        data_ratio=DATA_RATIO,
        users=USERS,
        rounds=printed,
    )
    server = server_epsilon(
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        data_ratio=DATA_RATIO,
        rounds=printed,
    )
    event = PrivacyEvent(
        Scheme.POISSON, DATA_RATIO, SIGMA_UNITS / sigma_g, SIGMA_UNITS, _dimension()
    )
    ours = epsilon_of([(event, printed * local_steps)], PRINTED_DELTA)
    return PaperCell(local_steps, sigma_g, printed, rounds, third_party, server, ours)


def needed_sigma_g(local_steps: int, rounds: int) -> float:
    """The σ_g at which so many rounds are (3, δ)-DP towards the server."""
    target = PrivacyTarget(EPSILON, PRINTED_DELTA)
    return 1 / largest_mu(target, Scheme.POISSON, DATA_RATIO, rounds * local_steps, _dimension())


def _dimension() -> int:
    return synthetic.task(0.0).dimension


def round_tables(cells: Sequence[PaperCell]) -> tuple[ResultTable, ResultTable]:
    by_place = {(each.local_steps, each.sigma_g): each for each in cells}
    all_steps = tuple(dict.fromkeys(each.local_steps for each in cells))
    rows = tuple(
        (
            f"{sigma_g}",
            *(
                f"{each.rounds} [{each.printed}]"
                for steps in all_steps
                if (each := by_place[steps, sigma_g])
            ),
        )
        for sigma_g in dict.fromkeys(each.sigma_g for each in cells)
    )
    costs = tuple(
        (
            f"{each.local_steps}",
            f"{each.printed}",
            f"{each.third_party:.2f}",
            f"{each.server:.2f}",
            f"{each.ours:.2f}",
            f"{needed_sigma_g(each.local_steps, each.printed):.1f}",
        )
        for each in cells
        if each.sigma_g == PRINTED_SIGMA_G
    )
    return (
        ResultTable(
            "rounds T at ε = 3 towards a third party (in brackets: printed)",
            ("σ_g", *(f"K = {steps}" for steps in all_steps)),
            rows,
        ),
        ResultTable(
            f"what T rounds at σ_g = {PRINTED_SIGMA_G} cost: ε, and the σ_g of ε = 3",
            (
                "K",
                "T",
                "third party (paper)",
                "server (paper)",
                "server (ours)",
                "σ_g for server (ours)",
            ),
            costs,
        ),
    )


def rounds_claim(cells: Sequence[PaperCell]) -> PaperClaim:
    apart = [abs(each.rounds - each.printed) for each in cells]
    return PaperClaim(
        "T of Tables 1 and 4 follows from the paper's accounting, within one round",
        ClaimVerdict.HOLDS if max(apart) <= 1 else ClaimVerdict.FAILS,
        f"{apart.count(0)} of {len(apart)} exactly, the largest difference is {max(apart)}",
    )


def as_row(each: PaperCell) -> dict[str, object]:
    return {
        "local_steps": each.local_steps,
        "sigma_g": each.sigma_g,
        "printed_rounds": each.printed,
        "rounds": each.rounds,
        "third_party_epsilon": each.third_party,
        "server_epsilon": each.server,
        "our_server_epsilon": each.ours,
    }
