"""Spans of time as a pipeline file holds them."""

from __future__ import annotations

from tidegate.core.time import format_duration

__all__ = ["setting"]

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
