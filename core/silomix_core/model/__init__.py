"""From a record and a point to its clipped gradient, exactly: models, smoothing, rounding, sums."""
