"""What a pipeline file that comes from someone else may not do: name code, leave the given folders.

Code: some options of sources and sinks make a client load a library, run a command or make an
object of a class. They are refused unless TIDEGATE_ALLOW_CODE=1.

Folders: with TIDEGATE_ROOTS set to directories (`:` between them), every path in a definition must
lie in one of them, whatever `..` or symbolic links it goes through: sources, sinks, the checkpoint,
files of secrets, and options that name a place. Without it, paths are the user's own affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidegate.errors import ConfigError

__all__ = ["ALLOW_CODE", "ROOTS", "inside_roots", "option_inside_roots", "refuse_code"]

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


ROOTS = "TIDEGATE_ROOTS"

_NAMES_A_PLACE = re.compile(r"(path|dir|directory|folder|file|location|keytab)$", re.IGNORECASE)
"""Options of formats and clients that name a place: `sourceArchiveDir`, `ssl.ca.location`."""


def inside_roots(
    path: str, field: str, env: Mapping[str, str] | None = None, *, pattern: bool = False
) -> str:
    """`path`, or a ConfigError if it leaves the directories given.

    >>> inside_roots("/data/fleet/../../etc", "sink.path", {"TIDEGATE_ROOTS": "/data"})
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: sink.path: got '/data/fleet/../../etc', must lie in /data \
(TIDEGATE_ROOTS)
    """
    given = (os.environ if env is None else env).get(ROOTS)
    if not given:
        return path
    roots = [Path(root).resolve() for root in given.split(os.pathsep) if root]
    plain = path.removeprefix("file://")
    # A pattern is judged by what stands before its first sign, and may not climb after it.
    before = plain
    for sign in "*?[{" if pattern else "":
        before = before.split(sign, 1)[0]
    place = Path(before or ".").resolve()
    climbs = ".." in Path(plain[len(before) :]).parts
    if "://" in plain or climbs or not any(place.is_relative_to(root) for root in roots):
        shown = ", ".join(str(root) for root in roots)
        raise ConfigError(field, path, f"must lie in {shown} ({ROOTS})")
    return path


def option_inside_roots(name: str, value: str, field: str) -> None:
    """Refuse an option that names a place outside of the directories given."""
    if _NAMES_A_PLACE.search(name):
        inside_roots(value, f"{field}.{name}")
