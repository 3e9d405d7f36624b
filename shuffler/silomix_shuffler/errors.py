"""What a mix refuses, and why."""


class Refused(Exception):
    """Something sent to this mix is not accepted; the message may cross the trust boundary."""


class WrongRound(Refused):
    """The round is over, unknown here or already bound to another descriptor."""


class WrongSender(Refused):
    """The caller may not send this."""


class ReplayedReport(Refused):
    """This silo already has another report in the batch."""


class WrongLength(Refused):
    """A report has not the one length that all reports of the round have."""


class SecondBatch(Refused):
    """The previous mix sent another batch for a round whose batch was already taken."""


class Stopping(Refused):
    """The mix is being stopped: rounds under way go on, none begins."""


class GateClosed(Refused):
    """Too few silos confirmed that their reports are in the batch."""


class NoRoom(Refused):
    """The disk, or what this mix may use of it, is full."""


class TooMuch(Refused):
    """The caller asks for more than its share."""
