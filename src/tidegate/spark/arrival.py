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
"""More partitions than an input will have: the parts of two inputs get different numbers."""

ROWS_PER_PIECE = 1_000_000
"""Rows of a shard run through the stages at a time: bounds memory in a backfill. Below some ten
thousand the calls cost more than the rows."""

JOIN_ROWS = 32_768
"""Parts that are in order already are joined up to this many rows: joining is a copy."""

BYTES_PER_PIECE = 64 * 2**20
"""Where rows are large, this ends a piece instead."""


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
    """A blob of rows of one shard as it comes out of the shuffle. `part` is the partition it was
    packed in (from `PARTS` times the number of the input on), `seq` its number there."""

    kind: str
    part: int
    seq: int
    changed: int
    file: str
    block: int
    blob: Any

    @classmethod
    def of(cls, row: Any) -> Packed:
        return cls(row.kind, row.part, row.seq, row.changed, row.file, row.block, row.blob)


# -- before the shuffle ---------------------------------------------------------------------------


def file_column(df: DataFrame, named: Column | None, *, ties_only: bool = False) -> Column | None:
    """Return a column that says which file each row of `df` was read from; None if nothing tells.

    - `named`: a column of the user's own that names the file (the column `file` of recordings). It
      is the whole story then: rows of a file are taken in the order of Spark's partitions.
    - `ties_only`: whether the file only decides between rows of equal arrival. Its hash will do
      then, and the name, which would travel with every row, is left out.
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
    # A hash instead of the whole path: it travels with every row.
    return F.struct(
        F.coalesce(name, F.lit("")).alias("name"),
        F.xxhash64(path).alias("id"),
        start.cast("long").alias("block"),
        changed.cast("long").alias("changed"),
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """pyspark logs every analysis that fails, with its stack; a question is no failure."""
    log = logging.getLogger("DataFrameQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def by_origin(rows: pa.RecordBatch) -> Iterator[tuple[Origin, pa.RecordBatch]]:
    """Split rows where their file changes; the column that tells is taken away."""
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
    """Which of the three rules puts the rows of a shard in order.

    - `columns`: those that pin arrival; empty if there are none.
    - `recorded`: whether the run is over something recorded.
    - `keys`: the key columns; progress in a file is per key.
    - `skew_ns`, `skew_confirm`: `max_future_skew` of the event-time stage (negative: unset) and how
      many rows confirm a jump. A row whose clock is wrong must not hold up its file.
    """

    columns: tuple[str, ...] = ()
    recorded: bool = False
    keys: tuple[str, ...] = ()
    skew_ns: int = -1
    skew_confirm: int = 10

    def describe(self, files: bool) -> str:
        """Return the rule as a sentence, for `explain`, `dry-run` and logs. `files`: whether the
        inputs tell which file a row comes from.

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
        """Return the blobs in the order of their files and positions."""
        if self.recorded or self.columns:
            return sorted(packed, key=lambda one: (one.file, one.block, one.part, one.seq))
        return sorted(packed, key=lambda one: (one.changed, one.file, one.block, one.part, one.seq))

    def pieces(
        self, parts: Sequence[pa.RecordBatch], files: Sequence[tuple[int, str]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts in order of arrival, in pieces.

        `parts` are in the order of `sorted`; `files` says for each which input and file it is of.
        Where the parts are in order already they are handed on as they are, without a copy; only
        small ones are joined.
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
        """Whether the parts are alike and in order, as far as that is quickly told."""
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

    `newest` and `suspects` have an entry per group. A row more than `skew_ns` ahead of its group
    (if that is not negative) does not count, unless it is the `confirm`-th such row in a row.
    """
    for row in range(len(group)):
        one = group[row]
        time = time_ns[row]
        far = skew_ns >= 0 and time >= MIN_NS + skew_ns and time - skew_ns > newest[one]
        ahead = far and newest[one] != UNSET
        suspects[one] = suspects[one] + 1 if ahead else 0
        if time > newest[one] and (not ahead or suspects[one] >= confirm):
            newest[one] = time
            suspects[one] = 0
        progress[row] = newest[one]


def compile_arrival() -> None:
    """Compile the kernels on the driver, so that no worker has to."""
    rows = pa.record_batch({TIME: pa.array([2, 1], pa.int64())})
    order = ArrivalOrder(recorded=True)
    list(order.pieces([rows, rows], [(0, "a"), (0, "b")]))
