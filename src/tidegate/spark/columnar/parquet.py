"""Parquet files for gate 1: columns and row groups by Arrow.

A position is the number of the row in its file. Columns are matched by name, as Spark does it:
without regard to case unless the session tells names apart by it. One that a file lacks is null.
One whose type cannot become that of the schema without a loss (text where there should be numbers)
makes the file an error row: what a cast would make of it is a guess.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.arrow import conform
from tidegate.core.time import MAX_NS
from tidegate.pipeline.security import check_files_read
from tidegate.recordings.listing import data_files
from tidegate.recordings.parquet_footer import check_ahead, open_checked
from tidegate.spark.columnar.format import (
    ColumnarFormat,
    FileIdentity,
    FilePart,
    Int64s,
    Low,
    identity_of,
    with_codes,
)

__all__ = ["ParquetColumns"]

ROWS_PER_BATCH = 131_072
"""Rows read at a time: blobs of some MB. Fewer, and the cost per blob counts; more, and a task of
small rows holds more than its share of memory."""

BYTES_PER_BATCH = 64 * 2**20
"""Bytes read at a time where rows are large."""

ROWS_PER_PART = 2_000_000
BYTES_PER_PART = 64 * 2**20
"""Row groups are joined up to this: a task's share of a large file. A row group is never split.
Several parts fit in a micro-batch (`BYTES_PER_TRIGGER`), so that all cores read."""


_TEXT_BYTES = 4
"""Bytes of a text in a Parquet file beside its letters, where it is not a code: its length."""


@dataclass(frozen=True)
class ParquetColumns(ColumnarFormat):
    """Parquet files below a path.

    Args:
        path: A file, a folder or a pattern.
        told: The columns of the rows, in the types Spark has for them.
        recursive: Whether folders inside the folder are looked into.
        roots: The folders that files must be in, links followed; empty: anywhere.
        by_case: Whether names that differ in case only are different columns, as
            `spark.sql.caseSensitive` says.
    """

    path: str
    told: pa.Schema
    recursive: bool = False
    roots: tuple[str, ...] = ()
    by_case: bool = False

    name = "parquet"

    @property
    def schema(self) -> pa.Schema:
        return self.told

    def narrowed(self, columns: Sequence[str]) -> ParquetColumns:
        return replace(self, told=self._some(columns))

    def files(self) -> list[str]:
        found = data_files(self.path, recursive=self.recursive)
        if self.roots:  # again at every look: a link may have been put there since
            check_files_read(found, self.roots)
        return found

    def look_ahead(self, paths: Sequence[str]) -> None:
        check_ahead(paths)

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        with open_checked(path) as file:
            meta = file.metadata
            self._check_types(file)
            wanted = _leaf_columns(meta, list(self._names(file, columns).values()))
            found: list[FilePart] = []
            for group in range(meta.num_row_groups):
                about = meta.row_group(group)
                size = sum(about.column(leaf).total_uncompressed_size for leaf in wanted)
                least = self._low(file, group, ordering, low) if ordering else 0
                part = FilePart(group, group + 1, about.num_rows, size, least)
                last = found[-1] if found else None
                if last is not None and not ordering and _fit_together(last, part):
                    found[-1] = FilePart(
                        last.start, group + 1, last.rows + part.rows, last.nbytes + size, 0
                    )
                else:
                    found.append(part)
            return found

    def _low(self, file: pq.ParquetFile, group: int, ordering: Sequence[str], low: Low) -> int:
        """Return `low` of a row group: of its statistics where they will do, else of its column."""
        names = self._names(file, ordering)
        if len(ordering) == 1 and names:
            known = _ends(file, group, names[ordering[0]], self.told.field(ordering[0]))
            if known is not None:
                least, all_readable = low(known)
                if all_readable:
                    return least
        some = self._some(ordering)
        batches = _batches(file, [group], names)
        return min((low(conform(batch, some))[0] for batch in batches), default=MAX_NS)

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        groups = list(range(start, stop))
        with pa.memory_map(path) as opened:  # once: under its name there may soon be another file
            # `pre_buffer` hands every row group to a thread and waits for it: for files in memory
            # that gains nothing, and on a busy machine a small file took 2.6 ms instead of 0.1.
            file = pq.ParquetFile(opened, pre_buffer=False)
            meta = file.metadata
            coded = self._coded(file, groups, columns)
            if coded:
                file = pq.ParquetFile(
                    opened, metadata=meta, read_dictionary=coded, pre_buffer=False
                )
            position = sum(meta.row_group(group).num_rows for group in range(start))
            for batch in _batches(file, groups, self._names(file, columns)):
                rows = conform(batch, with_codes(self._some(columns), batch.schema))
                yield rows, np.arange(position, position + rows.num_rows, dtype=np.int64)
                position += rows.num_rows

    def check_whole(self, path: str, positions: Int64s, changed_us: int) -> None:
        """Read the footer of a file that was modified in a child process first: damage there may
        make Arrow end the process."""
        if identity_of(path).changed_ns // 1000 != changed_us:
            open_checked(path).close()

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        reader = _opened_parquet(path)
        for batch, which in reader.rows(positions, self._names(reader.file, columns)):
            yield conform(batch, self._some(columns)), which

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        files = self.files()
        if not files:
            return 0.0
        try:
            with open_checked(files[0]) as file:
                meta = file.metadata
                leaves = _leaf_columns(meta, list(self._names(file, columns).values()))
                groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
                size = sum(
                    g.column(leaf).total_uncompressed_size for g in groups for leaf in leaves
                )
                heads = _HEAD_BYTES * len(groups) * len(leaves)
                return float(max(0, size - heads) / max(1, meta.num_rows))
        except (OSError, ValueError, pa.ArrowException):
            return 0.0

    def _coded(
        self, file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]
    ) -> list[str]:
        """Return the columns of text, as the file names them, that are read as dictionary codes:
        those that take less than the length of a text alone would, so they are codes in the file.
        """
        meta = file.metadata
        rows = sum(meta.row_group(group).num_rows for group in groups)
        found = []
        for name, own in self._names(file, columns).items():
            leaves = _leaf_columns(meta, [own]) if _holds_text(self.told.field(name).type) else []
            size = sum(
                meta.row_group(group).column(leaf).total_uncompressed_size
                for group in groups for leaf in leaves
            )  # fmt: skip
            if 0 < size < _TEXT_BYTES * rows:
                found.append(own)
        return found

    def _some(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.told.field(name) for name in columns])

    def _names(self, file: pq.ParquetFile, columns: Sequence[str]) -> dict[str, str]:
        """Return, for those of the columns that a file has, the name that it has there.

        Raises pa.ArrowInvalid if a file has two of them that cannot be told apart.
        """
        there: dict[str, list[str]] = {}
        for name in file.schema_arrow.names:
            there.setdefault(name if self.by_case else name.lower(), []).append(name)
        found = {}
        for name in columns:
            same = there.get(name if self.by_case else name.lower(), [])
            if len(same) > 1:
                raise pa.ArrowInvalid(f"columns {same[0]!r} and {same[1]!r} cannot be told apart")
            if same:
                found[name] = same[0]
        return found

    def _check_types(self, file: pq.ParquetFile) -> None:
        """Raise pa.ArrowInvalid if a column of a file has a type that the schema has no room
        for."""
        for name, own in self._names(file, self.told.names).items():
            found, told = file.schema_arrow.field(own).type, self.told.field(name).type
            if not _fits_into(found, told):
                raise pa.ArrowInvalid(f"column {own!r} is {found} there; {told} is expected")


def _fits_into(found: pa.DataType, told: pa.DataType) -> bool:
    """Whether values of one type can become those of another without a guess."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if found.equals(told) or pa.types.is_null(found):
        return True
    kinds = pa.types
    if kinds.is_integer(told):
        if kinds.is_integer(found):
            return bool(found.bit_width <= told.bit_width)
        return bool(kinds.is_temporal(found))  # Spark has times of day and ns as whole numbers
    if kinds.is_floating(told):
        return bool(kinds.is_integer(found) or kinds.is_floating(found))
    if kinds.is_decimal(told):
        return bool(kinds.is_integer(found) or kinds.is_decimal(found))
    if kinds.is_temporal(told):
        return bool(kinds.is_temporal(found))
    if _holds_text(told):
        return _holds_text(found)
    if _holds_bytes(told):
        return _holds_text(found) or _holds_bytes(found)
    return bool(kinds.is_nested(told) and kinds.is_nested(found))


def _holds_text(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _holds_bytes(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_fixed_size_binary(kind)
    )


def _fit_together(last: FilePart, part: FilePart) -> bool:
    """Whether two parts together still are one task's share."""
    return last.rows + part.rows <= ROWS_PER_PART and last.nbytes + part.nbytes <= BYTES_PER_PART


def _leaf_columns(meta: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """Return the numbers of the leaf columns that make up these columns of a file."""
    inside = tuple(f"{name}." for name in names)
    exact = set(names)
    return [
        leaf
        for leaf in range(meta.num_columns)
        if (path := meta.schema.column(leaf).path) in exact or path.startswith(inside)
    ]


def _ends(file: pq.ParquetFile, group: int, own: str, field: pa.Field) -> pa.RecordBatch | None:
    """Return the smallest and the largest value of a column of a row group, by its statistics;
    None where there are none to be trusted.

    Arrow makes Python's dates of them, which end with the year 9999 and know no nanoseconds.
    """
    leaves = _leaf_columns(file.metadata, [own])
    if len(leaves) != 1 or not _has_exact_statistics(field.type):
        return None
    known = file.metadata.row_group(group).column(leaves[0]).statistics
    if known is None or not known.has_min_max:
        return None
    try:
        ends = [known.min, known.max]
        if isinstance(ends[0], int) != pa.types.is_integer(field.type):
            return None
        column = pa.array(ends).cast(field.type, safe=False)
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        return None
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))


def _has_exact_statistics(kind: pa.DataType) -> bool:
    """Whether the smallest value in a file's statistics is the smallest there is: those of text may
    be cut off, and its order is not that of the times in it.
    """
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _batches(
    file: pq.ParquetFile,
    groups: list[int],
    names: Mapping[str, str],
    nbytes: int = BYTES_PER_BATCH,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of row groups, in order, cut by rows and bytes.

    Args:
        file: The open file.
        groups: The numbers of its row groups.
        names: The columns, and under which names the file has them.
        nbytes: Bytes of a batch, about.
    """
    there = list(names.values())
    meta = file.metadata
    about = [meta.row_group(group) for group in groups]
    rows = sum(each.num_rows for each in about)
    leaves = _leaf_columns(meta, there)
    size = sum(each.column(leaf).total_uncompressed_size for each in about for leaf in leaves)
    if not there:  # a file that has none of the columns still has rows
        for first in range(0, rows, ROWS_PER_BATCH):
            count = min(ROWS_PER_BATCH, rows - first)
            yield pa.RecordBatch.from_arrays([pa.nulls(count)], names=["nothing"])
        return
    most = int(nbytes / max(1.0, size / max(1, rows)))
    for batch in file.iter_batches(
        batch_size=max(1, min(ROWS_PER_BATCH, most)),
        row_groups=groups,
        columns=there,
        use_threads=False,
    ):
        # Arrow takes "a" for "a" and for everything that begins with "a.".
        yield batch.select(there).rename_columns(list(names))


_HEAD_BYTES = 100
"""Bytes of a column of a row group beside its values, about: they would make the rows of tiny files
look large."""

_FILES_KEPT = 16
"""Files a worker keeps open between calls of `fetch`."""

_OPEN: OrderedDict[str, tuple[FileIdentity, _RowReader]] = OrderedDict()
"""The files this worker has open, least recently used first, each with what it was when opened."""

_BYTES_KEPT = 64 * 2**20
"""Bytes of rows kept behind the cursor of a row group: rows leave nearly in the order of the file,
so the next rows are mostly here or ahead. Less, and groups are read again and again."""

_BYTES_KEPT_IN_ALL = 256 * 2**20
"""Bytes of rows kept behind all cursors of a worker. Without this limit ten files with rows of 1 MB
took 2 GB."""

_BYTES_FETCHED = 8 * 2**20
"""Bytes read at a time where rows are fetched: every cursor keeps one such batch at least, and a
worker may have two cursors in each of `_FILES_KEPT` files."""


def _opened_parquet(path: str) -> _RowReader:
    """Return an open file, kept for the next call. One that was replaced is opened anew: a worker
    outlives a run, and must not answer the next one from a file that is gone.
    """
    now = identity_of(path)
    known, reader = _OPEN.pop(path, (None, None))
    if reader is None or known != now:
        if reader is not None:
            reader.close()
        reader = _RowReader(path)
    _OPEN[path] = now, reader
    while len(_OPEN) > _FILES_KEPT:
        _OPEN.popitem(last=False)[1][1].close()
    cursors = [cursor for _, each in _OPEN.values() for cursor in each.cursors.values()]
    for cursor in cursors:
        cursor.limit = min(_BYTES_KEPT, _BYTES_KEPT_IN_ALL // len(cursors))
        cursor.trim()
    return reader


class _Cursor:
    """A row group being read from its beginning, and the last rows that were read."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.batches = batches
        self.kept: list[tuple[int, pa.RecordBatch]] = []
        self.next = 0
        self.limit = _BYTES_FETCHED

    def trim(self) -> None:
        """Forget the first of the rows that were read, down to the limit or the last batch."""
        size = sum(batch.nbytes for _, batch in self.kept)
        while len(self.kept) > 1 and size > self.limit:
            size -= self.kept.pop(0)[1].nbytes

    def start(self) -> int:
        """Return the first row that is still here."""
        return self.kept[0][0] if self.kept else self.next

    def from_row(self, row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (first row, rows) from the batch on that holds `row`."""
        for first, batch in list(self.kept):
            if first + batch.num_rows > row:
                yield first, batch
        for batch in self.batches:
            first, self.next = self.next, self.next + batch.num_rows
            self.kept.append((first, batch))
            self.trim()
            if self.next > row:
                yield first, batch


class _RowReader:
    """Rows of an open file by their numbers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        meta = self.file.metadata
        rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self.edges = np.cumsum([0, *rows])
        self.cursors: OrderedDict[tuple[int, tuple[tuple[str, str], ...]], _Cursor] = OrderedDict()

    def close(self) -> None:
        self.cursors.clear()
        self.file.close()

    def rows(
        self, positions: Int64s, names: Mapping[str, str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Yield rows and which of `positions` they are. Raises IndexError for one that is not in
        the file. `names` as for `_batches`.
        """
        order = np.argsort(positions, kind="stable")
        wanted = positions[order]
        if len(wanted) and (wanted[0] < 0 or wanted[-1] >= self.edges[-1]):
            raise IndexError(f"{self.path} has {self.edges[-1]:,} rows; row {wanted[-1]:,} is gone")
        groups = np.searchsorted(self.edges, wanted, "right") - 1
        cuts = np.flatnonzero(np.diff(groups)) + 1
        for low, high in zip([0, *cuts], [*cuts, len(wanted)], strict=True):
            if low < high:
                group = int(groups[low])
                inside = wanted[low:high] - self.edges[group]
                yield from self._from_group(group, inside, order[low:high], names)

    def _from_group(
        self, group: int, wanted: Int64s, which: Int64s, names: Mapping[str, str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        asked = group, tuple(names.items())
        cursor = self.cursors.pop(asked, None)
        if cursor is None or cursor.start() > wanted[0]:
            cursor = _Cursor(_batches(self.file, [group], names, _BYTES_FETCHED))
        self.cursors[asked] = cursor
        while len(self.cursors) > 2:
            self.cursors.popitem(last=False)
        try:
            for first, batch in cursor.from_row(int(wanted[0])):
                low, high = np.searchsorted(wanted, [first, first + batch.num_rows])
                if high > low:
                    yield batch.take(pa.array(wanted[low:high] - first)), which[low:high]
                if high == len(wanted):
                    return
        except Exception:  # a generator that raised is over: kept, it would give no rows next time
            self.cursors.pop(asked, None)
            raise
