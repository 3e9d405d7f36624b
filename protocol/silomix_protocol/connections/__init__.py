"""Connections between parties: TLS, introductions behind inspection, proxies, versions."""
