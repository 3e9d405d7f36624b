"""What a silo refuses, and what its operator is told."""


class SiloError(Exception):
    """Base of everything a silo refuses; the message is for its operator."""


class InvalidConfig(SiloError):
    """The configuration, policy or a key cannot be used."""


class BadRecords(SiloError):
    """The data cannot be used for the study: file, row and column are named."""


class NotApproved(SiloError):
    """The study was not approved by this silo's operator, or cannot be."""


class RefusedQuery(SiloError):
    """The server asked for something outside the approved study."""


class TokenMissing(SiloError):
    """The server gave this silo no token for the round, so the round is not answered."""


class BudgetExhausted(SiloError):
    """Answering would exceed what the study or the operator's policy allows."""


class LedgerBroken(SiloError):
    """The ledger is not what this silo wrote: somebody changed it, or part of it was lost."""
