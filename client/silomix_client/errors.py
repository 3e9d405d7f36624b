"""What a silo refuses, and what its operator is told."""


class SiloError(Exception):
    """Base of everything a silo refuses; the message is for its operator."""


class InvalidConfig(SiloError):
    """The configuration, policy or a key cannot be used."""


class BadRecords(SiloError):
    """The data cannot be used for the study: file, row and column are named."""


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


class NotTaken(SiloError):
    """The first mix says that it did not take a report: the round is over, or it is not its own."""


class BudgetExhausted(SiloError):
    """Answering would exceed what the study or the operator's policy allows."""


class LedgerBroken(SiloError):
    """The ledger is not what this silo wrote: somebody changed it, or part of it was lost."""


class AuditLogBroken(SiloError):
    """The audit log is not what this silo wrote, or cannot be written."""
