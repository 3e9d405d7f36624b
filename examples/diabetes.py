# %% [markdown]
# # Five clinics predict a number: how far a disease has progressed
#
# The diabetes records of Efron et al. (public; they come with scikit-learn: 442 patients, ten
# measurements, a score of progression a year later) are dealt out to five clinics.  We fit one
# regression for several privacy budgets ε and compare it with what each clinic could do alone, and
# with all records in one place.  Cells are marked `# %%`: editors and Jupyter (with jupytext) open
# this file as a notebook.  Run it as a script:
#
#     python examples/diabetes.py [picture.png]

# %%
import sys

import matplotlib as mpl
import numpy as np
from silomix import FederatedRegressor
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

if __name__ == "__main__" and "ipykernel" not in sys.modules:
    mpl.use("Agg")
import matplotlib.pyplot as plt

# %% [markdown]
# ## The public part: which values are possible
# Of age, sex (1 or 2), body mass index, blood pressure, six blood values, and of the score to
# predict.  A bound measured on the records would leak the record that it belongs to; these are
# round numbers that a physician would name.

# %%
BOUNDS = [(18, 80), (1, 2), (15, 45), (60, 135), (90, 310),
          (40, 250), (20, 100), (2, 10), (3, 6.5), (50, 130)]  # fmt: skip
SCORE = (0, 350)

# %% [markdown]
# ## The records: five clinics and a public hold-out

# %%
data = load_diabetes(scaled=False)
order = np.random.default_rng(1).permutation(len(data.target))
held, *parts = np.split(order, [112, 178, 244, 310, 376])
holdout = data.data[held], data.target[held]
clinics = [(data.data[rows], data.target[rows]) for rows in parts]

# %% [markdown]
# ## One study
# `random_state` makes this page come out the same every time.  Leave it away where it matters:
# noise that can be repeated protects nobody.

# %%
regressor = FederatedRegressor(
    bounds=BOUNDS, label_bounds=SCORE, epsilon=4, delta=1e-5, algorithm="auto", random_state=1
)
regressor.fit(clinics, holdout=holdout)
print(regressor.privacy_)
print(f"R² on the hold-out: {regressor.score(*holdout):.2f}")
strongest = np.argsort(-np.abs(regressor.coef_ * np.ptp(BOUNDS, axis=1)))[:3]
print("weighs most:", ", ".join(data.feature_names[index] for index in strongest))

# %% [markdown]
# ## What privacy costs

# %%
EPSILONS, TRIALS = (1, 2, 4, 8, 16), range(1, 6)
scores = np.array(
    [
        [
            clone(regressor)
            .set_params(epsilon=epsilon, random_state=seed)
            .fit(clinics)
            .score(*holdout)
            for seed in TRIALS
        ]
        for epsilon in EPSILONS
    ]
)
alone = [LinearRegression().fit(*each).score(*holdout) for each in clinics]
pooled = LinearRegression().fit(*(np.concatenate(each) for each in zip(*clinics, strict=True)))
for epsilon, found in zip(EPSILONS, scores, strict=True):
    print(f"ε = {epsilon:>2}: R² {found.mean():.2f} ± {found.std(ddof=1):.2f}")
print(f"a clinic alone, without privacy: {np.mean(alone):.2f} (worst {min(alone):.2f})")
print(f"all in one place, without privacy: {pooled.score(*holdout):.2f}")

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.errorbar(
    EPSILONS,
    scores.mean(axis=1),
    scores.std(axis=1, ddof=1),
    marker="o",
    capsize=3,
    label="five clinics together, private",
)
axes.axhline(np.mean(alone), color="tab:gray", ls=":", label="a clinic alone, without privacy")
axes.axhline(
    pooled.score(*holdout), color="black", ls="--", label="all in one place, without privacy"
)
axes.set_xscale("log")
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.minorticks_off()
axes.set(xlabel="ε of everything that a clinic sends", ylabel="R² on the hold-out")
axes.legend(frameon=False)
picture = sys.argv[1] if __name__ == "__main__" and len(sys.argv) == 2 else "diabetes.png"
figure.savefig(picture, dpi=120)
print(f"the picture is in {picture}")
