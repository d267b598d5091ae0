"""Spans of time as a pipeline file holds them, and times as people read them."""

from __future__ import annotations

from tidegate.core.time import format_duration, format_time

__all__ = ["moment", "setting"]

DAY_NS = 86_400 * 10**9


def setting(ns: int) -> str:
    """Return a span exactly, as a pipeline file has it; whole days as days.

    >>> setting(1_400_000_000), setting(31 * 86_400 * 10**9), setting(86_400 * 10**9)
    ('1.4 s', '31 d', '24 h')
    """
    if ns >= 2 * DAY_NS and ns % DAY_NS == 0:
        return f"{ns // DAY_NS} d"
    if 10**9 < ns < 60 * 10**9 and ns % 10**8 == 0 and ns % 10**9:
        return f"{ns // 10**9}.{ns % 10**9 // 10**8} s"
    return format_duration(ns)


def moment(ns: int | None) -> str:
    """Return a time in ISO 8601 without the digits that say nothing; `-` for none.

    >>> moment(1_500_000_000), moment(0), moment(None)
    ('1970-01-01T00:00:01.5Z', '1970-01-01T00:00:00Z', '-')
    """
    whole = format_time(ns)
    return whole if whole == "-" else whole.rstrip("Z").rstrip("0").rstrip(".") + "Z"
