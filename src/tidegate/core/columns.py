"""Every column name that Tidegate adds to a table, and the one check of user columns.

There are two kinds of names, with two rules.

**Internal columns** stand beside user columns in state tables, logged collections and the blobs
that travel through Spark. They all start with `__tidegate_`. A user column with that prefix is
refused by `check_columns`, which `Flow`, `frames` and the planner call; every other name is the
user's, `__time`, `__shard` or `reason` included, and is never touched.

**Output columns** (`time_ns`, `lateness_ns`, `reason`, ...) are added to rows that leave. Where the
rows already have a column of that name, the user's stays as it is and ours is renamed by one rule:
`tidegate_` in front, once more for as long as that name is taken too (`output_names`).

>>> output_names(["id", "reason"], ["time_ns", "reason"])
{'time_ns': 'time_ns', 'reason': 'tidegate_reason'}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import ConfigError

__all__ = [
    "ERROR_COLUMN",
    "ERROR_REASON",
    "ERROR_VALUE",
    "LANE",
    "LATENESS",
    "PREFIX",
    "REASON",
    "TIME",
    "WATERMARK",
    "add_output_columns",
    "check_columns",
    "output_names",
]

PREFIX = "__tidegate_"
"""Every internal column starts with this, and no user column may."""

# Internal columns, by the room that uses them. State tables and blobs only; users never see them.
LANE = PREFIX + "lane"
"""int32: the lane (number of the key) a row of a state table belongs to. All rooms."""
TIME = PREFIX + "time_ns"
"""int64: the event time of a row held in a state table, a log or a blob. All rooms."""
AGAINST = PREFIX + "against"
"""int64: the time a held suspect was ahead of. Event time."""
SERIAL = PREFIX + "serial"
"""int64: the number of an open window within its lane. Windows."""
IS_LATE = PREFIX + "late"
"""bool: whether a row kept for a window came late. Windows."""
WAITS = PREFIX + "waits"
"""bool: whether a row kept for a window still waits to be emitted. Windows."""
BYTES = PREFIX + "bytes"
"""int64: the size of a row, where a trigger or a rate needs it. Windows."""
PLACE = PREFIX + "place"
"""int64: the position of a message in the queue of its topic. Sync."""
STREAM = PREFIX + "stream"
"""int32: the number of the stream of a row. Batching."""
GATED = PREFIX + "gated"
"""int8: whether the stream of a row is a gated one. Batching."""
SLOT = PREFIX + "slot"
"""int32: the slot of a row in its batch. Batching."""
WHERE = PREFIX + "where"
"""int8: the list a held row is in. Batching."""
DECIDED = PREFIX + "decided_ns"
"""int64: the time a held row is batched by, where that is not the time it came with. Batching."""
NEXT = PREFIX + "next"
"""int64: the next version of a vector. Deltas."""
UNDELIVERED = PREFIX + "undelivered"
"""bool: whether the state of a vector has changes that did not leave yet. Deltas."""
ORDER = PREFIX + "order"
"""int64: what orders a row that waits for other files. Spark."""
FIRST = PREFIX + "first"
"""int64: the time of the first row of a key in a file. Event time."""
SOURCE = PREFIX + "source"
"""string: the file of a row that waits. Spark."""
NEWEST = PREFIX + "newest"
"""int64: how far event time has come in a file, for a key. Spark."""
SUSPECTS = PREFIX + "suspects"
"""int64: how many rows ahead of that have come in a row. Spark."""
ADDRESS = PREFIX + "address"
"""int64: the file of a row, by its number, and its position there. Spark."""
FILE = PREFIX + "file"
"""struct: the file a row was read from, and where in it. Spark."""
MICRO_BATCH = PREFIX + "micro_batch"
"""int64: the commit a stored row was written by. Report."""
KEY = PREFIX + "key"
"""string: the key of a row as text. Report."""
OF_ROW = PREFIX + "of_row"
"""int64: the group each row belongs to. Report."""

# Output columns: added to rows that leave, renamed by `output_names` where the name is taken.
TIME_NS = "time_ns"
"""int64: the event time of a row, nanoseconds since 1970 in UTC."""
LATENESS = "lateness_ns"
"""int64: how far a late row is behind the watermark, in nanoseconds."""
WATERMARK = "watermark_ns"
"""int64: the watermark that made a row late."""
REASON = "reason"
"""string: why a row was dropped."""
ERROR_COLUMN = "error_column"
"""string: the column whose value made a row an error."""
ERROR_VALUE = "error_value"
"""string: that value, as text."""
ERROR_REASON = "error_reason"
"""string: why it could not be used."""


def check_columns(names: Iterable[object], field: str = "column") -> None:
    """Refuse user columns that start with the internal prefix. Every other name is allowed.

    `names` are column names: of a schema, or those a setting mentions. `field` is the setting the
    error is about. Raises `ConfigError` with the first name that is refused.

    >>> check_columns(["__time", "reason", "time_ns", "a b.c"])
    >>> check_columns(["__tidegate_lane"], "key")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: key: got '__tidegate_lane', columns that start with \
'__tidegate_' are internal; rename the column
    """
    for name in names:
        if isinstance(name, str) and name.startswith(PREFIX):
            raise ConfigError(
                field, name, f"columns that start with {PREFIX!r} are internal; rename the column"
            )


def output_names(present: Iterable[str], added: Sequence[str]) -> dict[str, str]:
    """The names that `added` output columns get beside columns that are `present` already.

    A name that is free is kept. A name that is taken gets `tidegate_` in front, as often as needed.
    The result depends on the names alone, so a plan and its run agree.

    >>> output_names(["reason", "tidegate_reason"], ["reason"])
    {'reason': 'tidegate_tidegate_reason'}
    """
    taken = set(present)
    out = {}
    for name in added:
        free = name
        while free in taken:
            free = f"tidegate_{free}"
        taken.add(free)
        out[name] = free
    return out


def add_output_columns(
    rows: pa.RecordBatch, columns: dict[str, Any], also: Iterable[str] = ()
) -> pa.RecordBatch:
    """`rows` with output columns behind them, named by `output_names`; no column is replaced.

    `columns` maps each name to an Arrow array or anything `pa.array` accepts. `also` are further
    names that are taken: those of a wider schema that the result will be conformed to.

    >>> rows = pa.record_batch({"reason": ["mine"]})
    >>> add_output_columns(rows, {"reason": ["ours"]}).to_pydict()
    {'reason': ['mine'], 'tidegate_reason': ['ours']}
    """
    names = output_names([*rows.schema.names, *also], list(columns))
    arrays = [v if isinstance(v, pa.Array) else pa.array(v) for v in columns.values()]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *arrays], names=[*rows.schema.names, *names.values()]
    )
