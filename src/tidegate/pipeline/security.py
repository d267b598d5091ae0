"""Options that name code: a definition may not, unless whoever runs it says so.

A pipeline file may come from someone else. Some options of sources and sinks make a client load a
library, run a command or make an object of a class: with those a file could run anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from tidegate.errors import ConfigError

__all__ = ["ALLOW_CODE", "refuse_code"]

ALLOW_CODE = "TIDEGATE_ALLOW_CODE"
"""Set to 1, the options of a definition may name code."""

_NAMES_CODE = re.compile(
    r"(^|\.)(class|classes|reporters|providers?|library\.paths|kinit\.cmd|engine\.location|"
    r"assignment\.strategy)$",
    re.IGNORECASE,
)
"""Of Kafka's two clients: plugins, commands for tickets, handlers, interceptors, reporters."""


def refuse_code(names: Iterable[str], field: str) -> None:
    """Raise a ConfigError for the first of these options that names code.

    >>> refuse_code(["topic", "plugin.library.paths"], "sink.options")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: sink.options: got 'plugin.library.paths', names code to run; only \
with TIDEGATE_ALLOW_CODE=1
    """
    if os.environ.get(ALLOW_CODE) == "1":
        return
    for name in names:
        if _NAMES_CODE.search(name):
            raise ConfigError(field, name, f"names code to run; only with {ALLOW_CODE}=1")
