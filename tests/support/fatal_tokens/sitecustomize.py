"""A silo that finds this on its path dies when its tokens are there, before it stored them."""

import os
import signal
import sys

if os.environ["SILOMIX_TEST_KILLED"] in sys.orig_argv:
    from silomix_client.ledger.token_store import TokenStore

    setattr(TokenStore, "keep", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010
