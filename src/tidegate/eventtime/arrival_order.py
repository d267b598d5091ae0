"""The order in which rows of files arrive, pinned: results never depend on how files are listed,
split or read in parallel.

Rows are put into one order before the first stage sees them, on Spark and in process alike. Three
rules, the first that applies:

1. **Arrival columns.** Rows are sorted by them, across files. Rows that agree in all of them are in
   the order of their files' names, then of their position. Text that is a number (a sequence number
   in a CSV file whose columns are all text) is sorted by its value, before all other text.
2. **A recorded run** (a batch, or available-now): there is no arrival to respect, and no row may
   become late because of how a recording was cut into files. Every file is a source with a
   watermark of its own, and files are read side by side: a row's turn comes when event time in its
   own file, for its own key, has reached that far. A file that has not begun thus holds everything
   at its first time, one that is finished holds nothing back, and a row is late only if it is late
   within its own file.
3. **A live run**: files in the order of their modification time, then of their name; rows by their
   position.

Where rows do not come from files (Kafka, a table, a union of DataFrames), each input counts as one
file, in the order of Spark's partitions: `describe` says so, and a run logs it.

Why rule 2 gives a watermark per file. Let p(r) be the highest event time of r's key in r's file up
to and including r. Rows are ordered by (p, first, name, position). `first` is the time of the first
row of r's key in r's file: of two slices of a recording the earlier one comes first, whatever their
names (`log_9`, `log_10`); `name` decides between files that begin at the same time. When r's turn
comes, no row before it has a time above p(r); if r itself is behind, the row that made it so is in
the same file, has the same p and comes first. So the highest time before r is exactly p(r), and r
is late if and only if it is more than the tolerance behind p(r): behind its own file.

Clock policy: event time decides. The modification time of files decides in live runs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.arrow import coalesce, concat, factorize, first_rows, take_in_pieces
from tidegate.core.columns import TIME
from tidegate.core.numba import as_readonly, kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.sort import order_rows
from tidegate.core.time import MIN_NS, UNSET

__all__ = ["ArrivalOrder", "compile_arrival", "file_progress", "in_pieces"]

NUMBER_TEXT = r"^-?[0-9]{1,20}(\.[0-9]{1,9})?\z"
"""Text that is sorted as a number, for Arrow and for Java."""

NUMBER_DIGITS = (38, 9)
"""Digits of the decimal numbers that such text is read as, and how many of them are behind the
point: none is rounded."""

ROWS_PER_PIECE = 1_000_000
"""Rows of a shard run through the stages at a time. Bounds memory in a backfill, where a shard may
hold many millions; below some ten thousand the calls cost more than the rows."""

JOIN_ROWS = 32_768
"""Parts that are in order already are joined up to this many rows. Joining is a copy, so
larger ones are left alone; without it every tiny part would be a call of its own."""

BYTES_PER_PIECE = 64 * 2**20
"""Bytes after which joining ends, where rows are large (images): 32,768 rows of 1 MB would not fit
into memory, and no Arrow column of plain binary type can hold more than 2 GB."""

JOINED_BYTES = 2**30
"""Bytes up to which the rows of a call are joined to be sorted. More are sorted by their ordering
columns alone and gathered piece by piece, which copies them twice: a column of text or bytes ends
at 2 GiB."""


@dataclass(frozen=True)
class ArrivalOrder:
    """Which of the three rules puts the rows of a shard in order. Immutable; travels to the
    workers.

    Args:
        columns: Those that pin arrival (rule 1); empty if there are none.
        recorded: Whether the run is over something recorded (rule 2, else rule 3).
        keys: The key columns; progress in a file is per key. A nested key column is left out.
        skew_ns: `max_future_skew` of the event-time stage, in ns; negative: unset. A row whose
            clock is wrong must not hold up its file.
        skew_confirm: Consecutive rows beyond the skew after which a jump of the clock is believed.
    """

    columns: tuple[str, ...] = ()
    recorded: bool = False
    keys: tuple[str, ...] = ()
    skew_ns: int = -1
    skew_confirm: int = 10

    def describe(self, files: bool) -> str:
        """Return the rule as a sentence, for `explain`, `dry-run` and logs.

        Args:
            files: Whether all inputs tell which file a row comes from.

        Example:
            >>> ArrivalOrder(("log_time",)).describe(True)
            'arrival order: log_time, then file and position'
        """
        if self.columns:
            then = "then file and position" if files else "then Spark's partitions"
            return f"arrival order: {', '.join(self.columns)}, {then}"
        if not files:
            return (
                "arrival order: Spark's partitions, which a shuffle or another number of cores "
                "changes; name the columns that pin it with arrival"
            )
        if self.recorded:
            return "arrival order: a watermark per file, files side by side by event time"
        return "arrival order: files by modification time and name, rows by position"

    def sorted(self, packed: Iterable[Any]) -> list[Any]:
        """Return blobs of rows in the order of their files and positions, which they know
        (`tidegate.spark.arrival.Packed`).

        The modification time of files counts in live runs only: copying a recording changes it, and
        must not change results.
        """
        if self.recorded or self.columns:
            return sorted(packed, key=lambda one: (one.file, one.block, one.part, one.seq))
        return sorted(packed, key=lambda one: (one.changed, one.file, one.block, one.part, one.seq))

    def pieces(
        self, parts: Sequence[pa.RecordBatch], files: Sequence[tuple[int, str]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts in order of arrival, in pieces.

        Args:
            parts: The rows, in the order of `sorted`.
            files: For each part, the number of its input and its file.

        Where the parts are in order already they are handed on without a copy; only small ones are
        joined. Otherwise all of them are sorted and cut into pieces of `ROWS_PER_PIECE`.
        """
        if self._are_in_order(parts, files):
            yield from coalesce(parts, rows=JOIN_ROWS, nbytes=BYTES_PER_PIECE)
            return
        pool, told = self.joined(parts)
        if told is None:
            return
        if self.columns:
            order = self.indices(told)
        elif self.recorded and TIME in told.schema.names:
            order = self._side_by_side(told, parts, files)
        else:
            order = None
        yield from in_pieces(pool, order)

    def joined(
        self, parts: Sequence[pa.RecordBatch]
    ) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
        """Return parts joined, and a batch of all their rows with the columns that order them: the
        same one, unless they are so large together that they stay as they are. None: no part.
        """
        if sum(part.nbytes for part in parts) <= JOINED_BYTES:
            whole = concat(parts)
            return ([] if whole is None else [whole]), whole
        ordering = {TIME, *self.columns, *self.keys}
        narrow = [
            part.select([name for name in part.schema.names if name in ordering]) for part in parts
        ]
        return list(parts), concat(narrow)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows sorted by the arrival columns; rows that agree in all keep their order."""
        order = self.indices(rows)
        return rows if order is None else rows.take(pa.array(order))

    def indices(self, rows: pa.RecordBatch) -> Int64s | None:
        """Return the order of rows by the arrival columns, as their indices; rows that agree in all
        keep theirs. None: there is nothing to sort.
        """
        if not self.columns or rows.num_rows < 2:
            return None
        first = rows.column(rows.schema.get_field_index(self.columns[0]))
        if len(self.columns) == 1 and pa.types.is_int64(first.type) and first.null_count == 0:
            order: Int64s = order_rows(np.zeros(len(first), np.int32), first.to_numpy(), 1)
            return order
        columns = [
            each
            for name in self.columns
            for each in _by_value(rows.column(rows.schema.get_field_index(name)))
        ]
        keys = [(f"{place}", "ascending") for place in range(len(columns))]
        table = pa.RecordBatch.from_arrays(columns, names=[name for name, _ in keys])
        found: Int64s = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
        return found

    def _are_in_order(
        self, parts: Sequence[pa.RecordBatch], files: Sequence[tuple[int, str]]
    ) -> bool:
        """Return whether the parts are alike and in order, as far as that is quickly told.

        False is always safe: it costs a sort. Only a single int64 arrival column without nulls is
        looked at; several columns and other types are always sorted.
        """
        if any(not part.schema.equals(parts[0].schema) for part in parts[1:]):
            return False
        if not self.columns:
            return not self.recorded or len(set(files)) < 2
        newest = MIN_NS
        for part in parts:
            column = part.column(part.schema.get_field_index(self.columns[0]))
            if len(self.columns) > 1 or not pa.types.is_int64(column.type) or column.null_count:
                return False
            times = column.to_numpy()
            if times[0] < newest or (times[1:] < times[:-1]).any():
                return False
            newest = times[-1]
        return True

    def _side_by_side(
        self,
        joined: pa.RecordBatch,
        parts: Sequence[pa.RecordBatch],
        files: Sequence[tuple[int, str]],
    ) -> Int64s:
        """Rule 2: the order of rows by how far event time has come in their file, for their key."""
        numbers = {file: number for number, file in enumerate(dict.fromkeys(files))}
        of_part = np.array([numbers[file] for file in files], np.int64)
        of_row = pa.array(np.repeat(of_part, [part.num_rows for part in parts]))
        keys = [joined.column(name) for name in self.keys if name in joined.schema.names]
        plain = [column for column in keys if not pa.types.is_nested(column.type)]
        group, size = factorize([of_row, *plain])
        time_ns = joined.column(joined.schema.get_field_index(TIME)).fill_null(MIN_NS).to_numpy()
        progress = np.empty(len(time_ns), np.int64)
        file_progress(
            as_readonly(group), as_readonly(time_ns), self.skew_ns, self.skew_confirm,
            np.full(size, UNSET, np.int64), np.zeros(size, np.int64), progress,
        )  # fmt: skip
        first = time_ns[first_rows(group, size)][group]
        order = np.argsort(first, kind="stable")  # the rows come by file and position
        found: Int64s = order[order_rows(np.zeros(len(order), np.int32), progress[order], 1)]
        return found


def in_pieces(parts: Sequence[pa.RecordBatch], order: Int64s | None) -> Iterator[pa.RecordBatch]:
    """Yield rows in an order, in pieces that the stages take at a time.

    Args:
        parts: The rows; a single batch, or several that are too large to be joined.
        order: Their indices, counted through all parts; None: as they are.
    """
    if order is not None:
        nbytes = JOINED_BYTES if len(parts) == 1 else BYTES_PER_PIECE
        yield from take_in_pieces(parts, order, rows=ROWS_PER_PIECE, nbytes=nbytes)
        return
    for part in coalesce(parts, rows=JOIN_ROWS, nbytes=BYTES_PER_PIECE):
        for first in range(0, part.num_rows, ROWS_PER_PIECE):
            yield part.slice(first, ROWS_PER_PIECE)


def _by_value(column: pa.Array) -> list[pa.Array]:
    """Return what an arrival column is sorted by: of text, the numbers in it first."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return [column]
    plain = pc.if_else(pc.match_substring_regex(column, NUMBER_TEXT), column, None)
    return [plain.cast(pa.decimal128(*NUMBER_DIGITS)), column]


@kernel
def file_progress(
    group: Int64s,
    time_ns: Int64s,
    skew_ns: int,
    confirm: int,
    newest: Int64s,
    suspects: Int64s,
    progress: Int64s,
) -> None:
    """Write for every row the highest time of its group so far into `progress`.

    Args:
        group: Per row, the number of its (file, key).
        time_ns: Per row, its event time; MIN_NS where it has none.
        skew_ns: A row further than this ahead of its group does not count. Negative: all count.
        confirm: The `confirm`-th consecutive row beyond the skew counts after all.
        newest: Per group, the highest time so far; UNSET at the start. Changed.
        suspects: Per group, consecutive rows beyond the skew; 0 at the start. Changed.
        progress: Written.
    """
    for row in range(len(group)):
        one = group[row]
        time = time_ns[row]
        # The lower bound keeps `time - skew_ns` from wrapping around below the smallest int64.
        far = skew_ns >= 0 and time >= MIN_NS + skew_ns and time - skew_ns > newest[one]
        ahead = far and newest[one] != UNSET
        suspects[one] = suspects[one] + 1 if ahead else 0
        if time > newest[one] and (not ahead or suspects[one] >= confirm):
            newest[one] = time
            suspects[one] = 0
        progress[row] = newest[one]


def compile_arrival() -> None:
    """Compile the kernels on the driver, by a tiny sort through rule 2, so that no worker has to:
    workers of one machine find the result in Numba's cache.
    """
    rows = pa.record_batch({TIME: pa.array([2, 1], pa.int64())})
    order = ArrivalOrder(recorded=True)
    list(order.pieces([rows, rows], [(0, "a"), (0, "b")]))
