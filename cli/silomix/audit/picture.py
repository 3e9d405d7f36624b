"""The audit in one picture: what the attacker saw for D and for D′, and what was promised."""

from pathlib import Path

import numpy as np
from scipy import stats

from silomix.audit.verdict import Verdict


def draw(verdict: Verdict, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    claim = verdict.claim
    values = np.concatenate([verdict.first, verdict.second])
    reach = max(float(np.abs(values).max()), claim.mu / 2 + 3.5)
    edges = np.linspace(-reach, reach, 2 * max(8, round(len(values) ** 0.4)) + 1)
    axis = np.linspace(-reach, reach, 400)
    figure, axes = plt.subplots(figsize=(8, 5))
    for seen, centre, colour, name in (
        (verdict.first, -claim.mu / 2, "tab:blue", "D"),
        (verdict.second, claim.mu / 2, "tab:orange", "D′"),
    ):
        axes.hist(
            seen,
            edges.tolist(),
            density=True,
            alpha=0.45,
            color=colour,
            label=f"{len(seen)} studies on {name}",
        )
        density = stats.norm.pdf(axis, centre)
        axes.plot(axis, density, color=colour, lw=2, label=f"claimed for {name}")
    axes.axvline(0, color="black", ls=":", lw=1, label="the attacker's threshold")
    axes.set_xlabel(
        "reports of a study, projected on the canary and added up\n"
        "(unit: the claimed standard deviation)"
    )
    axes.set_ylabel("density")
    axes.legend(loc="upper left", fontsize="small")
    axes.set_title(
        f"{'VIOLATED' if verdict.violated else 'consistent'}: "
        f"claimed ε {claim.target.epsilon:g} at δ {claim.target.delta:g} (μ {claim.mu:.3f});\n"
        f"measured μ {verdict.mu_estimate:.3f} ± {verdict.mu_error:.2g}, "
        f"at least {verdict.mu_lower:.3f} ({verdict.mu_lower_gaussian:.3f} if Gaussian)"
    )
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
