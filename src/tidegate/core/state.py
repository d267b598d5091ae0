"""The state of an operator: arrays with a lane axis, and tables with a lane column. Nothing else.

Because every operator keeps its state in this one shape, snapshot, restore, paging by lane, growing
and freeing are written here once, and a snapshot is a codec, never a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import concat
from tidegate.core.columns import LANE
from tidegate.core.numba import kernel
from tidegate.errors import StateError

__all__ = ["Column", "Layout", "State", "require_int64"]


@dataclass(frozen=True)
class Column:
    """One array of the state.

    `shape` is what each lane has beside the lane axis, `fill` what a new lane starts with. `merge`
    is for counters, which must outlive the keys they counted: when a lane is freed, its value is
    added to lane 0 (`"sum"`) or lane 0 takes the larger one (`"max"`); None forgets it.
    """

    dtype: Any
    """The numpy type."""
    shape: tuple[int, ...] = ()
    """What each lane has beside the lane axis."""
    fill: int | float = 0
    """What a new lane starts with."""
    merge: Literal["sum", "max"] | None = None
    """What becomes of the value when a lane is freed: added to lane 0, the larger one kept in lane
    0, or forgotten."""
    apart: bool = False
    """How memory is laid out, which nobody but a kernel sees: False: lane by lane. True: all lanes
    of the first entry of `shape`, then all of the second. For wide lanes that mostly use their
    first entries only: memory of the others is never touched."""


@dataclass(frozen=True)
class Layout:
    """What an operator keeps: named arrays per lane and named tables."""

    arrays: Mapping[str, Column] = field(default_factory=dict)
    """Arrays by name."""
    tables: tuple[str, ...] = ()
    """Names of tables; each has the column LANE."""


class State:
    """Arrays with a lane axis, tables with a lane column, and which lanes were touched.

    Args:
        layout: what to keep.
        lanes: how many lanes to begin with; `grow` adds more.
    """

    def __init__(self, layout: Layout, lanes: int = 1) -> None:
        self.layout = layout
        self.lanes = lanes
        self.arrays: dict[str, NDArray[Any]] = {
            name: _new_column(lanes, column) for name, column in layout.arrays.items()
        }
        self.tables: dict[str, pa.RecordBatch | None] = dict.fromkeys(layout.tables)
        self.touched: NDArray[np.bool_] = np.zeros(lanes, np.bool_)

    @classmethod
    def of_arrays(cls, layout: Layout, lanes: int, arrays: dict[str, NDArray[Any]]) -> State:
        """A state with these arrays, which must be those of the layout, and empty tables."""
        state = cls(Layout({}, layout.tables), 0)
        state.layout, state.lanes, state.arrays = layout, lanes, arrays
        state.touched = np.zeros(lanes, np.bool_)
        return state

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def touch(self, lanes: NDArray[Any]) -> None:
        """Say that these lanes changed, so that their pages are written back."""
        if len(lanes) > len(self.touched):
            _mark(self.touched, lanes)
        else:
            self.touched[lanes] = True

    def grow(self, lanes: int) -> None:
        """Make room for at least `lanes` lanes; new ones start empty. Capacity doubles."""
        if lanes <= self.lanes:
            return
        capacity = max(lanes, 2 * self.lanes)
        for name, column in self.layout.arrays.items():
            grown = _new_column(capacity, column)
            grown[: self.lanes] = self.arrays[name]
            self.arrays[name] = grown
        self.touched = np.concatenate([self.touched, np.zeros(capacity - self.lanes, np.bool_)])
        self.lanes = capacity

    def free(self, lanes: NDArray[Any]) -> None:
        """Forget these lanes: arrays to their fill (counters to lane 0), table rows gone."""
        for name, column in self.layout.arrays.items():
            array = self.arrays[name]
            kept = None
            if column.merge == "sum":
                kept = array[lanes].sum(axis=0) + (0 if (lanes == 0).any() else array[0])
            elif column.merge == "max":
                kept = np.maximum(array[lanes].max(axis=0), array[0])
            array[lanes] = column.fill
            if kept is not None:
                array[0] = kept
                self.touched[0] = True
        for name, table in self.tables.items():
            if table is not None and table.num_rows:
                gone = np.isin(table.column(LANE).to_numpy(), lanes)
                if gone.any():
                    self.tables[name] = table.filter(pa.array(~gone))
        self.touch(lanes)

    def conformed(self, layout: Layout, owner: str = "a stage") -> State:
        """The same arrays and tables as a state of another layout, which must be equal in names,
        types and shapes; what new lanes start with and what becomes of freed ones may differ.

        Args:
            layout: the layout of the result.
            owner: the name of the operator, for the error.

        Raises:
            StateError: an array or a table is missing, left over, or of another type or shape.
        """
        for name in sorted({*layout.arrays, *self.arrays}):
            wanted, found = layout.arrays.get(name), self.arrays.get(name)
            if wanted is None or found is None:
                raise StateError(f"state of {owner}: array {name} is missing or unknown")
            if found.dtype != np.dtype(wanted.dtype) or found.shape[1:] != wanted.shape:
                raise StateError(f"state of {owner}: array {name} does not fit the settings")
        if set(layout.tables) != set(self.tables):
            raise StateError(f"state of {owner}: tables differ from the layout")
        made = State.of_arrays(layout, self.lanes, self.arrays)
        for name in layout.tables:
            made.tables[name] = self.tables[name]
        made.touched[: len(self.touched)] = self.touched
        return made

    def rows(self, name: str) -> int:
        """How many rows the table holds."""
        table = self.tables[name]
        return 0 if table is None else int(table.num_rows)

    def nbytes(self) -> int:
        """Bytes held by arrays and tables."""
        tables = sum(table.nbytes for table in self.tables.values() if table is not None)
        return int(sum(array.nbytes for array in self.arrays.values()) + tables)

    # -- paging ---------------------------------------------------------------------------------

    def pages(self, edges: Sequence[int]) -> list[State]:
        """Copy ranges of lanes, each renumbered from 0.

        Args:
            edges: ascending lane numbers; page k has the lanes [edges[k], edges[k + 1]).

        Returns:
            One state per page. Tables are read once, however many pages there are.
        """
        parts = [State(self.layout, last - first) for first, last in pairwise(edges)]
        for part, first, last in zip(parts, edges, edges[1:], strict=False):
            for name, array in self.arrays.items():
                have = array[first:last]
                part.arrays[name][: len(have)] = have
        for name, table in self.tables.items():
            if table is None:
                continue
            lane = table.column(LANE).to_numpy()
            if (lane[1:] < lane[:-1]).any():
                # A stable order by page: within one, rows stay as they are.
                page = np.searchsorted(edges, lane, side="right")
                order = np.argsort(page, kind="stable")
                table, lane = table.take(pa.array(order)), np.sort(lane)
            rows = np.searchsorted(lane, edges)
            for part, first, (begin, end) in zip(parts, edges, pairwise(rows), strict=False):
                part.tables[name] = _shift(table.slice(begin, end - begin), -first)
        return parts

    def take(self, lanes: NDArray[Any]) -> State:
        """Copy some lanes, renumbered from 0 in the given order.

        Args:
            lanes: lane numbers, ascending: rows of tables stay in their order, so that a table
                sorted by lane stays sorted.

        Returns:
            A state of these lanes; of one empty lane if there are none.
        """
        if not len(lanes):
            return State(self.layout, 1)
        arrays = {name: array[lanes] for name, array in self.arrays.items()}
        made = State.of_arrays(self.layout, len(lanes), arrays)
        number = np.full(self.lanes, -1, np.int32)
        number[lanes] = np.arange(len(lanes), dtype=np.int32)
        for name, table in self.tables.items():
            if table is None or not table.num_rows:
                continue
            lane = number[table.column(LANE).to_numpy()]
            own = table.filter(pa.array(lane >= 0))
            at = table.schema.get_field_index(LANE)
            field = table.schema.field(at)
            made.tables[name] = own.set_column(at, field, pa.array(lane[lane >= 0]))
        return made

    @classmethod
    def of_pages(cls, layout: Layout, pages: Mapping[int, State]) -> State:
        """Join pages: the reverse of `pages`.

        Args:
            layout: the layout of all pages.
            pages: states by the number of their first lane; lanes between them start empty.

        Returns:
            One state. Rows of a table come out by page, so a table sorted by lane stays sorted.
        """
        lanes = max((first + part.lanes for first, part in pages.items()), default=1)
        state = cls(layout, lanes)
        for first, part in pages.items():
            for name, array in part.arrays.items():
                state.arrays[name][first : first + part.lanes] = array
        for name in layout.tables:
            parts = [(first, pages[first].tables[name]) for first in sorted(pages)]
            state.tables[name] = concat(
                [None if table is None else _shift(table, first) for first, table in parts]
            )
        return state


def require_int64(state: State, table: str, *columns: str) -> None:
    """Raise a StateError unless these columns of a state table are int64 without nulls. For
    `Operator.invariants`: what is read out of a table by name and given to a kernel."""
    rows = state.tables[table]
    if rows is None:
        return
    for name in columns:
        index = rows.schema.get_field_index(name)
        if index < 0:
            raise StateError(f"state table {table} has no column {name}")
        column = rows.column(index)
        if not pa.types.is_int64(column.type) or column.null_count:
            raise StateError(f"state table {table}: column {name} is not int64 throughout")


def _new_column(lanes: int, column: Column) -> NDArray[Any]:
    """Return the array of a column for new lanes. Zeros are left to the operating system, which
    hands out memory when it is first written: wide lanes are mostly never used to their end."""
    if column.apart:
        first, *others = column.shape
        return _filled((first, lanes, *others), column).swapaxes(0, 1)
    return _filled((lanes, *column.shape), column)


def _filled(shape: tuple[int, ...], column: Column) -> NDArray[Any]:
    if column.fill == 0:
        return np.zeros(shape, column.dtype)
    return np.full(shape, column.fill, column.dtype)


@kernel
def _mark(touched: NDArray[np.bool_], lanes: NDArray[Any]) -> None:
    """Mark lanes as touched, in place; used where there are more entries than lanes."""
    for lane in lanes:
        touched[lane] = True


def _shift(table: pa.RecordBatch, by: int) -> pa.RecordBatch:
    """The table with its lane numbers shifted by `by`."""
    if by == 0:
        return table
    lane = pc.add(table.column(LANE), pa.scalar(by, pa.int32()))
    return table.set_column(table.schema.get_field_index(LANE), LANE, lane)
