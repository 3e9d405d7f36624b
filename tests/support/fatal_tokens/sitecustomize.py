"""A silo that finds this on its path dies when its tokens are there, before it stored them."""

import os
import signal
import sys

if os.environ["SILOMIX_TEST_KILLED"] in sys.orig_argv:
    from silomix_client.ledger.study_account import StudyAccount

    setattr(  # noqa: B010
        StudyAccount, "keep_tokens", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    )
