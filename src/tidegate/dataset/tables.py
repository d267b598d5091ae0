"""Datasets as plain tables: Parquet files, or a Lance table.

Rows are written as they are, every topic a struct with its source time and offset. Images are
written as the bytes of the message, or with `images="reference"` not at all: the struct of a
message read from MCAP has `file`, `offset` and `position`, which say where its bytes are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.arrow import type_of_path
from tidegate.core.checks import int_in, names, one_of
from tidegate.errors import ConfigError

__all__ = ["LanceWriter", "ParquetWriter", "only_columns", "without_bytes"]

FILE_MB = 256
"""Size of a file after which a new one is begun, in MB of Arrow memory: large enough for quick
scans, small enough that readers share the work."""
GROUP_MB = 32
"""Size after which rows are written as a row group, in MB of Arrow memory. It bounds the memory of
the writer; smaller groups make more of them, which readers pay for."""


ALWAYS = ("time_ns", "offset_ns", "missing", "file", "offset", "position")
"""Fields of a topic that `only_columns` keeps: when and where its value is from."""


def only_columns(rows: pa.RecordBatch, paths: Sequence[str]) -> pa.RecordBatch:
    """The rows with chosen fields of their topics.

    Args:
        rows: Aligned rows.
        paths: Columns to keep: `joint.q` is the field `q` of the struct `joint`; `joint` all of it.
            Columns that are no structs, such as the key and the episode, are always kept, and so
            are times, offsets and references of the chosen topics.

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
            fields = [f for f in column.type if f.name in inside or f.name in ALWAYS]
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
            left out.

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
        if not {"file", "offset", "position"} <= inside:
            arrays.append(column)
            continue
        found = True
        kept = [f for f in kind if not _is_binary(f.type)]
        arrays.append(_fields_of(column, kept))
    if not found:
        expected = "needs rows from MCAP, whose structs have file, offset and position"
        raise ConfigError("images", "reference", expected)
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


def _is_binary(kind: pa.DataType) -> bool:
    """Whether a type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _chosen(rows: pa.RecordBatch, columns: tuple[str, ...], images: str) -> pa.RecordBatch:
    """The rows as they are to be written."""
    some = only_columns(rows, columns) if columns else rows
    return without_bytes(some) if images == "reference" else some


class ParquetWriter:
    """Writes rows as Parquet files `part-00000.parquet`, ...

    Args:
        path: The folder. It must not exist, or be empty.
        images: `bytes` (default) or `reference`, see `without_bytes`.
        columns: The columns to write, see `only_columns`. Default: all.
        compression: Of the columns; `zstd` by default. JPEG and PNG do not get smaller, but all
            else does.
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

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows.

        Args:
            rows: Of the same columns as those before.
        """
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            if not batch.num_rows:
                continue
            some = _chosen(batch, self.columns, self.images)
            self._group.append(some)
            self._group_bytes += some.nbytes
            self._rows += some.num_rows
            if self._group_bytes >= GROUP_MB * 10**6:
                self._write_group()

    def _write_group(self) -> None:
        """Write the rows that were collected as a row group."""
        if not self._group:
            return
        table = pa.Table.from_batches(self._group)
        if self._file is None:
            part = self.path / f"part-{self._files:05d}.parquet.part"
            self._file = pq.ParquetWriter(part, table.schema, compression=self.compression)
            self._part, self._file_bytes = part, 0
            self._files += 1
        self._file.write_table(table)
        self._file_bytes += self._group_bytes
        self._group, self._group_bytes = [], 0
        if self._file_bytes >= self._limit:
            self._end_file()

    def _end_file(self) -> None:
        """Finish the file; it gets its name when it is whole."""
        if self._file is not None:
            self._file.close()
            os.replace(self._part, self._part.with_suffix(""))
            self._file = None

    def close(self) -> dict[str, Any]:
        """Write what is left. Returns the number of `rows` and `files`."""
        self._write_group()
        self._end_file()
        return {"rows": self._rows, "files": self._files}


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
            some = _chosen(batch, self.columns, self.images)
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
