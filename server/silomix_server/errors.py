"""The errors that stop a study, an attempt at a round, or a silo's stream."""


class ServerError(Exception):
    """The base of all errors that stop the server; the message says what to do."""


class InvalidServerConfig(ServerError):
    """The configuration cannot be used; the message names file and key."""


class StudyFailed(ServerError):
    """The study cannot go on."""


class StartFailed(ServerError):
    """A process of the server did not come up, or the run could not be started."""


class MixFailed(ServerError):
    """A mix did not answer, refused, or answered with something else; the message names it."""


class MixRefused(MixFailed):
    """A mix answered, and will not do what it was asked."""


class BatchAborted(ServerError):
    """A mix stated that it forwarded nothing, and why."""


class BatchBroken(ServerError):
    """A batch came, but not the reports that its mixes stated: the round is never tried again."""


class UnwelcomeFrame(ServerError):
    """A silo said something that the round channel has no use for."""
