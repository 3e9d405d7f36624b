"""The demo: a whole study on one machine, on data that is nobody's secret."""
