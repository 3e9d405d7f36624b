"""How a silo gets out: routes, the Fleet API, bounded HTTP, syslog, how its connections stand."""
