"""The hash-chained log of what a silo did, for its operator; how it is verified."""
