"""Privacy spent, reports stored, and what became of them: one database, one writer."""
