"""What the authority refuses, and what its operator is told."""


class AuthorityError(Exception):
    """Base of what stops a command of the authority's operator; the message says what to do."""


class InvalidAuthorityConfig(AuthorityError):
    """The configuration cannot be used; the message names file and key."""


class UnknownParty(AuthorityError):
    """No party and no open invitation has this name."""


class NameTaken(AuthorityError):
    """A member, or a party spelled alike but for capitals, has this name."""


class NotGranted(Exception):
    """A party's request is not granted; the message goes back to it."""


class UnknownInvitation(NotGranted):
    """Nobody was invited with this key, or the invitation was withdrawn."""


class InvitationExpired(NotGranted):
    """The invitation was used after it had expired."""


class InvitationUsed(NotGranted):
    """The invitation was used before, with other keys."""


class RefusedRequest(NotGranted):
    """The request is not well-formed, not signed by whom it names, or not for its own name."""


class WrongClock(NotGranted):
    """The time in the signed request is too far from the authority's."""


class TooManyCertificates(NotGranted):
    """The party has enough certificates that have not expired."""


class PartyRevoked(NotGranted):
    """The party is no longer a member."""
