"""Datasets as plain tables: Parquet files, or a Lance table.

Rows are written as they are, every topic a struct with its source time and offset. Images are
written as the bytes of the message, or with `images="reference"` not at all: the struct of a
message read from MCAP has `file`, `offset` and `position`, which say where its bytes are.

Bytes may come as views (`pa.binary_view`) of the recording. Images are then copied once, into the
file (`image_file`); other bytes are copied for the first time by the encoder of Parquet. A file has
plain binary columns either way.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.core.arrow import column_of_path, type_of_path
from tidegate.core.checks import int_in, names, one_of
from tidegate.dataset.features import holds_bytes
from tidegate.dataset.image_file import ImageFile, can_hold
from tidegate.errors import ConfigError

__all__ = ["LanceWriter", "ParquetWriter", "only_columns", "without_bytes", "without_views"]

FILE_MB = 256
"""Size of a file after which a new one is begun, in MB of Arrow memory: large enough for quick
scans, small enough that readers share the work."""
GROUP_MB = 64
"""Size of a row group, in MB of values. Two of them are in memory at a time, one that is collected
and one that is written; smaller groups make more of them, which readers pay for."""
PAGE_BYTES = 1 << 20
"""Size of a page that is aimed at, in bytes: it stays in the cache of a core while it is encoded.
The encoder looks at the size only now and then (`write_batch_size`), by default every 1,024 values,
which are 100 MB of images."""


ALWAYS = ("time_ns", "offset_ns", "missing")
"""Fields of a topic that `only_columns` keeps: when its value is from."""
PLACES = ("file", "offset", "position")
"""Fields that say where the bytes of a message are; kept with `images="reference"`."""


def only_columns(
    rows: pa.RecordBatch, paths: Sequence[str], always: Sequence[str] = ALWAYS
) -> pa.RecordBatch:
    """The rows with chosen fields of their topics.

    Args:
        rows: Aligned rows.
        paths: Columns to keep: `joint.q` is the field `q` of the struct `joint`; `joint` all of it.
            Columns that are no structs, such as the key and the episode, are always kept.
        always: Fields of the chosen topics that are kept as well: times and offsets.

    Raises:
        ConfigError: There is no such column.

    Example:
        >>> rows = pa.record_batch({"time_ns": [1], "joint": [{"q": 2.0, "name": "a"}]})
        >>> only_columns(rows, ["joint.q"]).to_pylist()
        [{'time_ns': 1, 'joint': {'q': 2.0}}]
    """
    for path in paths:
        if type_of_path(rows.schema, path) is None:
            have = ", ".join(rows.schema.names)
            raise ConfigError("columns", path, f"must be a column of the rows: {have}")
    arrays, kept = [], []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        inside = [path.split(".", 1)[1] for path in paths if path.startswith(f"{name}.")]
        if not pa.types.is_struct(column.type) or name in paths:
            arrays.append(column)
        elif inside:
            fields = [f for f in column.type if f.name in inside or f.name in always]
            arrays.append(_fields_of(column, fields))
        else:
            continue
        kept.append(name)
    return pa.RecordBatch.from_arrays(arrays, names=kept)


def _fields_of(column: pa.StructArray, fields: list[pa.Field]) -> pa.StructArray:
    """A struct column with some of its fields."""
    return pa.StructArray.from_arrays(
        [pc.struct_field(column, f.name) for f in fields],
        fields=fields,
        mask=column.is_null() if column.null_count else None,
    )


def without_bytes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without the payloads of messages whose place in a recording is known.

    Args:
        rows: Aligned rows. Of every struct with `file`, `offset` and `position`, binary fields are
            left out. `file` may be a column of its own, where it is the key.

    Raises:
        ConfigError: There is no such struct, so nothing could be found again.

    Example:
        >>> camera = [{"file": "a.mcap", "offset": 9, "position": 0, "data": b"..."}]
        >>> without_bytes(pa.record_batch({"camera": camera})).to_pylist()
        [{'camera': {'file': 'a.mcap', 'offset': 9, 'position': 0}}]
    """
    arrays, found = [], False
    for column in rows.columns:
        kind = column.type
        inside = {f.name for f in kind} if pa.types.is_struct(kind) else set()
        if not set(PLACES) - set(rows.schema.names) <= inside or "offset" not in inside:
            arrays.append(column)
            continue
        found = True
        kept = [f for f in kind if not holds_bytes(f.type)]
        arrays.append(_fields_of(column, kept))
    if not found:
        expected = "needs rows from MCAP, whose structs have file, offset and position"
        raise ConfigError("images", "reference", expected)
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


def _chosen(rows: pa.RecordBatch, columns: tuple[str, ...], images: str) -> pa.RecordBatch:
    """The rows as they are to be written."""
    always = (*ALWAYS, *PLACES) if images == "reference" else ALWAYS
    some = only_columns(rows, columns, always) if columns else rows
    return without_bytes(some) if images == "reference" else some


class ParquetWriter:
    """Writes rows as Parquet files `part-00000.parquet`, ...

    Args:
        path: The folder. It must not exist, or be empty.
        images: `bytes` (default) or `reference`, see `without_bytes`.
        columns: The columns to write, see `only_columns`. Default: all.
        compression: Of the columns; `zstd` by default. Columns of JPEG and PNG images, by the
            look of their first value, are never compressed: they do not get smaller.
        file_mb: Size after which a new file is begun, in MB of Arrow memory, at least 1.

    Raises:
        ConfigError: A setting is wrong, or the folder is not empty.

    Example:
        >>> import tempfile
        >>> writer = ParquetWriter(tempfile.mkdtemp())
        >>> writer.write(pa.record_batch({"time_ns": [1, 2]}))
        >>> writer.close()
        {'rows': 2, 'files': 1}
    """

    def __init__(
        self,
        path: str | Path,
        *,
        images: str = "bytes",
        columns: Sequence[str] = (),
        compression: str = "zstd",
        file_mb: int = FILE_MB,
    ) -> None:
        one_of("images", images, ("bytes", "reference"))
        self.path, self.images, self.compression = Path(path), images, compression
        self.columns = names("columns", columns)
        self._limit = int_in("file_mb", file_mb, 1) * 10**6
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError("path", str(path), "must be a new or an empty folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self._file: Any = None
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = self._file_bytes = 0
        self._files = self._rows = 0
        self._direct = True  # whether the disk is quick without the page cache, as far as is known
        # One thread: it encodes a row group while the next one is read and aligned.
        self._thread = ThreadPoolExecutor(1, "tidegate-parquet")
        self._writing: Future[None] | None = None

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows.

        Args:
            rows: Of the same columns as those before.

        Raises:
            OSError: Rows that were added before cannot be written.
        """
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            if not batch.num_rows:
                continue
            some = _chosen(batch, self.columns, self.images)
            self._rows += some.num_rows
            edges = np.cumsum(_bytes_per_row(some))
            begin = 0
            while begin < some.num_rows:
                before = int(edges[begin - 1]) if begin else 0
                room = GROUP_MB * 10**6 - self._group_bytes
                end = int(np.searchsorted(edges, before + room)) + 1
                end = min(max(end, begin + 1), some.num_rows)
                self._group.append(some.slice(begin, end - begin))
                self._group_bytes += int(edges[end - 1]) - before
                begin = end
                if self._group_bytes >= GROUP_MB * 10**6:
                    self._write_group()

    def _write_group(self) -> None:
        """Hand the rows that were collected to the thread, when it is done with those before."""
        if not self._group:
            return
        table, size = pa.Table.from_batches(self._group), self._group_bytes
        self._group, self._group_bytes = [], 0
        self._wait()
        self._writing = self._thread.submit(self._encode, table, size)

    def _wait(self) -> None:
        """Wait for the thread; what went wrong there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _encode(self, table: pa.Table, size: int) -> None:
        """Write a row group; begin and end files as their size says. Runs in the thread."""
        if self._file is not None and not _can_go_into(table, self._file):
            self._end_file()
        if self._file is None:
            part = self.path / f"part-{self._files:05d}.parquet.part"
            self._file = _parquet_file(part, table, self.compression, size, self._direct)
            self._part, self._file_bytes = part, 0
            self._files += 1
        if isinstance(self._file, ImageFile):
            self._file.write_table(table)
        else:
            rows = _with_schema(table, self._file.schema)
            self._file.write_table(rows, row_group_size=rows.num_rows)
        self._file_bytes += size
        if self._file_bytes >= self._limit:
            self._end_file()

    def _end_file(self) -> None:
        """Finish the file; it gets its name when it is whole."""
        if self._file is not None:
            self._file.close()
            if isinstance(self._file, ImageFile):
                self._direct = self._file.direct
            os.replace(self._part, self._part.with_suffix(""))
            self._file = None

    def absorb(self, file: str | Path) -> None:
        """Take over a file that another writer wrote, by moving it behind those of this one.

        Args:
            file: A whole Parquet file, on the same disk.
        """
        self._write_group()
        self._wait()
        self._end_file()
        self._rows += pq.read_metadata(file).num_rows
        os.replace(file, self.path / f"part-{self._files:05d}.parquet")
        self._files += 1

    def close(self) -> dict[str, Any]:
        """Write what is left. Returns the number of `rows` and `files`."""
        self._write_group()
        self._wait()
        self._thread.shutdown()
        self._end_file()
        return {"rows": self._rows, "files": self._files}


def _parquet_file(
    path: Path, first: pa.Table, compression: str, size: int, direct: bool
) -> pq.ParquetWriter | ImageFile:
    """Begin a Parquet file.

    Args:
        path: Of the file.
        first: Its first rows, which tell what columns hold.
        compression: Of columns that are not images.
        size: Bytes of these rows.
        direct: Whether images are written past the page cache.
    """
    plain = pa.schema([pa.field(f.name, _without_views(f.type)) for f in first.schema])
    images = {path for path in _byte_paths(first.schema) if _is_image(first, path)}
    blank = pa.BufferOutputStream()
    pq.write_metadata(plain, blank)
    known = pq.ParquetFile(pa.BufferReader(blank.getvalue())).schema
    leaves = [known.column(n).path for n in range(len(known))]
    small = [leaf for leaf in leaves if leaf not in images]
    at_once = min(1024, max(1, PAGE_BYTES * first.num_rows // max(size, 1)))
    options = {
        "compression": {leaf: "none" if leaf in images else compression for leaf in leaves},
        "use_dictionary": small,
        "write_statistics": small,
        "write_batch_size": at_once,
        "store_schema": False,
    }
    # Readers take the types from here: plain binary, where a view was written.
    told = {"ARROW:schema": base64.b64encode(plain.serialize().to_pybytes()).decode()}
    schema = _file_schema(first)
    copied_once = sorted(path for path in images if can_hold(first.schema, path))
    if copied_once:
        types = [_without_views(f.type, f.name, copied_once) for f in schema]
        fields = [f.with_type(kind) for f, kind in zip(schema, types, strict=True)]
        return ImageFile(path, pa.schema(fields), copied_once, told, direct, **options)
    writer = pq.ParquetWriter(path, schema, **options)
    writer.add_key_value_metadata(told)
    return writer


def _file_schema(first: pa.Table) -> pa.Schema:
    """The schema by which rows are written: views as they are where Parquet's encoder can read
    them, which it cannot inside a struct that may be null."""
    fields = []
    for one, column in zip(first.schema, first.columns, strict=True):
        kind = one.type
        if pa.types.is_struct(kind) and kind != _without_views(kind):
            deeper = [f.type for f in kind if pa.types.is_struct(f.type)]
            if column.null_count or any(each != _without_views(each) for each in deeper):
                one = one.with_type(_without_views(kind))
            else:
                one = one.with_nullable(False)
        fields.append(one)
    return pa.schema(fields)


def _can_go_into(rows: pa.Table, file: pq.ParquetWriter | ImageFile) -> bool:
    """Whether rows can go into a file that was begun with others."""
    if isinstance(file, ImageFile) and not all(can_hold(rows.schema, p) for p in file.images):
        return False
    return _has_no_new_nulls(rows, file.schema)


def _has_no_new_nulls(rows: pa.Table, schema: pa.Schema) -> bool:
    """Whether rows have no null in the columns that a file says have none."""
    return not any(
        column.null_count and not one.nullable
        for one, column in zip(schema, rows.columns, strict=True)
    )


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the types of a file."""
    columns = [
        column if column.type == one.type else column.cast(one.type)
        for one, column in zip(schema, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _byte_paths(schema: pa.Schema) -> list[str]:
    """The paths of columns that hold bytes, also inside structs."""

    def inside(prefix: str, kind: pa.DataType) -> list[str]:
        if pa.types.is_struct(kind):
            return [path for f in kind for path in inside(f"{prefix}.{f.name}", f.type)]
        return [prefix] if holds_bytes(kind) else []

    return [path for f in schema for path in inside(f.name, f.type)]


def _is_image(rows: pa.Table, path: str) -> bool:
    """Whether the first value of a column of bytes is a JPEG or PNG."""
    for batch in rows.to_batches():
        column = column_of_path(batch, path)
        there = np.flatnonzero(np.asarray(column.is_valid()))
        if len(there):
            head = column[int(there[0])].as_py()[:8]
            return bool(head.startswith((b"\xff\xd8\xff", b"\x89PNG")))
    return False


def _without_views(
    kind: pa.DataType, path: str = "", only: Sequence[str] | None = None
) -> pa.DataType:
    """A type with plain binary columns in the place of views.

    Args:
        kind: The type.
        path: That of its column.
        only: The paths of the columns that change. Default: all.
    """
    if pa.types.is_binary_view(kind):
        return pa.binary() if only is None or path in only else kind
    if pa.types.is_struct(kind):
        fields = [f.with_type(_without_views(f.type, f"{path}.{f.name}", only)) for f in kind]
        return pa.struct(fields)
    return kind


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with plain binary columns, copied, in the place of views.

    >>> without_views(pa.record_batch({"a": pa.array([b"x"], pa.binary_view())})).schema.types
    [DataType(binary)]
    """
    return rows.cast(pa.schema([pa.field(f.name, _without_views(f.type)) for f in rows.schema]))


def _bytes_per_row(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each row: those of views by their lengths, all else evenly."""
    out = np.zeros(rows.num_rows, np.int64)
    rest = 0
    todo = list(rows.columns)
    while todo:
        column = todo.pop()
        if pa.types.is_struct(column.type):
            todo += column.flatten()
        elif pa.types.is_binary_view(column.type):
            words = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)
            size = words[column.offset : column.offset + len(column), 0]
            out += np.where(np.asarray(column.is_valid()), size, 0) + 16
        else:
            rest += column.nbytes
    out += rest // max(1, rows.num_rows) + 1
    return out


class LanceWriter:
    """Writes rows as a Lance table `frames.lance` in a folder, by lancedb.

    Args:
        path: The folder of the database. A table `frames` must not be in it.
        images: `bytes` (default) or `reference`, see `without_bytes`.
        columns: The columns to write, see `only_columns`. Default: all.

    Raises:
        ConfigError: lancedb is not installed, or there is such a table.
    """

    def __init__(
        self, path: str | Path, *, images: str = "bytes", columns: Sequence[str] = ()
    ) -> None:
        one_of("images", images, ("bytes", "reference"))
        self.columns = names("columns", columns)
        try:
            import lancedb
        except ImportError as error:
            expected = "needs lancedb: pip install 'tidegate[lance]'"
            raise ConfigError("format", "lance", expected) from error
        self.path, self.images = Path(path), images
        if (self.path / "frames.lance").exists():
            raise ConfigError("path", str(path), "has a table `frames` already")
        self._database = lancedb.connect(str(path))
        self._table: Any = None
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = self._rows = 0

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows.

        Args:
            rows: Of the same columns as those before.
        """
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            if not batch.num_rows:
                continue
            some = without_views(_chosen(batch, self.columns, self.images))
            self._group.append(some)
            self._group_bytes += some.nbytes
            self._rows += some.num_rows
            # A version of the table per call: few large ones, not one per batch.
            if self._group_bytes >= FILE_MB * 10**6:
                self._flush()

    def _flush(self) -> None:
        """Append the rows that were collected."""
        if not self._group:
            return
        table = pa.Table.from_batches(self._group)
        if self._table is None:
            self._table = self._database.create_table("frames", data=table)
        else:
            self._table.add(table)
        self._group, self._group_bytes = [], 0

    def close(self) -> dict[str, Any]:
        """Write what is left. Returns the number of `rows`."""
        self._flush()
        return {"rows": self._rows}
