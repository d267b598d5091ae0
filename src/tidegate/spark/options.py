"""Options of sources and sinks: text from a reader or a pipeline file, each checked once.

Names are compared without regard to case, as Spark does it. A bad value is a ConfigError that names
the option.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.core.time import parse_duration
from tidegate.errors import ConfigError

__all__ = ["as_texts", "duration_ns", "flag", "name_list", "number", "text"]


def as_texts(options: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    """Return options as text, as Spark's own readers write them.

    >>> as_texts({"header": True, "maxFilesPerTrigger": 3})
    {'header': 'true', 'maxFilesPerTrigger': '3'}
    """
    made = {}
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"options.{name}", value, "must be text, a number, true or false")
        made[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return made


def text(options: Mapping[str, str], name: str) -> str | None:
    """Return an option as it was given, or None.

    >>> text({"maxFiles": "3"}, "maxfiles")
    '3'
    """
    for given, value in options.items():
        if given.lower() == name.lower():
            return value
    return None


def number(options: Mapping[str, str], name: str, minimum: int | None = None) -> int | None:
    """Return a whole number of at least `minimum`, or None if the option is not given.

    >>> number({"startNs": "12"}, "startNs", 0)
    12
    """
    value = text(options, name)
    if value is None:
        return None
    try:
        found = int(value)
    except ValueError:
        raise ConfigError(name, value, "must be a whole number") from None
    if minimum is not None and found < minimum:
        raise ConfigError(name, found, f"must be at least {minimum}")
    return found


def duration_ns(options: Mapping[str, str], name: str, default: str) -> int:
    """Return a duration in ns; `default` is a duration as text (`"30 s"`).

    >>> duration_ns({}, "settle", "30 s")
    30000000000
    """
    value = text(options, name)
    return parse_duration(default if value is None else value, name)


def name_list(options: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    """Return the names in a list with commas, or None if the option is not given.

    >>> name_list({"topics": "/imu, /lidar"}, "topics")
    ('/imu', '/lidar')
    """
    value = text(options, name)
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())


def flag(options: Mapping[str, str], name: str) -> bool:
    """Return an option that is `true` or `false`; false if it is not given.

    >>> flag({"crc": "True"}, "crc")
    True
    """
    value = (text(options, name) or "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(name, value, "must be true or false")
    return value == "true"
