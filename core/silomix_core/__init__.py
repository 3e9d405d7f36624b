"""Mathematics and domain types of silomix: from a record to a private report, and to a model.

Nothing in this package touches a network, a file, a clock or a key; numpy and the standard
library are all it knows.
"""
