"""Numbers in the messages of a run: which column to plot for each topic, and its values.

A page plots one column per topic. Of the columns that hold numbers, those that play a role (key,
topic, time, arrival), those of Tidegate, counters and codes are left out; of the others the first
that varies within a topic is plotted, floats before integers, places on the earth last. A table of
several topics may use another column for each: a wide table of logs has nulls in all but one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["Float32s", "numeric_columns", "values_by_topic"]

Float32s = NDArray[np.float32]

MOST = 8
"""Columns looked at per table: each is read for all rows, and eight cost less than the payloads
that the page leaves out."""

CODES = ("key", "id", "zip", "code", "number", "phone")
"""Last words of names of integers that name something: a plot of them says nothing."""

PLACES = ("lat", "lon", "lng", "latitude", "longitude")
"""Last words of names that say where: of a table with a measurement too, that is plotted."""

COUNTERS = ("seq", "sequence", "offset", "partition", "id", "index", "count", "n")
"""Names of integers that count messages: a plot of them is a straight line."""


def numeric_columns(fields: Iterable[pa.Field], taken: Iterable[str | None]) -> list[str]:
    """Return the columns that may be plotted, floats first, at most `MOST`.

    `taken` are names that play a role already.

    >>> schema = pa.schema({"seq": pa.int64(), "gear": pa.int8(), "v": pa.float64()})
    >>> numeric_columns(schema, ["t"])
    ['v', 'gear']
    """
    used = set(taken)
    free = [f for f in fields if f.name not in used and not f.name.startswith("__")]
    floats = [f.name for f in free if pa.types.is_floating(f.type)]
    floats.sort(key=lambda name: _last_word(name) in PLACES)
    whole = [
        f.name for f in free if pa.types.is_integer(f.type) and not _is_counter(f.name.lower())
    ]
    return [*floats, *whole][:MOST]


def _is_counter(name: str) -> bool:
    """Is this the name of a counter, a code or a time?"""
    if name in COUNTERS or _last_word(name) in CODES:
        return True
    return name.endswith("_ns") or "time" in name or "stamp" in name


def _last_word(name: str) -> str:
    """Return the last word of a name, in lower case: `Incident Zip` and `incident_zip` alike."""
    return re.split(r"[^a-z0-9]+", name.lower().strip())[-1]


def values_by_topic(
    columns: Mapping[str, pa.Array], topic: pa.Array
) -> tuple[Float32s, dict[str, str]]:
    """Return the value of every row (NaN where there is none) and the column of each topic.

    A topic of which no column varies has no entry, and its rows have no value.

    >>> values, names = values_by_topic({"v": pa.array([1.0, 2.0, 3.0])}, pa.array(["a", "a", "b"]))
    >>> values.tolist(), names
    ([1.0, 2.0, nan], {'a': 'v'})
    """
    out = np.full(len(topic), np.nan, np.float32)
    names: dict[str, str] = {}
    if not columns:
        return out, names
    arrays = {name: _as_float32(column) for name, column in columns.items()}
    encoded = topic.dictionary_encode()
    codes = np.asarray(encoded.indices)
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        for name, array in arrays.items():
            own = array[rows]
            real = own[np.isfinite(own)]
            if len(real) > 1 and real.min() < real.max():
                out[rows] = np.where(np.isfinite(own), own, np.nan)
                names[text] = name
                break
    return out, names


def _as_float32(column: pa.Array) -> Float32s:
    """A value beyond float32 becomes infinite here, and is left out of the plot."""
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)
