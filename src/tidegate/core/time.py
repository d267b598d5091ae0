"""Time is `int` nanoseconds since the epoch; durations are `int` nanoseconds.

Users may write `"200 ms"` or a `timedelta`; both are read once, at the edge, without floats.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from tidegate.errors import ConfigError

__all__ = [
    "MAX_NS",
    "MIN_NS",
    "UNSET",
    "Duration",
    "format_duration",
    "format_time",
    "parse_duration",
]

Duration = int | str | timedelta
"""What a user may write for a span of time: nanoseconds, `"200 ms"`, or a timedelta."""

UNSET = -(2**63)
"""No time yet. The smallest int64: every real time is greater, so `max` needs no special case."""

MIN_NS = UNSET + 1
"""The earliest real time (1677-09-21)."""

MAX_NS = 2**63 - 1
"""The latest real time (2262-04-11)."""

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_WORDS = {
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
}
"""Units as Spark writes them, in the singular. A month or a year has no fixed length: refused."""
_WANTED = 'must be nanoseconds, a string like "200 ms", or a timedelta'
_PART = r"[+-]?\d+(?:\.\d+)?\s*[a-zµ]+"
_DURATION = re.compile(rf"\s*(?:interval\s+)?({_PART}(?:\s+{_PART})*)\s*")
_PARTS = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)")


def parse_duration(value: object, field: str = "duration", *, minimum: int | None = 0) -> int:
    """Whole nanoseconds of an int (ns), a string such as `"1.5 s"`, or a timedelta.

    Spark's spellings are read as well: `"10 minutes"`, `"1 hour 30 minutes"`, `"interval 2 days"`.
    `field` is the setting an error is about; `minimum` the smallest value allowed (None: any).
    Raises `ConfigError` for anything else, fractions of a nanosecond included.

    >>> parse_duration("200 ms"), parse_duration("1.5 s"), parse_duration(timedelta(seconds=2))
    (200000000, 1500000000, 2000000000)
    >>> parse_duration("7 parsecs", "late_tolerance")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: late_tolerance: got '7 parsecs', unit must be one of ns, us, ...
    >>> parse_duration("10 minutes"), parse_duration("INTERVAL 1 hour 30 minutes")
    (600000000000, 5400000000000)
    """
    ns: int
    if isinstance(value, bool) or value is None:
        raise ConfigError(field, value, _WANTED)
    if isinstance(value, int):
        ns = value
    elif isinstance(value, timedelta):
        ns = (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value.lower())
        if match is None:
            raise ConfigError(field, value, 'must be a number and a unit, like "200 ms"')
        exact = Decimal(0)
        for number, word in _PARTS.findall(match[1]):
            unit = word if word in _UNITS else _WORDS.get(word.removesuffix("s"), word)
            if unit not in _UNITS:
                raise ConfigError(field, value, f"unit must be one of {', '.join(_UNITS)}")
            exact += Decimal(number) * _UNITS[unit]
        if exact != exact.to_integral_value():
            raise ConfigError(field, value, "must be a whole number of nanoseconds")
        ns = int(exact)
    elif hasattr(value, "__index__"):  # numpy integers
        ns = value.__index__()
    else:
        raise ConfigError(field, value, _WANTED)
    if minimum is not None and ns < minimum:
        raise ConfigError(field, value, f"must be at least {format_duration(minimum)}")
    if not MIN_NS <= ns <= MAX_NS:
        raise ConfigError(field, value, "must fit into 64-bit nanoseconds (about 292 years)")
    return ns


def format_duration(ns: int) -> str:
    """The shortest exact way to write it, in a form `parse_duration` reads.

    >>> format_duration(200_000_000), format_duration(1_500_000_000), format_duration(0)
    ('200 ms', '1500 ms', '0 ns')
    """
    if ns == 0:
        return "0 ns"
    for unit in ("h", "min", "s", "ms", "us"):
        if ns % _UNITS[unit] == 0:
            return f"{ns // _UNITS[unit]} {unit}"
    return f"{ns} ns"


def format_time(ns: int | None) -> str:
    """ISO 8601 in UTC with all nine digits; `-` for no time yet.

    >>> format_time(1_500_000_001)
    '1970-01-01T00:00:01.500000001Z'
    """
    if ns is None or ns == UNSET:
        return "-"
    seconds, rest = divmod(ns, 10**9)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
