"""Text in the YAML files that `init` writes."""

from __future__ import annotations

import json
import re

__all__ = ["quoted"]

_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
"""A character beyond 16 bits, as JSON escapes it. YAML takes it for two halves of a character."""


def quoted(text: str) -> str:
    r"""Return text between quotes, as YAML reads it back and people read it: umlauts and pictures
    as they are, what cannot be printed as JSON escapes it.

    >>> print(quoted("a: ü"), quoted("tab\t"))
    "a: ü" "tab\t"
    """
    if text.isprintable():
        return json.dumps(text, ensure_ascii=False)
    return _PAIR.sub(_as_one, json.dumps(text))


def _as_one(pair: re.Match[str]) -> str:
    """Return the escape of one character for that of its two halves."""
    return f"\\U{ord(json.loads(chr(34) + pair[0] + chr(34))):08x}"
