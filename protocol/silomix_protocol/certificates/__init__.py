"""Certificates, their files, and their revocation."""
