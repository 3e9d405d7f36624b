"""What stops a study."""


class ServerError(Exception):
    """Base of everything that stops the server; the message says what to do."""


class InvalidConfig(ServerError):
    """The configuration cannot be used; the message names file and key."""


class StudyFailed(ServerError):
    """The study cannot go on."""


class StartFailed(ServerError):
    """A process of the server did not come up, or the run could not be started."""
