"""Open windows and accumulators between two calls: numpy arrays, and Arrow tables on request.

A call on a hundred rows takes a few tens of microseconds; writing twenty short Arrow columns and
reading them back in the next call takes ten times as long. So the stage keeps what it works with,
and the state's tables `open` and `slots` are made when someone reads them: a snapshot, a page of
Spark's state store, a test. Whoever writes one of these tables ends the arrays, and the next call
starts from the table. The state is therefore always whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.columns import LANE, SERIAL
from tidegate.core.outcomes import Int64s
from tidegate.core.state import State
from tidegate.windows.kernels.layout import KEPT

ROWS_SCHEMA = b"tidegate.rows"
"""Metadata of the state's table of open windows: the schema of the rows that opened them."""

LANE_STRIDE = np.int64(1) << 32
"""(lane, serial) as one number is lane * this + serial: a lane never opens 2^32 windows."""

NEWER = "emitted"
"""A column of `open` that states written before 2026-11-18 lack, in all or some of their pages."""

_INT64 = pa.int64()
_PANE_BYTES = 8 * len(KEPT) - 4
_AT = {name: number for number, name in enumerate(KEPT)}


@dataclass
class HeldPanes:
    """The open windows of a state: one line of `block` for each column of `KEPT`."""

    block: NDArray[np.int64]
    """Shape (columns of `KEPT`, windows)."""
    written: bytes
    """The schema of the rows that opened them, as bytes."""
    partitions: dict[str, pa.Array] = field(default_factory=dict)
    """State windows: their partition columns, named `part:...`."""

    @classmethod
    def of_table(cls, table: pa.RecordBatch) -> HeldPanes:
        """Read the state's table `open`."""
        block = np.empty((len(KEPT), table.num_rows), np.int64)
        block[0] = table.column(LANE).to_numpy()
        for name in KEPT[1:]:
            at = table.schema.get_field_index(name)
            block[_AT[name]] = 0 if at < 0 else table.column(at).fill_null(0).to_numpy()
        parts = [name for name in table.schema.names if name.startswith("part:")]
        columns = {name: table.column(name) for name in parts}
        return cls(block, table.schema.metadata[ROWS_SCHEMA], columns)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    def __getitem__(self, name: str) -> Int64s:
        """A column of `KEPT`."""
        column: Int64s = self.block[_AT[name]]
        return column

    @property
    def keys(self) -> Int64s:
        """(lane, serial) of every window as one number."""
        return self["lane"] * LANE_STRIDE + self["serial"]

    @property
    def nbytes(self) -> int:
        """Bytes of the table that `table` makes."""
        return len(self) * _PANE_BYTES + sum(int(p.nbytes) for p in self.partitions.values())

    def table(self) -> pa.RecordBatch:
        """The state's table `open`."""
        n = len(self)
        kept = np.ascontiguousarray(self.block)
        buffer, size = pa.py_buffer(kept), 8 * n
        arrays = [pa.array(kept[0].astype(np.int32))]
        arrays += [
            pa.Array.from_buffers(_INT64, n, [None, buffer.slice(at * size, size)])
            for at in range(1, len(KEPT))
        ]
        columns = [(LANE, pa.int32()), *((name, _INT64) for name in KEPT[1:])]
        columns += [(name, part.type) for name, part in self.partitions.items()]
        schema = pa.schema(columns, metadata={ROWS_SCHEMA: self.written})
        return pa.RecordBatch.from_arrays([*arrays, *self.partitions.values()], schema=schema)


@dataclass
class HeldSlots:
    """The accumulators of a state, one entry per slot in every column."""

    keys: Int64s
    """(lane, serial) of the window of each slot, as one number."""
    numbers: dict[str, NDArray[Any]]
    """Counts, sums, extremes and times, by column."""
    values: dict[str, pa.Array]
    """First and last values and the states of folds, by column."""

    @classmethod
    def of_table(cls, table: pa.RecordBatch) -> HeldSlots:
        """Read the state's table `slots`."""
        numbers, values = {}, {}
        for name in table.schema.names:
            if name in (LANE, SERIAL):
                continue
            column = table.column(name)
            if name.startswith(("first:", "last:", "fold:")):
                values[name] = column
            else:
                numbers[name] = column.to_numpy(zero_copy_only=False)
        return cls(table_keys(table), numbers, values)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """About the bytes of the table that `table` makes."""
        size = len(self) * (12 + 8 * len(self.numbers))
        return size + sum(int(array.nbytes) for array in self.values.values())

    def table(self) -> pa.RecordBatch:
        """The state's table `slots`."""
        columns: dict[str, Any] = {
            LANE: pa.array((self.keys // LANE_STRIDE).astype(np.int32)),
            SERIAL: pa.array(self.keys % LANE_STRIDE),
        }
        columns |= {name: pa.array(array) for name, array in self.numbers.items()}
        columns |= self.values
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class WindowTables(dict[str, pa.RecordBatch | None]):
    """The tables of a window state, of which `open` and `slots` may live in arrays.

    Args:
        tables: the tables by name.
    """

    def __init__(self, tables: Mapping[str, pa.RecordBatch | None]) -> None:
        super().__init__(tables)
        self.live: dict[str, HeldPanes | HeldSlots] = {}

    def __getitem__(self, name: str) -> pa.RecordBatch | None:
        if name in self.live:
            return self.live[name].table()
        return super().__getitem__(name)

    def __setitem__(self, name: str, table: pa.RecordBatch | None) -> None:
        self.live.pop(name, None)
        super().__setitem__(name, table)

    def items(self) -> Any:
        """(name, table) pairs, made now: a dict's own view would bypass `__getitem__`."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """The tables, made now."""
        return [self[name] for name in self]


def _tables(state: State) -> WindowTables:
    """The tables of a state as `WindowTables`, replacing the plain dict at the first call."""
    tables = state.tables
    if not isinstance(tables, WindowTables):
        tables = state.tables = WindowTables(tables)
    return tables


def held_panes(state: State) -> HeldPanes | None:
    """The open windows of a state; None: there is none."""
    tables = _tables(state)
    found = tables.live.get("open")
    if found is None:
        table = dict.__getitem__(tables, "open")
        if table is None or table.num_rows == 0:
            return None
        found = tables.live["open"] = HeldPanes.of_table(table)
    assert isinstance(found, HeldPanes)
    return found


def held_slots(state: State) -> HeldSlots | None:
    """The accumulators of a state; None: there are none."""
    tables = _tables(state)
    found = tables.live.get("slots")
    if found is None:
        table = dict.__getitem__(tables, "slots")
        if table is None or table.num_rows == 0:
            return None
        found = tables.live["slots"] = HeldSlots.of_table(table)
    assert isinstance(found, HeldSlots)
    return found


def hold_panes(state: State, held: HeldPanes | None) -> None:
    """Make these the open windows of a state."""
    _hold(state, "open", held)


def hold_slots(state: State, held: HeldSlots | None) -> None:
    """Make these the accumulators of a state."""
    _hold(state, "slots", held)


def _hold(state: State, name: str, held: HeldPanes | HeldSlots | None) -> None:
    tables = _tables(state)
    tables[name] = None
    if held is not None:
        tables.live[name] = held


def table_keys(table: pa.RecordBatch) -> Int64s:
    """(lane, serial) of every row of a state table as one number."""
    lane = table.column(LANE).to_numpy().astype(np.int64)
    return lane * LANE_STRIDE + table.column(SERIAL).to_numpy()  # type: ignore[no-any-return]
