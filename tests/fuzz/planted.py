"""A parser with a bug that random bytes do not find: it takes four right bytes, one by one."""


def planted(data: bytes) -> None:
    if len(data) < 4:
        raise ValueError("too short")
    for place, expected in enumerate(b"SMR"):
        if data[place] != expected:
            raise ValueError(f"not a report: byte {place}")
    if data[3] > 250:
        raise KeyError("planted")
