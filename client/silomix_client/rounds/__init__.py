"""A silo in a study's rounds: what it hears, checks, answers, sends, and complains about."""
