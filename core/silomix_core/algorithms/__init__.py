"""What the coordinator asks next: algorithms as generators over queries and aggregates."""
