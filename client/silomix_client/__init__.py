"""A silo: answers an approved study's queries with private, sealed reports, and keeps the ledger."""
