"""What the authority refuses, and what its operator is told."""


class AuthorityError(Exception):
    """Base of what stops a command of the authority's operator; the message says what to do."""


class InvalidConfig(AuthorityError):
    """The configuration cannot be used; the message names file and key."""


class UnknownParty(AuthorityError):
    """No party or invitation of this name."""


class NameTaken(AuthorityError):
    """A party of this name is a member."""


class Refused(Exception):
    """A party's request is not granted; the message goes back to it."""


class UnknownInvitation(Refused):
    """Nobody was invited with this key, or the invitation was withdrawn."""


class InvitationExpired(Refused):
    """The invitation came too late."""


class InvitationUsed(Refused):
    """Somebody else joined with it."""


class RefusedRequest(Refused):
    """The request is not well-formed, not signed by whom it names, or not for its own name."""


class WrongClock(Refused):
    """The request was signed at another time than now."""


class TooManyCertificates(Refused):
    """The party has enough certificates that have not expired."""


class PartyRevoked(Refused):
    """The party is no longer a member."""
