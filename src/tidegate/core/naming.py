"""Names as definitions write them, and as Python does."""

from __future__ import annotations

import re

__all__ = ["snake"]


def snake(name: str) -> str:
    """`maxInterval` as `max_interval`.

    >>> snake("maxInterval"), snake("max_interval")
    ('max_interval', 'max_interval')
    """
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), str(name))
