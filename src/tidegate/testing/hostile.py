"""Input that breaks pipelines: times that are none, and tables that are odd. For your tests too.

Every column below holds values that no event-time type may take for a time without a word. What a
pipeline owes each of them is the same: the row comes out as an error with its column, value and
reason, the rows beside it come out as ever, and time does not move.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

__all__ = ["NO_TIMES", "odd_batches"]


def _no_times() -> dict[str, pa.Array]:
    """Build `NO_TIMES`."""
    dictionary = pa.array(["soon", "later"])
    return {
        "null": pa.nulls(3),
        "null of an integer column": pa.array([None], pa.int64()),
        "null of a text column": pa.array([None], pa.string()),
        "NaN": pa.array([float("nan"), float("inf"), -float("inf")]),
        "float": pa.array([1.5, 1e18, 0.0]),
        "bool": pa.array([True, False]),
        "words": pa.array(["soon", "", " ", "NaN", "null", "None", "true", "-"]),
        "almost digits": pa.array(["1.5", "1e9", " 5", "5 ", "0x10", "1_000", "++5", "5-", "١٢"]),
        "digits that overflow": pa.array(["9223372036854775808", "9" * 40, "-9223372036854775809"]),
        "unsigned that overflows": pa.array([2**64 - 1, 2**63], pa.uint64()),
        "negative": pa.array([-1, -(2**63)]),
        "negative digits": pa.array(["-1", "-9223372036854775808"]),
        "list": pa.array([[1], [2, 3], []]),
        "struct": pa.array([{"seconds": 1}, {"seconds": 2}]),
        "binary": pa.array([b"12", b"\xff\x00"]),
        "dictionary of words": pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), dictionary),
        "time of day": pa.array([1, 2], pa.time64("ns")),
        "duration": pa.array([1, 2], pa.duration("ns")),
    }


NO_TIMES: Mapping[str, pa.Array] = _no_times()
"""Columns by what is wrong with them. No value in them is a Unix timestamp of any unit, so a test
may demand an error for every row."""


def odd_batches(column: str = "t") -> dict[str, pa.RecordBatch]:
    """Return tables that are odd in shape, around good times.

    Args:
        column: Name of the time column.

    Returns:
        Tables by what is odd about them. Two of them lack the time column.

    Example:
        >>> odd_batches("t")["only the time column"].column_names
        ['t']
    """
    good = pa.array([1, 2, 3])
    return {
        "empty": pa.record_batch(
            {column: pa.array([], pa.int64()), "v": pa.array([], pa.string())}
        ),
        "no rows and no columns": pa.record_batch({}),
        "the time column is missing": pa.record_batch({"other": good}),
        "only the time column": pa.record_batch({column: good}),
        "a column of nulls": pa.record_batch({column: good, "v": pa.nulls(3)}),
        "a new column": pa.record_batch({column: good, "new": good}),
        "the same column twice": pa.RecordBatch.from_arrays(
            [good, good, good], names=[column, "v", "v"]
        ),
        "columns in another order": pa.record_batch({"v": pa.array(["x"] * 3), column: good}),
        "another type": pa.record_batch({column: good, "v": pa.array([1.5, 2.5, None])}),
        "another type of time": pa.record_batch({column: pa.array(["1", "2", "x"])}),
        "nested": pa.record_batch({column: good, "v": pa.array([{"a": [1]}, None, {"a": []}])}),
        "large types": pa.record_batch(
            {column: good, "v": pa.array(["x", "y", None], pa.large_string())}
        ),
        "a slice": pa.record_batch({column: pa.array(range(10)), "v": pa.array(["s"] * 10)}).slice(
            4, 3
        ),
        "duplicate rows": pa.record_batch({column: pa.array([2] * 50), "v": pa.array(["d"] * 50)}),
        "an empty name": pa.record_batch({column: good, "": np.arange(3)}),
    }
