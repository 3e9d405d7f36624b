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
