"""Sources with clinical models: OMOP and FHIR, their codes and concepts."""
