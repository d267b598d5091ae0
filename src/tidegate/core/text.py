"""Counts as people write them: "1 row", "2 rows"."""

from __future__ import annotations

__all__ = ["plural"]


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun, with thousands separators.

    `noun` is the noun for one, `several` for any other number; without `several`, `noun` with an
    `s` behind it.

    >>> plural(1, "row"), plural(12_345, "row"), plural(0, "batch", "batches")
    ('1 row', '12,345 rows', '0 batches')
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
