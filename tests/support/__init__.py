"""What tests of several packages share: small consortia on disk, and real processes."""
