"""The commands that operators type, a module for each group."""
