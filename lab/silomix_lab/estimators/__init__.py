"""silomix for notebooks: models that are fitted on many silos' records, each kept private."""

from silomix_lab.estimators.federated import FederatedClassifier, FederatedRegressor, NotFitted

__all__ = ["FederatedClassifier", "FederatedRegressor", "NotFitted"]
