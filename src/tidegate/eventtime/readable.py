"""Whether a column can be read as an event time at all, told from its type before a row is read.

Text may hold anything, so only data can tell; every other type is tried with a value of that type.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.eventtime.registry import EventtimeTypes

__all__ = ["check_readable"]


def check_readable(types: EventtimeTypes, name: str, kind: pa.DataType, column: str) -> None:
    """Raise ConfigError if no value of a column can be read by an event-time type.

    - `types`: the registry; `name`: the type that is declared for the column.
    - `kind`: the Arrow type of the column; `column`: its name, for the error.

    >>> check_readable(EventtimeTypes(), "unixtimestamp_ms", pa.int64(), "stamp")
    >>> check_readable(EventtimeTypes(), "timestamp", pa.int64(), "stamp")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: time: column stamp is int64, which the time type timestamp can \
never read; types that can: unixtimestamp_ms, unixtimestamp_ns, unixtimestamp_s, unixtimestamp_us
    """
    if _reads(types, name, kind):
        return
    others = [other for other in types.list() if _reads(types, other, kind)]
    able = f"types that can: {', '.join(others)}" if others else "no time type can"
    text = f"column {column} is {kind}, which the time type {name} can never read; {able}"
    raise ConfigError("time", column, text, message=f"time: {text}")


def _reads(types: EventtimeTypes, name: str, kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return True
    try:
        if pa.types.is_boolean(kind) or pa.types.is_nested(kind):
            sample = pa.array([True]) if pa.types.is_boolean(kind) else pa.nulls(1, kind)
        elif pa.types.is_date32(kind):
            sample = pa.array([1], pa.int32()).cast(kind)
        else:
            sample = pa.array([1], pa.int64()).cast(kind)
    except pa.ArrowNotImplementedError:  # binary and the like: leave it to the parser
        sample = pa.nulls(1, kind)
        if not pa.types.is_binary(kind):
            return True
    try:
        return bool(types.parse(name, sample).reason.null_count == 1)
    except Exception:  # a parser of the user's that wants other values: only data can tell
        return True
