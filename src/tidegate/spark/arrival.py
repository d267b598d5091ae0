"""The order in which rows arrive, pinned: results never depend on how Spark lists or splits files.

After a shuffle rows come in any order, so every blob of rows carries where its rows were read: the
file, the block of it, the partition and its number there (`Origin`). From that the step puts rows
into one order before the first stage sees them. Three rules, the first that applies:

1. **Arrival columns.** Rows are sorted by them, across files. Rows that agree in all of them are in
   the order of their files' names, then of their position.
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
to and including r. Rows are ordered by (p, file, position). When r's turn comes, no row before it
has a time above p(r); if r itself is behind, the row that made it so is in the same file, has the
same p and comes first. So the highest time before r is exactly p(r), and r is late if and only if
it is more than the tolerance behind p(r): behind its own file.

Clock policy: event time decides. The modification time of files decides in live runs only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from tidegate.core.arrow import coalesce, concat, factorize
from tidegate.core.columns import FILE, TIME
from tidegate.core.numba import as_readonly, kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.sort import order_rows
from tidegate.core.time import MIN_NS, UNSET

__all__ = [
    "PARTS",
    "ArrivalOrder",
    "Origin",
    "Packed",
    "by_origin",
    "compile_arrival",
    "file_column",
]

PARTS = 1_000_000
"""Partition numbers reserved per input: partition p of input i is part i * PARTS + p. Above any
number of partitions Spark is run with; below it, parts of two inputs would share a number and
`part // PARTS` would name the wrong input. 2,147 inputs fit into the int32 column."""

ROWS_PER_PIECE = 1_000_000
"""Rows of a shard run through the stages at a time. Bounds memory in a backfill, where a shard may
hold many millions; below some ten thousand the calls cost more than the rows."""

JOIN_ROWS = 32_768
"""Parts that are in order already are joined up to this many rows. Joining is a copy, so
larger ones are left alone; without it every tiny part would be a call of its own."""

BYTES_PER_PIECE = 64 * 2**20
"""Bytes after which joining ends, where rows are large (images): 32,768 rows of 1 MB would not fit
into memory, and no Arrow column of plain binary type can hold more than 2 GB."""


class Origin(NamedTuple):
    """Where the rows of a blob were read.

    - `changed`: when the file was last modified, in microseconds since 1970.
    - `file`: its name and a hash of its path; empty where rows do not come from files.
    - `block`: the byte at which the part of the file begins that one task reads.
    """

    changed: int = 0
    file: str = ""
    block: int = 0


class Packed(NamedTuple):
    """A blob of rows of one shard, as it comes out of the shuffle.

    Args:
        kind: `data`, `error` (rows whose time could not be read) or `control`.
        part: The partition it was packed in, plus `PARTS` times the number of the input.
        seq: Its number within that partition, from 0.
        changed: See `Origin`, as for `file` and `block`.
        file: The file its rows were read from.
        block: Where in that file its task began to read, in bytes.
        blob: The rows as Arrow IPC: bytes, or a buffer.
    """

    kind: str
    part: int
    seq: int
    changed: int
    file: str
    block: int
    blob: Any

    @classmethod
    def of(cls, row: Any) -> Packed:
        """Make one from a row of Spark (or any object) with attributes of the same names."""
        return cls(row.kind, row.part, row.seq, row.changed, row.file, row.block, row.blob)


# -- before the shuffle ---------------------------------------------------------------------------


def file_column(df: DataFrame, named: Column | None, *, ties_only: bool = False) -> Column | None:
    """Return a column that says which file each row of `df` was read from; None if nothing tells.

    Asks Spark's analyzer whether `_metadata` can be reached from here; runs no job.

    Args:
        df: The input.
        named: A column of the user's own that names the file (the column `file` of recordings). It
            alone decides then: rows of a file are taken in the order of Spark's partitions.
        ties_only: Whether the file only decides between rows of equal arrival. Its hash will do
            then, and the name, which would travel with every row, is left out.

    Returns:
        A struct of `name`, `id` (a hash of the path), `block` (bytes) and `changed` (microseconds).
    """
    if named is not None:
        name = F.regexp_extract(named.cast("string"), "[^/]*$", 0)
        return _file(F.lit("") if ties_only else name, named, F.lit(0), F.lit(0))
    if any(name.lower() == "_metadata" for name in df.columns):
        return None
    path, block = F.col("_metadata.file_path"), F.col("_metadata.file_block_start")
    if ties_only:
        told = _file(F.lit(""), path, block, F.lit(0))
    else:
        changed = F.unix_micros("_metadata.file_modification_time")
        told = _file(F.col("_metadata.file_name"), path, block, changed)
    try:
        with _unlogged():
            _ = df.select(told).schema
    except AnalysisException:  # not read from files, or too far away from the reading
        return None
    return told


def _file(name: Column, path: Column, start: Column, changed: Column) -> Column:
    """Return the struct that `by_origin` reads. A hash stands for the path: it travels with every
    row.
    """
    return F.struct(
        F.coalesce(name, F.lit("")).alias("name"),
        F.xxhash64(path).alias("id"),
        start.cast("long").alias("block"),
        changed.cast("long").alias("changed"),
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence pyspark's log inside the block: it logs every failed analysis with its stack, and
    `file_column` asks a question whose answer may be no.
    """
    log = logging.getLogger("DataFrameQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def by_origin(rows: pa.RecordBatch) -> Iterator[tuple[Origin, pa.RecordBatch]]:
    """Yield (origin, rows) for every run of rows of one file and block, in order, without a copy.

    The column that tells the file is taken away. Rows without it come out as one run of an
    unknown origin.
    """
    index = rows.schema.get_field_index(FILE)
    if index < 0:
        yield Origin(), rows
        return
    told = rows.column(index)
    rows = rows.remove_column(index)
    ids, blocks = (told.field(name).to_numpy() for name in ("id", "block"))
    edges = np.flatnonzero((ids[1:] != ids[:-1]) | (blocks[1:] != blocks[:-1])) + 1
    for first, last in zip([0, *edges], [*edges, len(ids)], strict=True):
        one = told[int(first)].as_py()
        file = f"{one['name']} {one['id']:x}"
        yield Origin(one["changed"], file, one["block"]), rows.slice(first, last - first)


# -- in the step ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrivalOrder:
    """Which of the three rules puts the rows of a shard in order. Immutable; travels to the
    workers.

    Args:
        columns: Those that pin arrival (rule 1); empty if there are none.
        recorded: Whether the run is over something recorded (rule 2, else rule 3).
        keys: The key columns; progress in a file is per key. A nested key column is left out.
        skew_ns: `max_future_skew` of the event-time stage, in ns; negative: unset. A row whose
            clock
            is wrong must not hold up its file.
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

    def sorted(self, packed: Iterable[Packed]) -> list[Packed]:
        """Return the blobs in the order of their files and positions.

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
        joined. Otherwise all of them are joined, sorted and cut into pieces of `ROWS_PER_PIECE`.
        """
        if self._are_in_order(parts, files):
            yield from coalesce(parts, rows=JOIN_ROWS, nbytes=BYTES_PER_PIECE)
            return
        joined = concat(parts)
        if joined is None:
            return
        if self.columns:
            joined = self.rows(joined)
        elif self.recorded and TIME in joined.schema.names:
            joined = self._side_by_side(joined, parts, files)
        for first in range(0, joined.num_rows, ROWS_PER_PIECE):
            yield joined.slice(first, ROWS_PER_PIECE)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows sorted by the arrival columns; rows that agree in all keep their order."""
        if not self.columns or rows.num_rows < 2:
            return rows
        first = rows.column(rows.schema.get_field_index(self.columns[0]))
        if len(self.columns) == 1 and pa.types.is_int64(first.type) and first.null_count == 0:
            order = order_rows(np.zeros(len(first), np.int32), first.to_numpy(), 1)
            return rows.take(pa.array(order))
        keys = [(f"{place}", "ascending") for place in range(len(self.columns))]
        table = pa.RecordBatch.from_arrays(
            [rows.column(rows.schema.get_field_index(name)) for name in self.columns],
            names=[name for name, _ in keys],
        )
        return rows.take(pc.sort_indices(table, sort_keys=keys))

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
    ) -> pa.RecordBatch:
        """Rule 2: order rows by how far event time has come in their file, for their key."""
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
        order = order_rows(np.zeros(len(progress), np.int32), progress, 1)
        return joined.take(pa.array(order))


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
