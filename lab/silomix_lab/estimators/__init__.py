"""silomix for notebooks: models that are fitted on many silos' records, each kept private.

    model = FederatedClassifier(bounds=[(18, 100), (80, 200)], epsilon=2, delta=1e-6)
    model.fit([(X_a, y_a), (X_b, y_b), (X_c, y_c)])
    model.predict(X_new); print(model.privacy_)

`FederatedClassifier` tells two classes apart, `FederatedRegressor` predicts a number.  `fit` runs
the study in one process: the silos' own reporters and the coordinator's own algorithm, as
`silomix simulate` does.  `fit_over_network` runs the same study with real processes on this
machine.  `from_study` loads the model of a study that hospitals ran.  Works with scikit-learn's
`clone` and does not need scikit-learn.
"""

from silomix_lab.estimators.classifier import FederatedClassifier
from silomix_lab.estimators.federated import NotFitted
from silomix_lab.estimators.regressor import FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor", "NotFitted"]
