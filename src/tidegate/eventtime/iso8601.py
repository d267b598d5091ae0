"""ISO 8601 text to nanoseconds: whole columns, all nine digits kept, no float anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.eventtime.registry import Parsed

__all__ = ["iso8601"]

_ISO = (
    r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
    r"(?:[.,](?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2})?)?$"
)
_LAST = divmod(MAX_NS, 10**9)
_FIRST = divmod(MIN_NS, 10**9)
"""The ends of 64-bit nanoseconds as whole seconds and the nanoseconds above them."""


def iso8601(column: pa.Array) -> Parsed:
    """`2026-01-01T00:00:00.123456789+01:00` and its shorter forms; without a zone it is UTC."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = len(column)
    reason = np.full(rows, None, object)
    reason[column.is_null().to_numpy(zero_copy_only=False)] = "eventtime value is null"
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        reason[reason == None] = f"type not supported: {column.type}"  # noqa: E711  (elementwise)
        return Parsed(np.zeros(rows, np.int64), pa.array(reason, pa.string()))
    parts = pc.extract_regex(column, _ISO)
    unread = parts.is_null().to_numpy(zero_copy_only=False)
    reason[unread & (reason == None)] = "not ISO 8601"  # noqa: E711  (elementwise)

    def number(name: str, otherwise: str = "0") -> NDArray[Any]:
        text = pc.fill_null(pc.struct_field(parts, name), otherwise)
        text = pc.if_else(pc.equal(text, ""), otherwise, text)
        return np.asarray(text.cast(pa.int64()).to_numpy())

    year, month, day = number("year", "1970"), number("month", "1"), number("day", "1")
    hour, minute, second = number("hour"), number("minute"), number("second")
    fraction = pc.fill_null(pc.struct_field(parts, "fraction"), "")
    nanos = pc.utf8_rpad(fraction, 9, padding="0").cast(pa.int64()).to_numpy()

    wrong = (month < 1) | (month > 12) | (day < 1) | (hour > 23) | (minute > 59) | (second > 59)
    month_index = (year - 1970) * 12 + np.where(wrong, 1, month) - 1
    first = month_index.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (month_index + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    wrong |= day > following - first
    reason[wrong & (reason == None)] = "not a date or time of day"  # noqa: E711  (elementwise)

    days = np.where(wrong, 0, first + day - 1)
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - _zone(parts)
    beyond = (seconds > _LAST[0]) | ((seconds == _LAST[0]) & (nanos > _LAST[1]))
    beyond |= (seconds < _FIRST[0]) | ((seconds == _FIRST[0]) & (nanos < _FIRST[1]))
    reason[beyond & (reason == None)] = "overflow"  # noqa: E711  (elementwise)
    seconds = np.where(beyond, 0, seconds)
    return Parsed(seconds * 10**9 + nanos, pa.array(reason, pa.string()))


def _zone(parts: pa.StructArray) -> NDArray[Any]:
    """Seconds east of UTC."""
    zone = pc.fill_null(pc.struct_field(parts, "zone"), "")
    digits = pc.replace_substring_regex(zone, "[^0-9]", "")
    digits = pc.utf8_rpad(digits, 4, padding="0").cast(pa.int64()).to_numpy()
    sign = np.where(pc.starts_with(zone, "-").to_numpy(zero_copy_only=False), -1, 1)
    return np.asarray(sign * (digits // 100 * 3600 + digits % 100 * 60))
