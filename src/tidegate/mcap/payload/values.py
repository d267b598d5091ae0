"""What all codecs share: paths, the error, columns from plain values, and plain values as JSON
text.

This module is at the bottom of the package: it imports no other module of it.

Bad values are never exceptions here. A value that does not fit its column is null, and its row gets
a reason in `reasons` (row number to text), unless an earlier one is there already.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

__all__ = [
    "LARGEST_PAYLOAD",
    "MOST_VALUES",
    "NotDecodableError",
    "Path",
    "TooLargeError",
    "ValueBudget",
    "cast_column",
    "check_payload_size",
    "column",
    "follow",
    "json_text",
]

Path = tuple[str, ...]
"""Names from the message down to a field; empty for the whole message."""


class NotDecodableError(Exception):
    """A channel, or one payload, cannot be decoded. Becomes the reason in error rows."""


LARGEST_PAYLOAD = 64 << 20
"""Bytes of a JSON or protobuf payload that is decoded. As values of Python it takes up to 25 times
its size; below this, uncompressed images of common cameras (25 MB) would be refused. ROS payloads
have no limit: their fields are found in place."""

MOST_VALUES = 5_000_000
"""Values that one payload may become. An empty protobuf message of 2 bytes stands for as many
values as its type has fields, so the size of a payload does not bound them."""


class TooLargeError(NotDecodableError):
    """A payload would take too much memory."""


class ValueBudget:
    """Counts the values of one payload, and refuses it when there are too many.

    >>> budget = ValueBudget()
    >>> budget.spend(10)
    >>> budget.spend(MOST_VALUES)
    Traceback (most recent call last):
        ...
    tidegate.mcap.payload.values.TooLargeError: it holds more than 5,000,000 values
    """

    def __init__(self) -> None:
        self.left = MOST_VALUES

    def spend(self, count: int) -> None:
        """Count some values more. Raises TooLargeError if they are too many."""
        self.left -= count
        if self.left < 0:
            raise TooLargeError(f"it holds more than {MOST_VALUES:,} values")


def check_payload_size(payload: bytes) -> None:
    """Raise TooLargeError for a payload that is too large to be decoded."""
    if len(payload) > LARGEST_PAYLOAD:
        raise TooLargeError(f"it has {len(payload):,} bytes, of {LARGEST_PAYLOAD:,} at most")


def json_text(value: Any) -> str:
    """Write a value as JSON text.

    Bytes become base64; NaN and infinities become text, as protobuf writes them; times and all else
    that JSON lacks become text.

    Args:
        value: Dicts, lists and plain values.

    Raises:
        RecursionError: it is nested too deeply.

    Example:
        >>> json_text({"x": [1.5, float("nan")], "image": b"\\x00\\xff"})
        '{"x": [1.5, "NaN"], "image": "AP8="}'
    """
    try:
        return json.dumps(value, default=_other, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(value), default=_other, ensure_ascii=False)


def _other(value: object) -> str:
    """Write a value that JSON has no form for: bytes as base64, anything else as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Return a copy in which NaN and infinities are text, as protobuf's JSON writes them."""
    if isinstance(value, dict):
        return {name: _finite(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_finite(inside) for inside in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def follow(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; None where something on the way is missing or null.

    Raises:
        NotDecodableError: something on the way is no dict and has no fields.

    Example:
        >>> follow({"pose": {"x": 1.5}}, ("pose", "x"))
        1.5
    """
    for done, name in enumerate(path):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise NotDecodableError(f"{'.'.join(path[:done]) or 'the message'} has no fields")
        value = value.get(name)
    return value


def column(
    values: Sequence[Any], kind: pa.DataType, reasons: dict[int, str], name: str
) -> pa.Array:
    """Make a column of plain values.

    The whole column is tried first. Only if that fails, values are tried one by one.

    Args:
        values: One per row; None becomes null.
        kind: Type of the column. For string, values that are not text become JSON text.
        reasons: Extended by the rows whose value does not fit; these are null.
        name: Name of the field, for the reasons.
    """
    if pa.types.is_string(kind):
        values = [_text_or_json(value, row, reasons, name) for row, value in enumerate(values)]
    fits = _type_check(kind)
    if all(fits(value) for value in values):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
    kept = []
    for row, value in enumerate(values):
        try:
            if not fits(value):
                raise ValueError
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            reasons.setdefault(row, _misfit(name, value, kind))
            value = None
        kept.append(value)
    return pa.array(kept, kind)


def _text_or_json(value: Any, row: int, reasons: dict[int, str], name: str) -> str | None:
    """Return text unchanged, any other value as JSON; None, with a reason, if nested too deeply."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json_text(value)
    except RecursionError:
        reasons.setdefault(row, f"{name} is nested too deeply")
        return None


def _type_check(kind: pa.DataType) -> Callable[[Any], bool]:
    """Return a function that tells whether a value belongs to a type.

    pyarrow alone would cut 2.5 to 2, and take true for 1.
    """
    if pa.types.is_list(kind):
        inside = _type_check(kind.value_type)
        return lambda v: v is None or (isinstance(v, list) and all(inside(each) for each in v))
    wanted: tuple[type, ...] = (bytes,)
    if pa.types.is_integer(kind):
        wanted = (int,)
    elif pa.types.is_floating(kind):
        wanted = (int, float)
    elif pa.types.is_boolean(kind):
        return lambda v: v is None or isinstance(v, bool)
    elif pa.types.is_string(kind):
        wanted = (str,)
    return lambda v: v is None or (isinstance(v, wanted) and not isinstance(v, bool))


def cast_column(found: pa.Array, kind: pa.DataType, reasons: dict[int, str], name: str) -> pa.Array:
    """Cast a column to another type.

    Args:
        found: The column.
        kind: The type to cast to.
        reasons: Extended by the rows whose value does not fit; these are null.
        name: Name of the field, for the reasons.
    """
    if found.type == kind:
        return found
    try:
        return found.cast(kind)
    except pa.ArrowException:
        pass
    kept = []
    for row in range(len(found)):
        one = found.slice(row, 1)
        try:
            kept.append(one.cast(kind))
        except pa.ArrowException:
            reasons.setdefault(row, _misfit(name, one[0].as_py(), kind))
            kept.append(pa.nulls(1, kind))
    return pa.concat_arrays(kept)


def _misfit(name: str, value: Any, kind: pa.DataType) -> str:
    """The reason for a value that does not fit, with the first 80 characters of the value."""
    try:
        # In ASCII: what does not fit may be text that cannot be written as UTF-8.
        shown = ascii(value)[:80]
    except RecursionError:
        shown = "nested deeply"
    return f"{name} is {shown}, which is not a {kind}"
