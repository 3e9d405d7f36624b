"""What a silo does to its records, in one description: σ, sensitivity and ε follow from it."""
