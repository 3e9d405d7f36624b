"""What all parties do alike: keys, signatures, onions, descriptors, TLS, enrolment, files, logs."""

import os

# Read when grpc is first imported.  Its own polling, instead of an engine with threads of its own,
# takes two fifths off what a message costs: docs/decisions/0010.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
