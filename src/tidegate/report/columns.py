"""Columns of a stored table as arrays: text, nanoseconds, whole numbers.

Tables come from files of any age and any sink, so every function accepts what may be there: nulls,
dictionaries, timestamps of any unit, columns that are missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.outcomes import Int64s

__all__ = ["NONE", "arrival_of", "flat", "integers", "nanoseconds", "text_of"]

NONE = -(2**63)
"""Marks an unknown time, for example the arrival of a message of a run without arrival times."""

PLAUSIBLE_DELAY_NS = 7 * 86_400 * 10**9
"""7 days. A column whose median distance from event time is larger is taken for an offset and not
for an arrival time. Below a day, recordings that were uploaded later would lose their arrivals;
above a year, offsets of long topics would pass for times."""


def text_of(table: pa.Table, names: tuple[str, ...]) -> pa.Array:
    """Return these columns as one text per row, joined by " / "; nulls are "?".

    Without names every text is empty.

    >>> text_of(pa.table({"a": ["x", None], "b": [1, 2]}), ("a", "b")).to_pylist()
    ['x / 1', '? / 2']
    """
    if not names:
        return pa.array([""] * table.num_rows, pa.string())
    columns = [pc.fill_null(pc.cast(flat(table[name]), pa.string()), "?") for name in names]
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, " / ")


def flat(column: Any) -> pa.Array:
    """Return a column as one array without chunks and without a dictionary."""
    made = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(made, pa.ChunkedArray):
        made = made.chunk(0) if made.num_chunks else pa.array([], made.type)
    return made.dictionary_decode() if pa.types.is_dictionary(made.type) else made


def nanoseconds(values: Any) -> Int64s:
    """Return a column of times in ns; NONE for nulls, and for a column that is not a time.

    Integers are taken as nanoseconds; timestamps of any unit are converted.

    >>> nanoseconds(pa.array([1, None], pa.timestamp("us"))).tolist() == [1000, NONE]
    True
    """
    array = flat(values)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ns"), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(array.type):
        return np.full(len(array), NONE, np.int64)
    return np.asarray(pc.fill_null(array.cast(pa.int64()), NONE))


def integers(table: pa.Table, name: str, missing: int = -1) -> Int64s:
    """Return a column as int64, with `missing` for nulls and for a column that is not there."""
    if name not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    return np.asarray(pc.fill_null(flat(table[name]).cast(pa.int64()), missing))


def arrival_of(values: Any, time_ns: Int64s) -> Int64s:
    """Return the arrival of each row in ns; NONE for all if the column is no time near theirs."""
    arrival = nanoseconds(values)
    known = (arrival != NONE) & (time_ns != NONE)
    if known.any():
        delay = arrival[known].astype(np.float64) - time_ns[known]
        if abs(float(np.median(delay))) > PLAUSIBLE_DELAY_NS:
            return np.full(len(arrival), NONE, np.int64)
    return arrival
