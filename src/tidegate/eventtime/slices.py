"""A recorded run in slices: rows wait until no file can bring one that belongs before them.

A recording is read in micro-batches, and each brings some pieces of some files. Rows are ordered by
how far event time has come in their own file, for their own key (rule 2 of
`tidegate.eventtime.arrival_order`), or by an arrival column (rule 1). With every micro-batch comes
a bound (`tidegate.spark.columnar.pieces`; in process `tidegate.dataset.side_by_side`): no row still
to be read has a value below it. So rows below the bound can be put in their final order and handed
on; the others are held, in the state, until the bound has passed them. The outcome is the same as
if all files had been read at once.

What is held is the disorder between files, not the recording: pieces are read in the order of their
smallest values.

A row that is further ahead than `max_future_skew` counts with the progress of the row before it. If
a slice ends between the two it comes behind the other rows of that slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.arrow import concat, factorize, first_rows, take_in_pieces
from tidegate.core.columns import FIRST, NEWEST, ORDER, SOURCE, SUSPECTS, TIME
from tidegate.core.ipc import read_batch, write_batch
from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Int64s
from tidegate.core.sort import order_rows
from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.errors import ContractError, StateError
from tidegate.eventtime.arrival_order import ArrivalOrder, file_progress, in_pieces

__all__ = ["Bound", "Slices", "arrival_values", "is_number_like"]


class Bound(NamedTuple):
    """How far a recorded run has come.

    - `value`: no row still to be read is below it; MAX_NS: there is none.
    - `begun`: the files that have been read in part.
    """

    value: int
    begun: frozenset[str]


class Slices:
    """The rows of one shard that wait, and how far event time has come in files read in part.

    Args:
        order: The rule by which rows are put in order.
    """

    def __init__(self, order: ArrivalOrder) -> None:
        self.order = order
        self.held: pa.RecordBatch | None = None
        """Rows that wait, with their value (`ORDER`), their file (`SOURCE`) and the first time of
        their key there (`FIRST`)."""
        self.progress: pa.RecordBatch | None = None
        """Per file and key: `SOURCE`, the key columns, `FIRST`, `NEWEST` and `SUSPECTS`."""
        self.changed = False
        """Whether the state is another than when `page` was last called."""

    @property
    def rows_held(self) -> int:
        """How many rows wait."""
        return 0 if self.held is None else self.held.num_rows

    def admit(
        self, parts: Sequence[pa.RecordBatch], sources: Sequence[str], bound: Bound
    ) -> Iterator[pa.RecordBatch]:
        """Take the rows of a micro-batch; yield, in their final order, all that need not wait.

        Args:
            parts: Rows, in the order of their files and positions.
            sources: For each part, its file: names that sort in the order of files.
            bound: How far the run has come with these parts.
        """
        if not parts and self.held is None:
            self.forget_files(bound.begun)
            return
        pool, new = self.order.joined(parts)
        value = first = np.zeros(0, np.int64)
        if new is not None:
            value, first = self.values(new, parts, sources)
        everything = bound.value == MAX_NS
        plain = len(self.order.columns) < 2 and not self._is_by_text(new)
        in_order = plain and bool((value[1:] >= value[:-1]).all())
        in_order = in_order and not _ties_between_files(value, parts, sources)
        if self.held is None and in_order and (everything or bool((value < bound.value).all())):
            self.forget_files(bound.begun)
            yield from in_pieces(pool, None)
            return
        self.changed = True
        rows = self._with_held(new, value, first, parts, sources)
        value = rows.column(ORDER).to_numpy()
        waits = np.zeros(len(value), np.bool_) if everything else value >= bound.value
        order = self._sorted(rows, np.flatnonzero(~waits))
        if self.held is not None:
            pool.insert(0, self.held.drop_columns([ORDER, FIRST, SOURCE]))
        self.held = _waiting_rows(pool, rows, np.flatnonzero(waits))
        self.forget_files(bound.begun)
        yield from in_pieces(pool, order)

    def values(
        self, rows: pa.RecordBatch, parts: Sequence[pa.RecordBatch], sources: Sequence[str]
    ) -> tuple[Int64s, Int64s]:
        """Return what orders each row: its arrival, or the progress of its file for its key; and
        the first time of its key in its file, 0 where that does not count. The progress of files is
        kept for the next call.

        Args:
            rows: All parts together.
            parts: See `admit`, as for `sources`.
        """
        same = np.zeros(rows.num_rows, np.int64)
        if self.order.columns:
            return arrival_values(rows, self.order.columns[0]), same
        index = rows.schema.get_field_index(TIME)
        if index < 0:  # no event time: the order of files
            return np.full(rows.num_rows, MIN_NS), same
        time_ns = rows.column(index).fill_null(MIN_NS).to_numpy()
        counts = [part.num_rows for part in parts]
        names = pa.DictionaryArray.from_arrays(
            pa.array(np.repeat(np.arange(len(parts), dtype=np.int32), counts)),
            pa.array(list(sources), pa.string()),
        ).cast(pa.string())
        keys = [
            name for name in self.order.keys
            if name in rows.schema.names and not pa.types.is_nested(rows.schema.field(name).type)
        ]  # fmt: skip
        groups = pa.RecordBatch.from_arrays(
            [names, *(rows.column(name) for name in keys)], names=[SOURCE, *keys]
        )
        before = 0 if self.progress is None else self.progress.num_rows
        known = None if self.progress is None else _restored_columns(self.progress, [SOURCE, *keys])
        both = concat([known, groups])
        assert both is not None
        code, size = factorize(both.columns)
        newest = np.full(size, UNSET, np.int64)
        suspects = np.zeros(size, np.int64)
        known_first = np.zeros(0, np.int64)
        if self.progress is not None:
            known_first = self.progress.column(FIRST).to_numpy()
            newest[code[:before]] = self.progress.column(NEWEST).to_numpy()
            suspects[code[:before]] = self.progress.column(SUSPECTS).to_numpy()
        progress = np.empty(len(time_ns), np.int64)
        file_progress(
            as_readonly(np.ascontiguousarray(code[before:])), as_readonly(time_ns),
            self.order.skew_ns, self.order.skew_confirm, newest, suspects, progress,
        )  # fmt: skip
        row = first_rows(code, size)
        there = np.flatnonzero(row >= 0)
        began = np.zeros(size, np.int64)
        began[there] = np.concatenate([known_first, time_ns])[row[there]]
        table = both.take(pa.array(row[there]))
        for name, numbers in ((FIRST, began), (NEWEST, newest), (SUSPECTS, suspects)):
            table = table.append_column(name, pa.array(numbers[there]))
        self.progress = table
        self.changed = True
        return progress, began[code[before:]]

    def _with_held(
        self,
        new: pa.RecordBatch | None,
        value: Int64s,
        first: Int64s,
        parts: Sequence[pa.RecordBatch],
        sources: Sequence[str],
    ) -> pa.RecordBatch:
        """Return what orders the rows that are held, and then the new ones: their value, first time
        and file, and the arrival columns.
        """
        wanted = [*self.order.columns, ORDER, FIRST, SOURCE]
        known = None
        if self.held is not None:
            known = self.held.select([name for name in wanted if name in self.held.schema.names])
        if new is not None:
            of_file = [
                pa.repeat(pa.scalar(source, pa.string()), part.num_rows)
                for part, source in zip(parts, sources, strict=True)
            ]
            own = new.select([name for name in self.order.columns if name in new.schema.names])
            new = own.append_column(ORDER, pa.array(value)).append_column(FIRST, pa.array(first))
            new = new.append_column(SOURCE, pa.concat_arrays(of_file))
        rows = concat([known, new])
        assert rows is not None
        return rows

    def _sorted(self, rows: pa.RecordBatch, which: Int64s) -> Int64s:
        """Return indices of rows by value, then first time and file, then position; see
        `_with_held`."""
        source = rows.column(SOURCE).dictionary_encode()
        rank = pc.rank(source.dictionary, sort_keys="ascending").to_numpy().astype(np.int32)
        by_file = rank[source.indices.to_numpy()][which]
        which = which[np.lexsort((by_file, rows.column(FIRST).to_numpy()[which]))]
        value = rows.column(ORDER).to_numpy()[which]
        which = which[order_rows(np.zeros(len(value), np.int32), value, 1)]
        if len(self.order.columns) < 2 and not self._is_by_text(rows):
            return which
        by_columns = self.order.indices(rows.take(pa.array(which)))
        return which if by_columns is None else which[by_columns]

    def _is_by_text(self, rows: pa.RecordBatch | None) -> bool:
        """Whether an arrival column orders the rows that no bound can be put on."""
        if rows is None or not self.order.columns:
            return False
        return not is_number_like(rows.schema.field(self.order.columns[0]).type)

    def forget_files(self, begun: frozenset[str]) -> None:
        """Drop the progress of files that are read to their end: all but those begun."""
        if self.progress is None:
            return
        keep = pc.is_in(self.progress.column(SOURCE), pa.array(sorted(begun), pa.string()))
        if not pc.all(keep).as_py():
            kept = self.progress.filter(keep)
            self.progress = kept if kept.num_rows else None
            self.changed = True

    # -- the state --------------------------------------------------------------------------------

    def page(self) -> bytes:
        """Return all of it as bytes."""
        self.changed = False
        blobs = [
            b"" if table is None else write_batch(table) for table in (self.held, self.progress)
        ]
        return len(blobs[0]).to_bytes(8, "little") + blobs[0] + blobs[1]

    def load(self, page: bytes) -> None:
        """Take over what `page` returned. Raises StateError if it is damaged."""
        size = int.from_bytes(page[:8], "little")
        if len(page) < 8 or size > len(page) - 8:
            raise StateError("the rows that wait for other files are unreadable: cut off")
        blobs = (page[8 : 8 + size], page[8 + size :])
        held, progress = (
            read_batch(blob, "the rows that wait for other files") if blob else None
            for blob in blobs
        )
        if held is not None:
            _require(held, {ORDER: pa.int64(), FIRST: pa.int64(), SOURCE: pa.string()})
            if TIME in held.schema.names:
                _require(held, {TIME: pa.int64()})
        if progress is not None:
            numbers = dict.fromkeys((FIRST, NEWEST, SUSPECTS), pa.int64())
            _require(progress, {SOURCE: pa.string(), **numbers})
        self.held, self.progress, self.changed = held, progress, False


def is_number_like(kind: pa.DataType) -> bool:
    """Whether values of a type are numbers, or times, that a bound can be put on."""
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(whole or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def arrival_values(rows: pa.RecordBatch, name: str) -> Int64s:
    """Return an arrival column as numbers of the same order; null counts as the last.

    Where it is text, all rows wait until everything is read: their numbers are above every bound.
    """
    column = rows.column(rows.schema.get_field_index(name))
    if not is_number_like(column.type):
        return np.full(rows.num_rows, MAX_NS - 1)
    if not pa.types.is_integer(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: Int64s = column.cast(pa.int64()).fill_null(MAX_NS).to_numpy()
    return values


def _restored_columns(table: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return some columns of a restored table. Raises StateError if it has not one of each."""
    for name in names:
        if table.schema.get_field_index(name) < 0:
            raise StateError(f"the progress of files has no usable column {name!r}")
    return table.select(names)


def _require(table: pa.RecordBatch, columns: dict[str, pa.DataType]) -> None:
    """Raise StateError unless a restored table has these columns, without nulls."""
    for name, kind in columns.items():
        index = table.schema.get_field_index(name)
        if index < 0 or table.column(index).type != kind or table.column(index).null_count:
            raise StateError(f"the rows that wait for other files have no usable column {name!r}")


def _ties_between_files(
    value: Int64s, parts: Sequence[pa.RecordBatch], sources: Sequence[str]
) -> bool:
    """Whether rows of two files next to each other agree in their value, so that their order is
    still to be decided."""
    at = 0
    for part, one, other in zip(parts[:-1], sources[:-1], sources[1:], strict=True):
        at += part.num_rows
        if one != other and 0 < at < len(value) and value[at] == value[at - 1]:
            return True
    return False


def _waiting_rows(
    pool: Sequence[pa.RecordBatch], rows: pa.RecordBatch, which: Int64s
) -> pa.RecordBatch | None:
    """Return the rows that wait, with their value, first time and file; None if there are none.

    Args:
        pool: All rows.
        rows: What orders them.
        which: Those that wait.

    Raises ContractError if they have more bytes than a state can hold.
    """
    if len(which) == 0:
        return None
    found, size = [], 0
    for part in take_in_pieces(pool, which, rows=len(which), nbytes=2**30):
        size += part.nbytes
        if size >= 2**31:
            raise ContractError(
                f"more than 2 GiB of rows of one shard wait for other files of the recording, by "
                f"row {len(which):,}: their clocks are far apart. Use payload: addressed, which "
                "holds addresses instead of rows, more shards, or an arrival column"
            )
        found.append(part)
    held = concat(found)
    assert held is not None
    told = rows.take(pa.array(which))
    for name in (ORDER, FIRST, SOURCE):
        held = held.append_column(name, told.column(name))
    return held
