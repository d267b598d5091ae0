"""Which directories a pipeline file may read from and write to.

A pipeline file may come from someone else. With `TIDEGATE_ROOTS` set to directories (`:` between
them), every path in a definition must lie in one of them, whatever `..` or symbolic links it goes
through: sources, sinks, the checkpoint, files of secrets, and options that name a place. Without
it, paths are the user's own affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import ConfigError

__all__ = ["ROOTS", "inside_roots", "option_inside_roots"]

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
