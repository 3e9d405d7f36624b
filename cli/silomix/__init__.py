"""The silomix command line: thin commands over the silo, the mix and the server."""

import silomix_protocol  # noqa: F401 before anything imports grpc
