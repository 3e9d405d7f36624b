"""`silomix silo doctor`: what a silo's surroundings look like, a finding for each."""
