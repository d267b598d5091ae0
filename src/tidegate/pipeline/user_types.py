"""Event-time types of your own, for pipeline files and the command line.

    # my_clocks.py, anywhere on the Python path
    def register(types):
        types.register("gps_seconds", lambda column: ...)   # Arrow column -> int64 ns or timestamps

    tidegate run fleet.yaml --types my_clocks:register

or, in an installed package, an entry point in the group `tidegate.eventtime_types`:

    [project.entry-points."tidegate.eventtime_types"]
    gps_seconds = "my_clocks:register"

This is code, so the rule for code holds: a pipeline file alone never loads it. Whoever starts the
run names it with `--types` (a `module:function`, or the name of an entry point), or sets
TIDEGATE_ALLOW_CODE=1, which allows every entry point whose name a definition uses as a type.

On a cluster the module must be importable by the workers, as any code of a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeTypes
from tidegate.pipeline.security import ALLOW_CODE, code_allowed

__all__ = ["GROUP", "TYPES", "known_types", "use_types"]

GROUP = "tidegate.eventtime_types"
"""The group of entry points."""

TYPES = "TIDEGATE_TYPES"
"""What `--types` was given, with commas between: a variable, so that restarts and children see
it."""


def use_types(names: Iterable[str]) -> None:
    """Load these types in every plan of this process: `--types` calls this.

    `names` are `module:function`, or names of entry points. Raises ConfigError if one cannot be
    loaded.
    """
    given = [*_given(), *names]
    os.environ[TYPES] = ",".join(dict.fromkeys(given))
    known_types()


def known_types(wanted: Iterable[str] = ()) -> EventtimeTypes:
    """Return the event-time types that definitions may use in this process.

    Args:
        wanted: Types that a definition names. Those that are not known are looked up among the
            entry points, if TIDEGATE_ALLOW_CODE=1.

    Raises:
        ConfigError: A function cannot be loaded or fails, or an entry point would have to be
            allowed.

    >>> "iso8601" in known_types().list()
    True
    >>> use_types(["no_such_module:register"])
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: --types: got 'no_such_module:register', cannot be loaded: No \
module named 'no_such_module'
    >>> del os.environ[TYPES]
    """
    types = EventtimeTypes()
    for name in _given():
        _call(_load(name), name, types)
    for name in dict.fromkeys(wanted):
        if name in types.list():
            continue
        found = _entry_point(name)
        if found is None:
            continue  # the planner says which types there are
        if not code_allowed():
            raise ConfigError(
                "eventtime.type", name,
                f"is provided by {found.value} in an installed package; allow it with "
                f"--types {name} or {ALLOW_CODE}=1",
            )  # fmt: skip
        _call(_load_entry_point(found, name), name, types)
    return types


def _given() -> list[str]:
    return [name.strip() for name in os.environ.get(TYPES, "").split(",") if name.strip()]


def _entry_point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)


def _load(name: str) -> Callable[[EventtimeTypes], Any]:
    """The function of `module:function`, or of an entry point."""
    module, colon, function = name.partition(":")
    if not colon:
        found = _entry_point(name)
        if found is None:
            raise ConfigError("--types", name, f"must be module:function or one of group {GROUP}")
        return _load_entry_point(found, name)
    try:
        target: Any = getattr(import_module(module), function)
    except Exception as error:
        raise ConfigError("--types", name, f"cannot be loaded: {error}") from error
    return _callable(target, name)


def _load_entry_point(entry: EntryPoint, name: str) -> Callable[[EventtimeTypes], Any]:
    """Import an event-time type that an installed package publishes."""
    try:
        return _callable(entry.load(), name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError("--types", name, f"cannot be loaded: {error}") from error


def _callable(target: Any, name: str) -> Callable[[EventtimeTypes], Any]:
    """Return what was imported under a name. Raises ConfigError if it cannot be called."""
    if not callable(target):
        raise ConfigError("--types", name, "must be a function of an EventtimeTypes registry")
    function: Callable[[EventtimeTypes], Any] = target
    return function


def _call(function: Callable[[EventtimeTypes], Any], name: str, types: EventtimeTypes) -> None:
    """Call a user's function, and turn whatever it raises into a ConfigError that names it."""
    try:
        function(types)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError("--types", name, f"failed: {type(error).__name__}: {error}") from error
