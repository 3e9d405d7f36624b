"""What hospitals agree on: the study file read and written, and what follows from it."""
