"""What silos and server of a study with control variates think of each other, read from disk.

A report is the difference between a silo's answer and its last one that was used.  So the sums of
all rounds that were used add up to what the silos keep, to the integer: a silo that is wrong about
one answer differs by a difference of two of them, noise and all.
"""

from contextlib import closing
from pathlib import Path

import numpy as np
from silomix_client.config.silo_config import load
from silomix_core.mechanism.report_format import decode_report, report_bytes
from silomix_core.reports.reporter import Integers
from silomix_lab.consortium.create import Consortium
from silomix_protocol.rounds.statements import digests
from silomix_server.study.journal import AttemptOutcome, Journal

from support.silos import open_ledger


def check_controls(made: Consortium) -> int:
    """AssertionError unless the silos keep what the server summed; rounds that it summed.

    All processes have ended, before the last round: after that one nothing is kept.
    """
    state = made.server.parent / "state"
    with closing(Journal(state / f"journal-{made.study.short_id}.sqlite")) as journal:
        used = [closed.total for closed in journal.rounds() if closed.total is not None]
        kept = [_kept(made, silo, journal) for silo in made.silos]
    assert np.array_equal(sum(used), sum(kept)), (used, kept)
    return len(used)


def _kept(made: Consortium, silo: Path, journal: Journal) -> Integers:
    """A silo's integers after its last report, whose fate it may still have to be told."""
    mechanism = made.study.mechanism()
    with closing(open_ledger(load(silo))) as ledger:
        kept = ledger.account(made.study).control(mechanism.dimension)
        last = ledger.account(made.study).last_report()
        if last is None:
            return kept
        digest = last.descriptor.digest
        known = ledger.account(made.study).outcome(digest)
        used = _is_used(journal.outcome(digest), last.trail[-1])
        assert not known.settled or known.used == used, last.descriptor.round
    if not used:
        return kept
    return kept + decode_report(last.payload[-report_bytes(mechanism) :], mechanism)


def _is_used(outcome: AttemptOutcome | None, report: bytes) -> bool:
    """Whether a report is in the sum of its round, as the server wrote it down."""
    if outcome is None or outcome.committed is None or outcome.closed is None:
        return False
    return not outcome.closed.void and report in digests(outcome.committed.list)
