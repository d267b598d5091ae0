"""The accumulators of a call: one slot per (pane, group), in arrays, and as a table of the state.

Only numbers enter the kernels. Key, group, first and last columns follow by row number: numbers
below `shift` are slots the state held, the rest are rows of the collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.columns import SERIAL as SERIAL
from tidegate.core.numba import frozen
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.parallel import MANY, each
from tidegate.core.state import LANE
from tidegate.windows.accumulate import fold_floats, fold_ints, fold_rows
from tidegate.windows.aggregates import Aggregate, column_type, storage_of
from tidegate.windows.scatter import scatter_floats, scatter_ints, scatter_rows

_MAX, _MIN = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_NO_NULLS = np.zeros(0, np.bool_)
_NO_NULLS.flags.writeable = False


@dataclass(frozen=True)
class SlotPlan:
    """Which columns a set of aggregates needs, from the schema of the rows."""

    first: tuple[str, ...]
    """Columns of which the first value is kept: keys, groups, `first`."""
    last: tuple[str, ...]
    values: tuple[tuple[str, str, bool], ...]
    """Accumulated columns: name, `int` or `float`, and whether min or max is wanted."""
    counted: tuple[str, ...]
    """Columns of which only the values that are not null are counted."""
    ordered: bool
    """No first or last by time is asked for, so times need not be compared."""


def plan_slots(
    rows: pa.Schema,
    carried: Sequence[str],
    aggregates: Sequence[tuple[str, Aggregate]],
    spans: bool,
) -> SlotPlan:
    first, last = list(carried), []
    values: dict[str, tuple[str, bool]] = {}
    counted = []
    for _, aggregate in aggregates:
        name = aggregate.column
        if name is None or not aggregate.incremental(rows):
            continue
        kind = storage_of(column_type(rows, name))
        if aggregate.function == "first":
            first.append(name)
        elif aggregate.function == "last":
            last.append(name)
        elif aggregate.function == "count" and kind is None:
            counted.append(name)
        else:
            assert kind is not None
            extremes = aggregate.function in ("min", "max")
            values[name] = (kind, extremes or values.get(name, (kind, False))[1])
    by_time = spans or bool(last) or len(first) > len(carried)
    return SlotPlan(
        tuple(dict.fromkeys(first)),
        tuple(dict.fromkeys(last)),
        tuple((name, *what) for name, what in values.items()),
        tuple(dict.fromkeys(counted)),
        not by_time,
    )


@dataclass
class _Values:
    count: Int64s
    total: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    overflow: NDArray[np.bool_]


@dataclass
class Slots:
    """The accumulators of all slots of one call."""

    plan: SlotPlan
    size: int
    held: pa.RecordBatch | None = None
    held_at: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """For each of the first slots: its row of the table the state held, or -1."""

    def __post_init__(self) -> None:
        n, known = self.size, len(self.held_at)
        self.count = np.zeros(n, np.int64)
        self.first_time = np.zeros(n, np.int64)
        self.last_time = np.zeros(n, np.int64)
        self.first_row = np.zeros(n, np.int64)
        self.last_row = np.zeros(n, np.int64)
        self.values: dict[str, _Values] = {}
        self.counts: dict[str, Int64s] = {name: np.zeros(n, np.int64) for name in self.plan.counted}
        for name, kind, _ in self.plan.values:
            dtype = np.int64 if kind == "int" else np.float64
            low, high = (_MAX, _MIN) if kind == "int" else (np.inf, -np.inf)
            self.values[name] = _Values(
                np.zeros(n, np.int64),
                np.zeros(n, dtype),
                np.full(n, low, dtype),
                np.full(n, high, dtype),
                np.zeros(n if kind == "int" else 0, np.bool_),
            )
        if self.held is None or known == 0:
            return
        slot = np.flatnonzero(self.held_at >= 0)
        row = self.held_at[slot]
        self.first_row[slot] = self.last_row[slot] = row
        for column, array in self._arrays().items():
            array[slot] = _numpy(self.held.column(column))[row]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Every array that is kept in the state, by its column there."""
        out: dict[str, NDArray[Any]] = {
            "n": self.count,
            "first_time": self.first_time,
            "last_time": self.last_time,
        }
        for name, count in self.counts.items():
            out[f"count:{name}"] = count
        for name, v in self.values.items():
            out[f"count:{name}"] = v.count
            out[f"sum:{name}"] = v.total
            out[f"min:{name}"] = v.low
            out[f"max:{name}"] = v.high
            if len(v.overflow):
                out[f"over:{name}"] = v.overflow
        return out

    def fold(
        self, steps: NDArray[Any], n_steps: int, rows: pa.RecordBatch | None, times: Int64s
    ) -> None:
        """Follow the steps: rows join, slots start as copies, slots merge."""
        self.rows = rows
        self.shift = 0 if self.held is None else self.held.num_rows
        fold_rows(
            steps,
            n_steps,
            readonly(times),
            self.plan.ordered,
            self.shift,
            self.count,
            self.first_time,
            self.last_time,
            self.first_row,
            self.last_row,
        )
        for name, kind, extremes in self.plan.values:
            v = self.values[name]
            data, valid = _accumulated(rows, name, kind)
            if kind == "int":
                fold_ints(
                    steps,
                    n_steps,
                    data,
                    valid,
                    extremes,
                    v.count,
                    v.total,
                    v.low,
                    v.high,
                    v.overflow,
                )
            else:
                fold_floats(steps, n_steps, data, valid, extremes, v.count, v.total, v.low, v.high)
        for name in self.plan.counted:
            valid = _NO_NULLS
            size = 0
            if rows is not None:
                size = rows.num_rows
                valid = readonly(_numpy(rows.column(name).is_valid()))
            zeros = readonly(np.zeros(size, np.int64))
            spare = np.zeros(self.size, np.int64)
            fold_ints(
                steps,
                n_steps,
                zeros,
                valid,
                False,
                self.counts[name],
                spare,
                spare.copy(),
                spare.copy(),
                np.zeros(self.size, np.bool_),
            )

    def scatter(self, slot: Int32s, first: int, rows: pa.RecordBatch, times: Int64s) -> None:
        """Rows from `first` on join the slots named, one by one; -1 is none."""
        self.rows = rows
        self.shift = 0 if self.held is None else self.held.num_rows
        part = slice(first, first + len(slot))

        def whole() -> None:
            scatter_rows(
                slot,
                readonly(times[part]),
                self.plan.ordered,
                self.shift + first,
                self.count,
                self.first_time,
                self.last_time,
                self.first_row,
                self.last_row,
            )

        def values(name: str, kind: str, extremes: bool) -> None:
            v = self.values[name]
            data, valid = _accumulated(rows, name, kind)
            move, over = (scatter_ints, (v.overflow,)) if kind == "int" else (scatter_floats, ())
            move(slot, data[part], valid[part], extremes, v.count, v.total, v.low, v.high, *over)

        def counted(name: str) -> None:
            valid = _numpy(rows.column(name).is_valid())[part]
            there = slot[valid & (slot >= 0)]
            self.counts[name] += np.bincount(there, minlength=self.size)

        work: list[Callable[[], None]] = [
            whole,
            *(partial(values, *what) for what in self.plan.values),
            *(partial(counted, name) for name in self.plan.counted),
        ]
        if len(slot) >= MANY:
            each(lambda do: do(), work)
        else:
            for do in work:
                do()

    def payload(self, name: str, which: Int64s, *, last: bool = False) -> pa.Array:
        """The first (or last) value of a column, for these slots."""
        row = (self.last_row if last else self.first_row)[which]
        parts = []
        if self.held is not None:
            parts.append(self.held.column(f"{'last' if last else 'first'}:{name}"))
        if self.rows is not None:
            column = self.rows.column(name)
            if not parts:
                return column.take(pa.array(row))
            # Take from each side by itself: a collection is not copied to be appended.
            old = row < self.shift
            if not old.any():
                return column.take(pa.array(row - self.shift))
            if not old.all():
                picked = pa.concat_arrays(
                    [
                        parts[0].take(pa.array(row[old])),
                        column.take(pa.array(row[~old] - self.shift)),
                    ]
                )
                back = np.empty(len(row), np.int64)
                back[np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])] = np.arange(
                    len(row)
                )
                return picked.take(pa.array(back))
        return parts[0].take(pa.array(row))

    def result(self, aggregate: Aggregate, kind: pa.DataType, which: Int64s) -> pa.Array:
        """An incremental aggregate for these slots, of exactly this type."""
        name, function = aggregate.column, aggregate.function
        if name is None:
            return pa.array(self.count[which])
        if function in ("first", "last"):
            return self.payload(name, which, last=function == "last")
        if function == "count":
            found = self.counts.get(name)
            return pa.array((self.values[name].count if found is None else found)[which])
        v = self.values[name]
        count = v.count[which]
        empty = count == 0
        if function in ("sum", "mean") and len(v.overflow):
            empty = empty | v.overflow[which]
        if function == "sum":
            made: NDArray[Any] = v.total[which]
        elif function == "mean":
            made = v.total[which] / np.maximum(count, 1)
        else:
            made = (v.low if function == "min" else v.high)[which]
            if made.dtype == np.float64:  # values there were, but nothing except NaN
                made = np.where(v.low[which] > v.high[which], np.nan, made)
        return from_storage(pa.array(made, mask=empty), kind)

    def store(self, which: Int64s, lane: Int32s, serial: Int64s) -> pa.RecordBatch:
        """These slots as a table of the state."""
        columns: dict[str, Any] = {LANE: pa.array(lane), SERIAL: pa.array(serial)}
        for column, array in self._arrays().items():
            columns[column] = pa.array(array[which])
        for name in self.plan.first:
            columns[f"first:{name}"] = self.payload(name, which)
        for name in self.plan.last:
            columns[f"last:{name}"] = self.payload(name, which, last=True)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written, as Arrow's are: kernels are then compiled once for both."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return frozen(array)


def _numpy(column: pa.Array) -> NDArray[Any]:
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_storage(column: pa.Array, kind: str) -> pa.Array:
    """A column as int64 or float64, which is what the accumulators hold."""
    wanted = pa.int64() if kind == "int" else pa.float64()
    if column.type.equals(wanted):
        return column
    if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
        column = column.cast(pa.int32())
    return column.cast(wanted)


def from_storage(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The reverse of `to_storage`."""
    if column.type.equals(kind):
        return column
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    return column.cast(kind)


def _accumulated(
    rows: pa.RecordBatch | None, name: str, kind: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    if rows is None:
        return readonly(np.zeros(0, np.int64 if kind == "int" else np.float64)), _NO_NULLS
    column = to_storage(rows.column(name), kind)
    if column.null_count == 0:
        return readonly(_numpy(column)), _NO_NULLS
    valid = _numpy(column.is_valid())
    return readonly(_numpy(pc.fill_null(column, 0))), readonly(valid)
