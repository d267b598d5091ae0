"""Numbers for the distinct values of columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s

__all__ = ["column_codes", "first_rows", "joint_codes"]

_NEAR = 1 << 14
"""Whole numbers that lie within this range are their own codes: no hashing."""

_MANY = 1 << 20
"""Combinations of codes beyond which they are numbered anew."""


def column_codes(column: pa.Array) -> tuple[Int64s, int]:
    """A number for each distinct value, null being one of its own, and how many there may be."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    whole = pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type)
    if whole and column.null_count == 0 and len(column):
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if high - low < _NEAR:
            near: Int64s = np.subtract(column.to_numpy(), low, dtype=np.int64, casting="unsafe")
            return near, high - low + 1
    encoded = column.dictionary_encode(null_encoding="encode")
    found = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return found, max(1, len(encoded.dictionary))


def joint_codes(columns: Sequence[pa.Array]) -> tuple[Int64s, int]:
    """The same for combinations of values of several columns."""
    codes, total = column_codes(columns[0])
    for column in columns[1:]:
        more, size = column_codes(column)
        codes, total = codes * size + more, total * size
        if total > _MANY:
            distinct, again = np.unique(codes, return_inverse=True)
            codes, total = again.astype(np.int64), max(1, len(distinct))
    return codes, total


@kernel
def first_rows(codes: Int64s, size: int) -> Int64s:
    """The first row of each code, or -1."""
    first = np.full(size, -1, np.int64)
    for row in range(len(codes)):
        if first[codes[row]] < 0:
            first[codes[row]] = row
    return first
