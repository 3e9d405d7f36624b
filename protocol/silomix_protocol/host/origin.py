"""Whom a caller's address counts for, where some must not take the place of others."""

from ipaddress import ip_address, ip_network

_V6_NETWORK = 64  # bits of an IPv6 address that name one site


def origin_of(host: str) -> str:
    """The origin of an address: an IPv4 address itself, or the network of an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _V6_NETWORK), strict=False))
