"""A silo's state in one encrypted file, and back."""
