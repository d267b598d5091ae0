"""The state of an operator: arrays with a lane axis, and tables with a lane column. Nothing else.

Because every operator keeps its state in this one shape, snapshot, restore, paging by lane, growing
and freeing are written here once, and a snapshot is a codec, never a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import kernel

__all__ = ["LANE", "Column", "Layout", "State", "as_text", "concat"]

LANE = "__lane"
"""The column of a state table that says to which lane a row belongs (int32)."""


@dataclass(frozen=True)
class Column:
    """One array of the state: `shape` is what each lane has, `fill` what a new lane starts with."""

    dtype: Any
    shape: tuple[int, ...] = ()
    fill: int | float = 0


@dataclass(frozen=True)
class Layout:
    """What an operator keeps: named arrays per lane and named tables."""

    arrays: Mapping[str, Column] = field(default_factory=dict)
    tables: tuple[str, ...] = ()


class State:
    """Arrays with a lane axis, tables with a lane column, and which lanes were touched."""

    def __init__(self, layout: Layout, lanes: int = 1) -> None:
        self.layout = layout
        self.lanes = lanes
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.full((lanes, *column.shape), column.fill, column.dtype)
            for name, column in layout.arrays.items()
        }
        self.tables: dict[str, pa.RecordBatch | None] = dict.fromkeys(layout.tables)
        self.touched: NDArray[np.bool_] = np.zeros(lanes, np.bool_)

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
            grown = np.full((capacity, *column.shape), column.fill, column.dtype)
            grown[: self.lanes] = self.arrays[name]
            self.arrays[name] = grown
        self.touched = np.concatenate([self.touched, np.zeros(capacity - self.lanes, np.bool_)])
        self.lanes = capacity

    def free(self, lanes: NDArray[Any]) -> None:
        """Forget these lanes: arrays back to their fill, table rows gone."""
        for name, column in self.layout.arrays.items():
            self.arrays[name][lanes] = column.fill
        for name, table in self.tables.items():
            if table is not None and table.num_rows:
                gone = np.isin(table.column(LANE).to_numpy(), lanes)
                if gone.any():
                    self.tables[name] = table.filter(pa.array(~gone))
        self.touch(lanes)

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
        """Copies of lanes [edges[k], edges[k + 1]), each renumbered from 0.

        Tables are looked at once, however many pages there are.
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

    @classmethod
    def of_pages(cls, layout: Layout, pages: Mapping[int, State]) -> State:
        """The reverse of `pages`: lanes from `first` on are those of `pages[first]`.

        Rows of a table come out by page, so a table sorted by lane stays sorted.
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


@kernel
def _mark(touched: NDArray[np.bool_], lanes: NDArray[Any]) -> None:
    for lane in lanes:
        touched[lane] = True


def _shift(table: pa.RecordBatch, by: int) -> pa.RecordBatch:
    if by == 0:
        return table
    lane = pc.add(table.column(LANE), pa.scalar(by, pa.int32()))
    return table.set_column(table.schema.get_field_index(LANE), LANE, lane)


def concat(parts: Sequence[pa.RecordBatch | None]) -> pa.RecordBatch | None:
    """One batch of all rows, whatever became of the schema between them: a column that only some
    parts have is null in the others, one whose type grew is promoted, and one whose types do not
    agree at all becomes text. A change of schema is bad data, so it is never an exception."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(present) == 1:
        return present[0]
    filled = [part for part in present if part.num_rows] or present[:1]
    first = filled[0].schema
    if len(filled) == 1:
        return filled[0]
    if all(part.schema.equals(first) for part in filled[1:]):
        return pa.concat_batches(filled)
    table = pa.concat_tables(
        [pa.Table.from_batches([part]) for part in _agreeing(filled)],
        promote_options="permissive",
    )
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else filled[0]


def _agreeing(parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The parts, with every column whose types cannot be promoted to one another as text."""
    parts = out = [_named_once(part) for part in parts]
    for name in {name for part in parts for name in part.schema.names}:
        fields = [
            pa.schema([part.schema.field(name)]) for part in parts if name in part.schema.names
        ]
        try:
            pa.unify_schemas(fields, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            out = [_with_text(part, name) if name in part.schema.names else part for part in out]
    return out


def _named_once(part: pa.RecordBatch) -> pa.RecordBatch:
    """A column whose name has been taken by one before it gets a number behind its name."""
    names: list[str] = []
    for name in part.schema.names:
        fresh, number = name, 2
        while fresh in names:
            fresh, number = f"{name}.{number}", number + 1
        names.append(fresh)
    return part if names == part.schema.names else part.rename_columns(names)


def _with_text(part: pa.RecordBatch, name: str) -> pa.RecordBatch:
    place = part.schema.get_field_index(name)
    return part.set_column(place, pa.field(name, pa.string()), as_text(part.column(place)))


def as_text(column: pa.Array) -> pa.Array:
    """Every value as a person would write it; null stays null."""
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())
