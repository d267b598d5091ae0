"""Limits and checks of what may be configured, in one place for every batcher.

The in-process classes and the stage check their settings here, so a value that one of them takes
is good for all. A bad value is a `ConfigError` that names the field, the value and the fix;
nothing is clipped or rounded silently.
"""

from __future__ import annotations

import hashlib
import math

from tidegate.batching.grid import AHEAD_LENGTHS
from tidegate.batching.layout import MAX_LENGTH_NS
from tidegate.core.time import parse_duration
from tidegate.errors import ConfigError

__all__ = [
    "MAX_ROWS",
    "MAX_STREAMS",
    "RATES",
    "checked_length",
    "checked_timeout",
    "digest",
]

RATES = ("whole", "any")
"""Which rates a grid may have: whole numbers of Hz, or any."""

MAX_STREAMS = 4096
"""Streams per lane that can be measured. Their numbers are int16 in the records of rows, and a
record takes 450 bytes per lane."""

MAX_ROWS = 2**31 - 1
"""Rows that may wait per lane: row numbers are int32."""


def checked_length(value: object, field: str = "batch_length") -> int:
    """Return a batch length in ns.

    Args:
        value: ns as an int, text such as "200 ms", or a timedelta.
        field: Name of the setting, for the error.

    Raises:
        ConfigError: if it is no duration, below 1 ns or above one day.

    Example:
        >>> checked_length("200 ms")
        200000000
    """
    length = parse_duration(value, field, minimum=1)
    if length > MAX_LENGTH_NS:
        raise ConfigError(field, value, "must be at most one day")
    return length


def checked_timeout(value: object, field: str = "timeout") -> float:
    """Return a timeout in batch lengths; infinite means that only gates close batches.

    Args:
        value: An int or a float above 0 and at most AHEAD_LENGTHS: the high-water mark is capped
            there, so a longer timeout would never be reached.
        field: Name of the setting, for the error.

    Raises:
        ConfigError: if it is no number, nan, or out of range.

    Example:
        >>> checked_timeout(1), checked_timeout(float("inf"))
        (1.0, inf)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(field, value, "must be a number of batch lengths")
    if math.isinf(value) and value > 0:
        return math.inf
    if not 0 < value <= AHEAD_LENGTHS:  # also refuses nan
        raise ConfigError(
            field, value, f"must be above 0 and at most {AHEAD_LENGTHS} batch lengths, or infinite"
        )
    return float(value)


def digest(name: str) -> int:
    """Return 64 bits that stand for a stream's name inside kernels.

    The same in every process and version of Python, because it is part of the state. Names are
    hashed with BLAKE2b, so two names of a lane share a digest with a chance of about 1 in 10**12
    even for 4096 streams. Lone surrogates, as in file names, are allowed.
    """
    raw = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(raw, "little", signed=True)
