"""A mix: takes sealed reports, releases them as one permuted batch, knows neither side's secret."""
