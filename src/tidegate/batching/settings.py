"""What may be configured, checked in one place for every batcher."""

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
    """A batch length in ns."""
    length = parse_duration(value, field, minimum=1)
    if length > MAX_LENGTH_NS:
        raise ConfigError(field, value, "must be at most one day")
    return length


def checked_timeout(value: object, field: str = "timeout") -> float:
    """A timeout in batch lengths; infinite means that only slot gates close batches."""
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
    """64 bits that stand for a stream's name inside kernels, the same in every process."""
    raw = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(raw, "little", signed=True)
