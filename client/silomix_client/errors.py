"""What a silo refuses, and what its operator is told."""

from silomix_protocol.host.logs import printable


class SiloError(Exception):
    """Base of everything a silo refuses; the message is for its operator."""


class InvalidSiloConfig(SiloError):
    """The configuration, policy or a key cannot be used."""


class BadRecords(SiloError):
    """The data cannot be used for the study: file, row and column are named.

    The message may show what stands in the data, and never more than a line of printable text.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NotApproved(SiloError):
    """The study was not approved by this silo's operator, or cannot be."""


class OutsidePolicy(NotApproved):
    """The study asks for something that the operator's policy rules out."""


class OutsideHours(SiloError):
    """The policy's hours are over, or have not begun."""


class RefusedQuery(SiloError):
    """The server asked for something outside the approved study."""


class TokenMissing(SiloError):
    """The server gave this silo no token for the round, so the round is not answered."""


class Unsettled(SiloError):
    """It is not known whether the last report was used, which the next answer depends on."""


class NotTaken(SiloError):
    """The first mix says that it did not take a report: its round is over, or not the mix's own."""


class BudgetExhausted(SiloError):
    """Answering would exceed what the study or the operator's policy allows."""


class LedgerBroken(SiloError):
    """The ledger is not what this silo wrote: somebody changed it, or part of it was lost."""


class SiloBusy(SiloError):
    """Another process of this silo holds what this one waited for."""


class LedgerBehind(SiloError):
    """Somebody has this silo's signature on a ledger that has more, or other, entries than this."""


class AuditLogBroken(SiloError):
    """The audit log is not what this silo wrote, or cannot be written."""
