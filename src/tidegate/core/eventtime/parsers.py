"""The built-in event-time types. Whole columns, integer arithmetic only, one reason per bad row."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.eventtime.iso8601 import iso8601
from tidegate.core.eventtime.registry import Parsed, Parser
from tidegate.core.model import Int64s
from tidegate.core.time import MAX_NS

__all__ = ["BUILT_IN"]

NULL = "eventtime value is null"
_DIGITS = r"^[+-]?[0-9]+$"
_SAFE_DIGITS = 18
"""So many digits always fit into int64; longer ones are looked at one by one."""


def unix_timestamp(column: pa.Array, *, name: str, unit: str, factor: int) -> Parsed:
    """Integers, or strings of digits, counted in `unit` since 1970."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    reason = np.full(len(column), None, object)
    reason[_nulls(column)] = NULL
    if pa.types.is_null(kind):
        return Parsed(np.zeros(len(column), np.int64), pa.array(reason, pa.string()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = _integers_of_text(column, reason)
    elif pa.types.is_uint64(kind):
        over = pc.fill_null(pc.greater(column, pa.scalar(MAX_NS, pa.uint64())), False)
        reason[over.to_numpy(zero_copy_only=False)] = "overflow"
        bounded = pc.if_else(over, pa.scalar(0, pa.uint64()), pc.fill_null(column, 0))
        values = bounded.cast(pa.int64()).to_numpy()
    elif pa.types.is_integer(kind):
        values = pc.fill_null(column, 0).cast(pa.int64()).to_numpy()
    else:
        reason[reason == None] = f"type not supported: {kind}"  # noqa: E711  (elementwise)
        return Parsed(np.zeros(len(column), np.int64), pa.array(reason, pa.string()))
    return _scale(values, reason, name, unit, factor)


def _scale(
    values: Int64s, reason: NDArray[np.object_], name: str, unit: str, factor: int
) -> Parsed:
    suspect = (values < 0) | (values > MAX_NS // factor)
    if suspect.any():
        for row in np.flatnonzero(suspect):
            if reason[row] is not None:
                continue
            if values[row] < 0:
                reason[row] = f"{name} expects non-negative {unit}, got {values[row]}"
            else:
                reason[row] = f"overflow: {values[row]} {unit} do not fit into 64-bit nanoseconds"
        values = np.where(suspect, 0, values)
    return Parsed(values * factor, pa.array(reason, pa.string()))


def _integers_of_text(column: pa.Array, reason: NDArray[np.object_]) -> Int64s:
    digits = pc.fill_null(pc.match_substring_regex(column, _DIGITS), False)
    long = pc.greater(pc.fill_null(pc.binary_length(column), 0), _SAFE_DIGITS)
    plain = pc.and_(digits, pc.invert(long))
    # Arrow reads no leading "+", so it is taken off; "-" stays and is refused by its value.
    text = pc.replace_substring_regex(column, r"^\+", "")
    values = pc.if_else(plain, text, "0").cast(pa.int64()).fill_null(0).to_numpy().copy()
    odd = ~plain.to_numpy(zero_copy_only=False)
    is_number = digits.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(odd):
        if reason[row] is not None:
            continue
        if not is_number[row]:
            reason[row] = "not an integer"
            continue
        number = int(column[int(row)].as_py())
        if -(2**63) <= number <= MAX_NS:
            values[row] = number
        else:
            reason[row] = "overflow"
    return np.asarray(values, np.int64)


def timestamp(column: pa.Array) -> Parsed:
    """A Spark or Arrow timestamp or date column."""
    reason = np.full(len(column), None, object)
    reason[_nulls(column)] = NULL
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("ms"))
        kind = column.type
    if not pa.types.is_timestamp(kind):
        reason[reason == None] = f"type not supported: {kind}"  # noqa: E711  (elementwise)
        return Parsed(np.zeros(len(column), np.int64), pa.array(reason, pa.string()))
    factor = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    beyond = (values > MAX_NS // factor) | (values < -(MAX_NS // factor))
    if beyond.any():
        reason[beyond & (reason == None)] = "overflow"  # noqa: E711  (elementwise)
        values = np.where(beyond, 0, values)
    return Parsed(values * factor, pa.array(reason, pa.string()))


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _unix(unit: str, word: str, factor: int) -> tuple[str, Parser]:
    name = f"unixtimestamp_{unit}"
    return name, partial(unix_timestamp, name=name, unit=word, factor=factor)


BUILT_IN: dict[str, Parser] = dict(
    [
        _unix("s", "seconds", 10**9),
        _unix("ms", "milliseconds", 10**6),
        _unix("us", "microseconds", 10**3),
        _unix("ns", "nanoseconds", 1),
        ("iso8601", iso8601),
        ("timestamp", timestamp),
    ]
)
