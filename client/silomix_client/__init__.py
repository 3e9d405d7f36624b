"""A silo: answers an approved study with private, sealed reports, and keeps the ledger."""
