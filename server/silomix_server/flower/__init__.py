"""Flower around a study: SuperLink, its door, the run and its app."""
