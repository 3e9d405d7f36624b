"""How good a model is: on public records, on private ones with noise, against a pooled fit."""
