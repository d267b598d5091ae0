"""What flows through a pipeline.

A *collection* is the tuples that arrive together: an Arrow RecordBatch, with the event time and the
lane (the number of its key) of each row beside it. Everything else a stage hands on is an *outcome*
of one of the classes below. All of them are columns: an outcome speaks for many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import Int32s, Int64s, take
from tidegate.core.columns import (
    ERROR_COLUMN,
    ERROR_REASON,
    ERROR_VALUE,
    LATENESS,
    REASON,
    TIME_NS,
    WATERMARK,
    add_output_columns,
)
from tidegate.core.time import MAX_NS
from tidegate.errors import ContractError

__all__ = [
    "Collection",
    "ControlSignal",
    "Dropped",
    "End",
    "Int32s",
    "Int64s",
    "Late",
    "Outcome",
    "Side",
    "StreamError",
    "Watermark",
    "lanes_like",
    "with_columns",
]


def lanes_like(rows: pa.RecordBatch, lane: int = 0) -> Int32s:
    """One lane number for all rows.

    Args:
        rows: the rows.
        lane: the number.
    """
    # Zeros need not be written: the system hands out empty pages, which matters for millions.
    return np.full(rows.num_rows, lane, np.int32) if lane else np.zeros(rows.num_rows, np.int32)


def with_columns(rows: pa.RecordBatch, columns: dict[str, Any]) -> pa.RecordBatch:
    """`rows` with further columns behind them; a column of the same name is replaced in place. For
    columns of our own in state tables; what leaves is named by `columns.add_output_columns`."""
    names = list(rows.schema.names)
    arrays = list(rows.columns)
    for name, values in columns.items():
        array = values if isinstance(values, pa.Array) else pa.array(values)
        if name in names:
            arrays[names.index(name)] = array
        else:
            names.append(name)
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True, eq=False)
class _TimedRows:
    """Rows, their lanes and their times: what data, late and dropped rows have in common."""

    rows: pa.RecordBatch
    """The rows, as an Arrow batch."""
    time_ns: Int64s
    """The event time of each row, nanoseconds since the epoch."""
    lane: Int32s
    """The lane of each row: the number of its key."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if not len(self.time_ns) == len(self.lane) == self.rows.num_rows:
            raise ContractError(
                f"{type(self).__name__}: {self.rows.num_rows} rows, {len(self.time_ns)} times, "
                f"{len(self.lane)} lanes"
            )

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def table(self, also: Iterable[str] = ()) -> pa.RecordBatch:
        """The rows as they leave Tidegate: their own columns, then ours, which are renamed where a
        name is taken by the rows or is among `also` (see `core.columns.output_names`)."""
        return add_output_columns(self.rows, {TIME_NS: self.time_ns}, also)


@dataclass(frozen=True, eq=False)
class Collection(_TimedRows):
    """Tuples that travel together, with the event time and lane of each.

    `wall_ns` is the processing time at which the collection was seen; it is the only clock an
    operator ever gets.
    """

    wall_ns: int = 0
    """The processing time at which the collection was seen, nanoseconds since the epoch: the only
    clock an operator ever gets."""
    kind: ClassVar[str] = "data"

    @classmethod
    def of(cls, rows: pa.RecordBatch, time_ns: Int64s, wall_ns: int = 0) -> Collection:
        """A collection of a single key, in lane 0.

        Args:
            rows: the rows.
            time_ns: the event time of each.
            wall_ns: the processing time.

        Raises:
            ContractError: there is not one time per row.
        """
        return cls(rows, time_ns, lanes_like(rows), wall_ns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.rows.schema

    @property
    def lies(self) -> tuple[pa.RecordBatch, Int64s | None]:
        """A batch that contains the rows, and their indices in it; None: the batch is the rows."""
        return self.rows, None

    def read(self, name: str, turn: Callable[[pa.Array], NDArray[Any]]) -> NDArray[Any]:
        """Convert a column to a numpy array with one entry per row. `turn` converts an Arrow array;
        it may be called with parts of the column, by several threads."""
        return turn(self.rows.column(name))

    def take(self, rows: NDArray[Any]) -> Collection:
        """The rows with these numbers, in this order.

        Args:
            rows: row numbers; one may occur more than once.
        """
        return replace(
            self,
            rows=take(self.rows, rows),
            time_ns=self.time_ns[rows],
            lane=self.lane[rows],
        )


@dataclass(frozen=True, eq=False)
class Late(_TimedRows):
    """Rows that came at or below the watermark.

    `lateness_ns` says by how much, `watermark_ns` which watermark it was: the one that stood when
    the row arrived, its own for each row. Left out, it is the time plus the lateness.
    """

    lateness_ns: Int64s
    """How far each row is below the watermark, in ns; 0 for a row exactly at it."""
    watermark_ns: Any = None
    """The watermark that made each row late. None: its time plus its lateness."""
    kind: ClassVar[str] = "late"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watermark_ns is None:
            with np.errstate(over="ignore"):
                made = self.time_ns + self.lateness_ns
            object.__setattr__(self, "watermark_ns", np.where(made < self.time_ns, MAX_NS, made))
        if not len(self.lateness_ns) == len(self.watermark_ns) == len(self):
            raise ContractError(f"Late: {len(self)} rows, {len(self.watermark_ns)} watermarks")

    def take(self, rows: NDArray[Any]) -> Late:
        """The rows with these indices, in this order."""
        return Late(
            take(self.rows, rows),
            self.time_ns[rows],
            self.lane[rows],
            self.lateness_ns[rows],
            self.watermark_ns[rows],
        )

    def table(self, also: Iterable[str] = ()) -> pa.RecordBatch:
        """The rows as they leave Tidegate, with time, lateness and watermark."""
        columns = {
            TIME_NS: self.time_ns,
            LATENESS: self.lateness_ns,
            WATERMARK: self.watermark_ns,
        }
        return add_output_columns(self.rows, columns, also)


@dataclass(frozen=True, eq=False)
class Dropped(_TimedRows):
    """Rows a stage let go, each with its reason: never silent, always delivered."""

    reason: pa.Array
    """Why each row was dropped, a sentence (text)."""
    kind: ClassVar[str] = "dropped"

    def table(self, also: Iterable[str] = ()) -> pa.RecordBatch:
        """The rows as they leave Tidegate, with time and reason."""
        return add_output_columns(self.rows, {TIME_NS: self.time_ns, REASON: self.reason}, also)


@dataclass(frozen=True, eq=False)
class StreamError:
    """Rows that could not be used: which column, which value (as text), and why.

    The pipeline goes on; the rows do not move time.
    """

    rows: pa.RecordBatch
    """The rows, unchanged."""
    column: pa.Array
    """The column at fault, per row (text)."""
    value: pa.Array
    """Its value as text, per row."""
    reason: pa.Array
    """Why it could not be used, a sentence per row."""
    lane: Int32s
    """The lane of each row."""

    kind: ClassVar[str] = "error"

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def table(self, also: Iterable[str] = ()) -> pa.RecordBatch:
        """The rows as they leave Tidegate, with column, value and reason."""
        return add_output_columns(
            self.rows,
            {ERROR_COLUMN: self.column, ERROR_VALUE: self.value, ERROR_REASON: self.reason},
            also,
        )


@dataclass(frozen=True, eq=False)
class Side:
    """A table of its own beside the data: batch summaries, unmatched messages, jump reports."""

    name: str
    """The name of the table, which is also its kind."""
    rows: pa.RecordBatch
    """The rows, in the schema that the stage declares."""
    lane: Int32s
    """The lane of each row."""

    @property
    def kind(self) -> str:
        """The name of the table: side outputs are told apart by it."""
        return self.name

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def table(self, also: Iterable[str] = ()) -> pa.RecordBatch:
        """The rows unchanged: a side table has names of its own."""
        return self.rows


@dataclass(frozen=True, eq=False)
class Watermark:
    """Per lane: nothing at or before this time will come any more. One entry per lane named."""

    time_ns: Int64s
    """The watermark of each lane named, inclusive, nanoseconds since the epoch."""
    lane: Int32s
    """The lanes; others have not moved."""

    kind: ClassVar[str] = "watermark"

    @classmethod
    def at(cls, time_ns: int, lane: int = 0) -> Watermark:
        """The watermark of a single lane."""
        return cls(np.array([time_ns], np.int64), np.array([lane], np.int32))

    def __len__(self) -> int:
        return len(self.time_ns)


class End(Enum):
    """How a stream ends."""

    GRACEFUL = "graceful"
    """Everything buffered is delivered, in order, without a watermark."""
    QUICK = "quick"
    """Everything buffered is discarded, and counted."""


@dataclass(frozen=True, eq=False)
class ControlSignal:
    """A message to the stages themselves: the end, or a setting changed while running.

    `lane=None` speaks to every lane. `time_ns` is the event time from which a setting holds; None:
    from now on.
    """

    name: str
    """`end`, or the name of a setting."""
    value: object = None
    """How to end (`End`), or the new value of the setting."""
    lane: Int32s | None = None
    """The lanes it is for; None: every lane."""
    time_ns: int | None = None
    """The event time at which the setting takes effect; None: at once."""

    kind: ClassVar[str] = "control"

    @classmethod
    def end(cls, how: End = End.GRACEFUL) -> ControlSignal:
        """The signal that ends a stream.

        Args:
            how: deliver what is held, or discard it.
        """
        return cls("end", how)


Outcome = Collection | Late | Dropped | StreamError | Side | Watermark
"""Anything a stage hands on."""
