"""FHIR as a source: bundles, persons, resources and their versions."""
