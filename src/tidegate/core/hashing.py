"""A 64-bit hash per row, the same in every process, on every machine and in every version.

Shards are chosen by it (`tidegate.spark.shards`), so a state on disk depends on it: the function is
frozen. Equal values hash alike whatever the width of their type: an int32 and an int64, a string
and its dictionary code, 0.0 and -0.0.

Text and bytes go through FNV-1a, eight bytes at a time, and everything through the finaliser of
SplitMix64, so that neighbouring numbers fall far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import as_text
from tidegate.core.numba import as_readonly, kernel

__all__ = ["compile_hashing", "hash_rows"]

UInt64s = NDArray[np.uint64]

_NULL = np.uint64(0x6E756C6C6E756C6C)
"""What stands for null; no other meaning than being unlikely."""


def hash_rows(columns: Sequence[pa.Array]) -> UInt64s:
    """Return one hash per row over all columns, in their order. Null is a value of its own.

    Args:
        columns: Arrays of one length, of plain types; nested ones are hashed as text, slowly.

    Example:
        >>> a = hash_rows([pa.array([1, 2], pa.int32())])
        >>> b = hash_rows([pa.array([1, None], pa.int64())])
        >>> bool(a[0] == b[0]), bool(a[1] == b[1])
        (True, False)
    """
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mix_into(total, as_readonly(_hash_column(column)))
    return total


@kernel
def mix_into(total: Any, values: Any) -> None:
    """Fold a column into the hashes of rows, and spread every bit of the result over all bits: the
    finaliser of SplitMix64.

    Args:
        total: The hash of each row so far, 0 before the first column (uint64). Written.
        values: A number per row (uint64).
    """
    for row in range(len(total)):
        value: Any = total[row] * np.uint64(0x100000001B3) ^ values[row]
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total[row] = value ^ (value >> np.uint64(31))


def _hash_column(column: pa.Array) -> UInt64s:
    """Return a number per value, not mixed yet."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        inner = _hash_column(column.dictionary)
        if column.null_count == 0:
            return np.asarray(inner[column.indices.to_numpy()], np.uint64)
        codes = column.indices.fill_null(len(inner)).to_numpy()
        return np.asarray(np.append(inner, _NULL)[codes], np.uint64)
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL)
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        # One zero and one NaN: each has several patterns of bits.
        numbers = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
    elif pa.types.is_boolean(kind):
        numbers = column.cast(pa.int8()).fill_null(0).to_numpy().astype(np.uint64)
    elif pa.types.is_integer(kind):
        numbers = _zero_for_null(column).to_numpy().astype(np.int64, copy=False).view(np.uint64)
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        values = _zero_for_null(column.view(width)).to_numpy()
        numbers = values.astype(np.int64, copy=False).view(np.uint64)
    else:
        return _hash_text(column)
    if column.null_count:
        numbers = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, numbers)
    return np.asarray(numbers, np.uint64)


def _zero_for_null(column: pa.Array) -> pa.Array:
    """Return whole numbers with 0 for null; without a null, the column itself and no copy."""
    return column.fill_null(0) if column.null_count else column


def _hash_text(column: pa.Array) -> UInt64s:
    """Return the hash of text and bytes; anything else as text."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        as_bytes = pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        if large or as_bytes:
            column = column.cast(pa.binary() if as_bytes else pa.string())
        else:
            column = as_text(column)
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    out = np.empty(len(column), np.uint64)
    if len(column):
        hash_bytes(as_readonly(starts), as_readonly(content), out)
    if column.null_count:
        out[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return out


@kernel
def hash_bytes(starts: Any, content: Any, out: Any) -> None:
    """Write the FNV-1a hash of every stretch of bytes, eight at a time, into `out`.

    Args:
        starts: Where each stretch begins, and behind the last one where it ends (int32).
        content: The bytes (uint8).
        out: One uint64 per stretch. Written.
    """
    for row in range(len(out)):
        at: Any = np.int64(starts[row])
        end: Any = np.int64(starts[row + 1])
        total: Any = np.uint64(0xCBF29CE484222325) ^ np.uint64(end - at)
        while at < end:
            word = np.uint64(0)
            for byte in range(min(8, end - at)):
                word |= np.uint64(content[at + byte]) << np.uint64(8 * byte)
            total = (total ^ word) * np.uint64(0x100000001B3)
            total ^= total >> np.uint64(29)
            at += 8
        out[row] = total


def compile_hashing() -> None:
    """Compile the kernels on the driver; workers find it in Numba's cache."""
    hash_rows([pa.array(["a", "b"])])
