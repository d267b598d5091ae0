"""Columns from plain values, and plain values as JSON text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["NotDecodableError", "Path", "cast_column", "column", "follow", "json_text"]

Path = tuple[str, ...]


class NotDecodableError(Exception):
    """Payloads of a channel, or one of them, cannot be decoded. Becomes a reason in error rows."""


def json_text(value: Any) -> str:
    """A value as JSON: bytes as base64, numbers that JSON does not have as protobuf writes them,
    times and whatever else as text.

    >>> json_text({"x": [1.5, float("nan")], "image": b"\\x00\\xff"})
    '{"x": [1.5, "NaN"], "image": "AP8="}'
    """
    try:
        return json.dumps(value, default=_other, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(value), default=_other, ensure_ascii=False)


def _other(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_finite(inside) for inside in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def follow(value: Any, path: Sequence[str]) -> Any:
    """The value at a path: None where something on the way is not there."""
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
    """Values as a column. What does not fit is null and gets a reason."""
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
    if value is None or isinstance(value, str):
        return value
    try:
        return json_text(value)
    except RecursionError:
        reasons.setdefault(row, f"{name} is nested too deeply")
        return None


def _type_check(kind: pa.DataType) -> Callable[[Any], bool]:
    """Whether a value is of a type. pyarrow alone would cut 2.5 to 2, and take true for 1."""
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
    """A column in another type. What does not fit is null and gets a reason."""
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
    try:
        # In ASCII: what does not fit may be text that cannot be written as UTF-8.
        shown = ascii(value)[:80]
    except RecursionError:
        shown = "nested deeply"
    return f"{name} is {shown}, which is not a {kind}"
