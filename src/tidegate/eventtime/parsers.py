"""The built-in event-time types. Whole columns, integer arithmetic only, one reason per bad row."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS
from tidegate.eventtime.iso8601 import iso8601
from tidegate.eventtime.registry import Parsed, Parser

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
    reason = Reasons(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = _integers_of_text(column, reason)
    elif pa.types.is_uint64(kind):
        over = pc.fill_null(pc.greater(column, pa.scalar(MAX_NS, pa.uint64())), False)
        reason.add(over.to_numpy(zero_copy_only=False), "overflow")
        bounded = pc.if_else(over, pa.scalar(0, pa.uint64()), pc.fill_null(column, 0))
        values = bounded.cast(pa.int64()).to_numpy()
    elif pa.types.is_integer(kind):
        whole = pc.fill_null(column, 0) if column.null_count else column
        values = (whole if pa.types.is_int64(kind) else whole.cast(pa.int64())).to_numpy()
    else:
        reason.add_rest(f"type not supported: {kind}")
        return reason.parsed(np.zeros(len(column), np.int64))
    if len(values) and (int(values.min()) < 0 or int(values.max()) > MAX_NS // factor):
        suspect = (values < 0) | (values > MAX_NS // factor)
        for row in np.flatnonzero(suspect).tolist():
            if values[row] < 0:
                text = f"{name} expects non-negative {unit}, got {values[row]}"
            else:
                text = f"overflow: {values[row]} {unit} do not fit into 64-bit nanoseconds"
            reason.texts.setdefault(row, text)
        values = np.where(suspect, 0, values)
    return reason.parsed(values if factor == 1 else values * factor)


class Reasons:
    """Why rows have no time. The first reason of a row counts; most columns have none at all."""

    def __init__(self, column: pa.Array) -> None:
        self.rows = len(column)
        self.texts: dict[int, str] = {}
        if column.null_count:
            self.add(column.is_null().to_numpy(zero_copy_only=False), NULL)

    def add(self, rows: NDArray[np.bool_], text: str) -> None:
        for row in np.flatnonzero(rows).tolist():
            self.texts.setdefault(row, text)

    def add_rest(self, text: str) -> None:
        self.add(np.ones(self.rows, np.bool_), text)

    def parsed(self, time_ns: Int64s) -> Parsed:
        if not self.texts:
            return Parsed(time_ns, pa.nulls(self.rows, pa.string()))
        reasons = [self.texts.get(row) for row in range(self.rows)]
        return Parsed(time_ns, pa.array(reasons, pa.string()))


def _integers_of_text(column: pa.Array, reason: Reasons) -> Int64s:
    digits = pc.fill_null(pc.match_substring_regex(column, _DIGITS), False)
    length = pc.fill_null(pc.binary_length(column), 0)
    short = pc.and_(digits, pc.less_equal(length, _SAFE_DIGITS))
    # Arrow reads no leading "+", so it is taken off; "-" stays and is refused by its value.
    text = pc.replace_substring_regex(column, r"^\+", "")
    values = pc.if_else(short, text, "0").cast(pa.int64()).fill_null(0).to_numpy().copy()
    # Nanoseconds of today have 19 digits: read as 18 and one, so that neither part overflows.
    signed = pc.match_substring_regex(column, "^[+-]")
    long = pc.and_(digits, pc.equal(length, _SAFE_DIGITS + 1))
    long = pc.and_(long, pc.invert(pc.fill_null(signed, False)))
    is_long = long.to_numpy(zero_copy_only=False)
    if is_long.any():
        text = pc.if_else(long, column, "0" * (_SAFE_DIGITS + 1))
        high = pc.utf8_slice_codeunits(text, 0, _SAFE_DIGITS).cast(pa.int64())
        low = pc.utf8_slice_codeunits(text, _SAFE_DIGITS, _SAFE_DIGITS + 1).cast(pa.int64())
        tens, ones = high.fill_null(0).to_numpy(), low.fill_null(0).to_numpy()
        over = is_long & ((tens > MAX_NS // 10) | ((tens == MAX_NS // 10) & (ones > MAX_NS % 10)))
        reason.add(over, "overflow")
        values = np.where(is_long & ~over, np.where(over, 0, tens) * 10 + ones, values)
    is_number = digits.to_numpy(zero_copy_only=False)
    odd = ~(short.to_numpy(zero_copy_only=False) | is_long)
    for row in np.flatnonzero(odd).tolist():
        if row in reason.texts:
            continue
        if not is_number[row]:
            reason.texts[row] = "not an integer"
            continue
        number = int(column[row].as_py())
        if -(2**63) <= number <= MAX_NS:
            values[row] = number
        else:
            reason.texts[row] = "overflow"
    return np.asarray(values, np.int64)


def timestamp(column: pa.Array) -> Parsed:
    """A Spark or Arrow timestamp or date column."""
    reason = Reasons(column)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    kind = column.type
    if not pa.types.is_timestamp(kind):
        reason.add_rest(f"type not supported: {kind}")
        return reason.parsed(np.zeros(len(column), np.int64))
    factor = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    beyond = (values > MAX_NS // factor) | (values < -(MAX_NS // factor))
    if beyond.any():
        reason.add(beyond, "overflow")
        values = np.where(beyond, 0, values)
    return reason.parsed(values if factor == 1 else values * factor)


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
