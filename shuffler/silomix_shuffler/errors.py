"""The reasons for which a mix refuses what it is sent or asked."""

from silomix_protocol.rounds.heights import Height


class RefusedByMix(Exception):
    """Something sent to this mix is not accepted; the message may cross the trust boundary."""


class WrongRound(RefusedByMix):
    """The round is over, unknown here or already bound to another descriptor."""


class UnfitList(WrongRound):
    """A list that cannot be what this mix forwarded: the round is void."""


class WrongSender(RefusedByMix):
    """The caller may not send this."""


class ReplayedReport(RefusedByMix):
    """This silo already has another report in the batch."""


class BehindLedger(RefusedByMix):
    """The report was charged to another ledger than the one whose height its silo left here."""

    def __init__(self, held: Height) -> None:
        super().__init__("your ledger is behind the one that you signed before, or not the same")
        self.held = held


class WrongLength(RefusedByMix):
    """A report's length is not the one that all reports of the round have."""


class SecondBatch(RefusedByMix):
    """The previous mix sent another batch for a round whose batch was already taken."""


class Stopping(RefusedByMix):
    """The mix is being stopped: rounds under way go on, none begins."""


class GateClosed(RefusedByMix):
    """Too few silos confirmed that their reports are in the batch."""


class NoRoom(RefusedByMix):
    """The disk, or what this mix may use of it, is full."""


class TooMuch(RefusedByMix):
    """The caller asks for more than its share."""
