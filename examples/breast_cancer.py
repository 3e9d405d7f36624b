# %% [markdown]
# # Five hospitals, one model, no record leaves its hospital
#
# The Wisconsin breast cancer records (public; they come with scikit-learn) are dealt out to five
# hospitals.  We fit one classifier for several privacy budgets ε and compare it with what each
# hospital could do alone, and with all records in one place.  Cells are marked `# %%`: editors and
# Jupyter (with jupytext) open this file as a notebook.  Run it as a script:
#
#     python examples/breast_cancer.py [picture.png]

# %%
import sys

import matplotlib as mpl
import numpy as np
from silomix import FederatedClassifier
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

if __name__ == "__main__" and "ipykernel" not in sys.modules:
    mpl.use("Agg")
import matplotlib.pyplot as plt

# %% [markdown]
# ## The public part: which values are possible
# A bound measured on the records would leak the record that it belongs to.  These ranges of mean,
# standard error and worst value are what a textbook on cell nuclei would say.

# %%
MEAN = [(5, 30), (5, 40), (40, 200), (100, 2600), (0.05, 0.2),
        (0, 0.4), (0, 0.5), (0, 0.25), (0.1, 0.35), (0.04, 0.1)]  # fmt: skip
ERROR = [(0, 3), (0, 5), (0, 25), (0, 550), (0, 0.04),
         (0, 0.15), (0, 0.4), (0, 0.06), (0, 0.08), (0, 0.03)]  # fmt: skip
WORST = [(5, 40), (10, 50), (40, 260), (100, 4300), (0.05, 0.25),
         (0, 1.1), (0, 1.3), (0, 0.3), (0.1, 0.7), (0.05, 0.25)]  # fmt: skip
BOUNDS = MEAN + ERROR + WORST

# %% [markdown]
# ## The records: five hospitals and a public hold-out

# %%
data = load_breast_cancer()
names = np.where(data.target == 0, "malignant", "benign")
order = np.random.default_rng(1).permutation(len(names))
held, *parts = np.split(order, [142, 228, 314, 399, 484])
holdout = data.data[held], names[held]
hospitals = [(data.data[rows], names[rows]) for rows in parts]

# %% [markdown]
# ## One study
# `random_state` makes this page come out the same every time.  Leave it away where it matters:
# noise that can be repeated protects nobody.

# %%
classifier = FederatedClassifier(
    bounds=BOUNDS,
    classes=("benign", "malignant"),
    epsilon=4,
    delta=1e-5,
    algorithm="noisy-mb-sgd",
    rounds=40,
    random_state=1,
)
classifier.fit(hospitals, holdout=holdout)
print(classifier.privacy_)
print(f"correct on the hold-out: {classifier.score(*holdout):.1%}")
strongest = np.argsort(-np.abs(classifier.coef_[0] * np.ptp(BOUNDS, axis=1)))[:3]
print("weighs most:", ", ".join(data.feature_names[strongest]))

# %% [markdown]
# The same study over real processes (a server, two mixes, five silos) would be
# `classifier.set_params(random_state=None).fit_over_network(hospitals, holdout=holdout)`.
#
# ## What privacy costs

# %%
EPSILONS, TRIALS = (0.5, 1, 2, 4, 8), range(1, 6)
errors = np.array(
    [
        [
            1
            - clone(classifier)
            .set_params(epsilon=epsilon, random_state=seed)
            .fit(hospitals)
            .score(*holdout)
            for seed in TRIALS
        ]
        for epsilon in EPSILONS
    ]
)
alone = [make_pipeline(MinMaxScaler(), LogisticRegression()).fit(*each) for each in hospitals]
pooled = make_pipeline(MinMaxScaler(), LogisticRegression()).fit(
    *(np.concatenate(each) for each in zip(*hospitals, strict=True))
)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
rounds = [line["round"] for line in classifier.history_]
left.plot(rounds, [100 * line["error"] for line in classifier.history_])
left.set(xlabel="round", ylabel="error on the hold-out, %", title="one study, ε = 4", ylim=0)
right.errorbar(
    EPSILONS,
    100 * errors.mean(axis=1),
    100 * errors.std(axis=1, ddof=1),
    marker="o",
    capsize=3,
    label="five hospitals together, private",
)
right.axhline(
    100 * np.mean([1 - each.score(*holdout) for each in alone]),
    color="tab:gray",
    ls=":",
    label="a hospital alone, without privacy",
)
right.axhline(
    100 * (1 - pooled.score(*holdout)),
    color="black",
    ls="--",
    label="all in one place, without privacy",
)
right.set_xscale("log")
right.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
right.minorticks_off()
right.set(xlabel="ε of everything that a hospital sends", ylabel="error on the hold-out, %", ylim=0)
right.legend(frameon=False)
picture = sys.argv[1] if __name__ == "__main__" and len(sys.argv) == 2 else "breast_cancer.png"
figure.savefig(picture, dpi=120)
print(f"the picture is in {picture}")
