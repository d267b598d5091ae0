"""Checks of settings: one way to refuse a bad value.

Every function takes the name of the setting first, so that the error names it, returns the value in
the form the package uses, and raises `ConfigError(field, value, expected)` otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

from tidegate.core.time import parse_duration
from tidegate.errors import ConfigError

__all__ = ["boolean", "column_name", "duration", "int_in", "names", "number_in", "one_of", "snake"]

T = TypeVar("T")

_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
"""What a kernel can take: a larger setting would only be refused by the first row."""


def int_in(field: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """A whole number between `low` and `high`, both included; None: no limit on that side.

    True and False are not numbers, and neither is 2.0: a value of the wrong type is usually the
    value of another setting.

    >>> int_in("queue_size", 10, 1)
    10
    >>> int_in("queue_size", 0, 1)
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: queue_size: got 0, must be a whole number of at least 1
    """
    whole: int | None = value.__index__() if hasattr(value, "__index__") else None
    if whole is not None and not _MIN_INT <= whole <= _MAX_INT:
        raise ConfigError(field, value, "must be a whole number of 64 bits")
    if isinstance(value, bool) or whole is None or not _within(whole, low, high):
        raise ConfigError(field, value, f"must be a whole number{_limits_in_words(low, high)}")
    return whole


def number_in(
    field: str, value: object, low: float | None = None, high: float | None = None
) -> float:
    """A finite number between `low` and `high`, both included; None: no limit on that side.

    >>> number_in("factor", 2, 1)
    2.0
    >>> number_in("factor", float("nan"))
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: factor: got nan, must be a number
    """
    number = float("nan")
    if not isinstance(value, (bool, str, bytes)):
        try:
            number = float(value)  # type: ignore[arg-type]  # anything that has __float__
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
    if number - number != 0 or not _within(number, low, high):  # NaN and infinities
        raise ConfigError(field, value, f"must be a number{_limits_in_words(low, high)}")
    return number


def one_of(field: str, value: T, choices: Iterable[T]) -> T:
    """One of a few values.

    >>> one_of("late", "drop", ("side_output", "drop"))
    'drop'
    >>> one_of("late", "keep", ("side_output", "drop"))
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: late: got 'keep', must be one of side_output, drop
    """
    allowed = tuple(choices)
    for choice in allowed:
        # By type as well: True == 1, but it is not a choice of 1.
        if type(value) is type(choice) and value == choice:
            return choice
    raise ConfigError(field, value, f"must be one of {', '.join(map(str, allowed))}")


def names(field: str, value: object, *, empty: bool = True) -> tuple[str, ...]:
    """Names of columns, topics or streams. A single string is one name, not its letters; None is
    none. `empty=False` asks for at least one. Empty and repeated names are refused, and sets: their
    order, by which ties are broken, is another in every process.

    >>> names("gated", "det"), names("gated", ["a", "b"]), names("gated", None)
    (('det',), ('a', 'b'), ())
    >>> names("keys", ["a", "a"])
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: keys: got ['a', 'a'], names 'a' twice
    """
    expected = "must be a name or a list of names"
    if value is None:
        found: tuple[object, ...] = ()
    elif isinstance(value, str):
        found = (value,)
    elif isinstance(value, (bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise ConfigError(field, value, expected)
    else:
        try:
            found = tuple(value)
        except Exception as error:  # a Spark column is iterable by type, and raises
            raise ConfigError(field, value, expected) from error
    out: list[str] = []
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigError(field, value, expected)
        if name in out:
            raise ConfigError(field, value, f"names {name!r} twice")
        out.append(name)
    if not out and not empty:
        raise ConfigError(field, value, "must have at least one name")
    return tuple(out)


def column_name(field: str, value: object) -> str | None:
    """The name of a column; None: there is none.

    >>> column_name("size_column", ["bytes"])
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: size_column: got ['bytes'], must be the name of a column, as text
    """
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(field, value, "must be the name of a column, as text")
    return value


def boolean(field: str, value: object) -> bool:
    """True or False, and nothing that is merely truthy.

    >>> boolean("hold", "no")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: hold: got 'no', must be true or false
    """
    if not isinstance(value, bool):
        raise ConfigError(field, value, "must be true or false")
    return value


def duration(field: str, value: object, minimum: int | None = 0) -> int:
    """A span of time in whole nanoseconds: an int (ns), `"200 ms"`, or a timedelta; at least
    `minimum` ns, None: any, negative ones included.

    >>> duration("late_tolerance", "1.5 s")
    1500000000
    """
    return parse_duration(value, field, minimum=minimum)


def snake(name: str) -> str:
    """The Python spelling of a setting in a definition: `maxInterval` is `max_interval`.

    >>> snake("maxInterval"), snake("max_interval")
    ('max_interval', 'max_interval')
    """
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), str(name))


def _within(value: Any, low: Any, high: Any) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _limits_in_words(low: object, high: object) -> str:
    if low is not None and high is not None:
        return f" between {low} and {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"
