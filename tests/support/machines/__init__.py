"""Network namespaces as machines: hosts, hospitals behind NAT, bad links, the product on them.

`why_not()` says in one line why this computer cannot have them; `internet()` is the network,
`authority` and `found` make a consortium on it, `spread(made, network)` runs one.
"""

from support.machines.founding import authority, found, in_turn
from support.machines.links import Weather
from support.machines.namespaces import Namespace
from support.machines.network import Hospital, Host, Network, internet, why_not
from support.machines.spread import addresses, spread

__all__ = [
    "Hospital",
    "Host",
    "Namespace",
    "Network",
    "Weather",
    "addresses",
    "authority",
    "found",
    "in_turn",
    "internet",
    "spread",
    "why_not",
]
