"""How a silo makes its report, and how a server turns all reports of a round into one."""
