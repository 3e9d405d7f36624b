"""The audit in one picture: what the attacker saw for D and for D′, and what was promised."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from silomix_lab.audit.verdict import AuditVerdict, Floats, Moved, Power, Seen, Shift

_THRESHOLD = "the attacker's threshold"


def _studies(verdict: AuditVerdict) -> tuple[Seen, ...]:
    middle = verdict.claim.mu / 2
    return tuple(
        Seen(values, np.ones(len(values)), np.full(len(values), centre))
        for values, centre in ((verdict.first, -middle), (verdict.second, middle))
    )


def _density(seen: Seen, axis: Floats) -> Floats:
    """The density that is claimed of these measurements taken together."""
    claims, counts = np.unique(
        np.column_stack([seen.chances, seen.centres]), axis=0, return_counts=True
    )
    densities = [
        (1 - chance) * stats.norm.pdf(axis) + chance * stats.norm.pdf(axis, centre)
        for chance, centre in claims
    ]
    found: Floats = np.average(densities, axis=0, weights=counts)
    return found


def _measured(sharper: Shift | Moved) -> str:
    what = "μ" if isinstance(sharper, Shift) else "times the claimed move"
    return f"{what} {sharper.estimate:.3f} ± {sharper.error:.2g}, at least {sharper.lower:.3f}"


def draw(verdict: AuditVerdict, powers: Sequence[Power], path: Path) -> None:
    from matplotlib.figure import Figure

    claim = verdict.claim
    shown = verdict.reports if claim.is_drawn else _studies(verdict)
    values = np.concatenate([each.values for each in shown])
    centres = np.concatenate([each.centres for each in shown])
    reach = max(float(np.abs(values).max()), float(np.abs(centres).max()) + 3.5)
    edges = np.linspace(-reach, reach, 2 * max(8, round(len(values) ** 0.4)) + 1)
    axis = np.linspace(-reach, reach, 400)
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    what = "reports" if claim.is_drawn else "studies"
    for each, colour, name in zip(shown, ("tab:blue", "tab:orange"), ("D", "D′"), strict=True):
        axes.hist(
            each.values,
            edges.tolist(),
            density=True,
            alpha=0.45,
            color=colour,
            label=f"{len(each.values)} {what} on {name}",
        )
        axes.plot(axis, _density(each, axis), color=colour, lw=2, label=f"claimed for {name}")
    axes.axvline(0, color="black", ls=":", lw=1, label=None if claim.is_drawn else _THRESHOLD)
    added = "" if claim.is_drawn else " and added up"
    axes.set_xlabel(
        f"reports of the canary's phase, projected on it{added}\n"
        "(unit: the claimed standard deviation)"
    )
    axes.set_ylabel("density")
    axes.legend(loc="upper left", fontsize="small")
    axes.set_title(
        f"{'VIOLATED' if verdict.violated else 'consistent'}: "
        f"claimed ε {claim.target.epsilon:g} at δ {claim.target.delta:g} (μ {claim.mu:.3f});\n"
        f"measured μ at least {verdict.mu_lower:.3f}; if Gaussian {_measured(verdict.sharper)};\n"
        + "probability to notice a record that moves reports "
        + ", ".join(f"{each.factor:g} times as far: {100 * each.moved:.4g} %" for each in powers),
        fontsize="medium",
    )
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
