"""The silomix command line: thin commands over the silo, the mix and the server."""
