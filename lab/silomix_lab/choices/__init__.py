"""What the command line and Python let a person choose, as values of the core."""
