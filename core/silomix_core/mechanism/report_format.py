"""The plaintext of a report: a header and d fixed-width integers, the same length from every silo.

    b"SMR1" | width (1 byte) | 1 if the silo abstains, else 0 | 2 zero bytes
           | d little-endian signed integers, all 0 if it abstains

Values saturate at the mechanism's bound when encoded (post-processing of private values, so it
costs nothing); a report with any value beyond that bound was not made by the mechanism and is
dropped whole, never repaired.
"""

import numpy as np
from numpy.typing import NDArray

from silomix_core.mechanism.mechanism import Mechanism

_MAGIC = b"SMR1"
_HEADER_BYTES = 8


class MalformedReport(ValueError):
    """The bytes are not a report of this mechanism."""


def report_bytes(mechanism: Mechanism) -> int:
    return _HEADER_BYTES + mechanism.width * mechanism.dimension


def encode_report(
    values: NDArray[np.int64], mechanism: Mechanism, *, takes_part: bool = True
) -> bytes:
    """The bytes of a report of these values; of zeros, after the same work, in an abstention."""
    bound = mechanism.largest_value
    saturated = np.clip(values, -bound, bound) * int(takes_part)
    return _header(mechanism, takes_part) + saturated.astype(f"<i{mechanism.width}").tobytes()


def is_abstention(data: bytes, mechanism: Mechanism) -> bool:
    """Return whether these bytes say that their silo does not take part in the round."""
    return data == _header(mechanism, takes_part=False).ljust(report_bytes(mechanism), b"\0")


def decode_report(data: bytes, mechanism: Mechanism) -> NDArray[np.int64]:
    if len(data) != report_bytes(mechanism):
        raise MalformedReport("wrong length")
    if data[:_HEADER_BYTES] != _header(mechanism, takes_part=True):
        raise MalformedReport("wrong header")
    values = np.frombuffer(data, dtype=f"<i{mechanism.width}", offset=_HEADER_BYTES)
    bound = mechanism.largest_value
    if values.max() > bound or values.min() < -bound:
        raise MalformedReport("value outside the mechanism's range")
    return values.astype(np.int64)


def _header(mechanism: Mechanism, takes_part: bool) -> bytes:
    return _MAGIC + bytes([mechanism.width, not takes_part, 0, 0])
