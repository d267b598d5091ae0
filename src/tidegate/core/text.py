"""Text for people: counts, spans of time ("1 row", "33.3 ms"), and names that strangers chose."""

from __future__ import annotations

import re

__all__ = ["plural", "span", "visible"]

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing: all controls but tab and new line, and those
that turn the direction of text."""


def visible(text: str) -> str:
    """Return a text with every character that a terminal would obey written as its escape.

    A column, a topic or a file may be called so that printing its name clears the screen, changes
    the title of the window, or sends keys.

    >>> print(visible("cam\\x1b[2J"))
    cam\\x1b[2J
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun, with thousands separators.

    `noun` is the noun for one, `several` for any other number; without `several`, `noun` with an
    `s` behind it.

    >>> plural(1, "row"), plural(12_345, "row"), plural(0, "batch", "batches")
    ('1 row', '12,345 rows', '0 batches')
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


_READ = (
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
    for unit, factor, least in _READ:
        if size >= least * factor:
            digits = ".3g" if size < 1000 * factor else ".0f"
            return f"{ns / factor:{digits}} {unit}"
    return f"{ns:.0f} ns" if ns else "0"
