"""Spans of time for people to read, and for a pipeline file to hold."""

from __future__ import annotations

from tidegate.core.time import format_duration

__all__ = ["setting", "span"]

DAY_NS = 86_400 * 10**9

READ = (
    ("years", 365.25 * 86_400e9, 2), ("d", 86_400e9, 2), ("h", 3.6e12, 2), ("min", 60e9, 10),
    ("s", 1e9, 1), ("ms", 1e6, 1), ("µs", 1e3, 1),
)  # fmt: skip
"""Units, their length in ns, and from how many on they are used: below two hours, minutes are
easier to compare with a tolerance."""


def span(ns: float) -> str:
    """Return a span of time in three significant digits. For reading, not for computing.

    Args:
        ns: The span in ns; may be negative.

    >>> span(33_333_333), span(1_500), span(0), span(31_535_999_928_507_197)
    ('33.3 ms', '1.5 µs', '0', '365 d')
    """
    size = abs(ns)
    for unit, factor, least in READ:
        if size >= least * factor:
            return (
                f"{ns / factor:.3g} {unit}" if size < 1000 * factor else f"{ns / factor:.0f} {unit}"
            )
    return f"{ns:.0f} ns" if ns else "0"


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
