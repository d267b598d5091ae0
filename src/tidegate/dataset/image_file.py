"""A Parquet file whose images are copied once, from the recording to the disk.

Arrow's encoder copies a value two or three times before it reaches the file, which for images is
all the work there is. Here Arrow writes every column but the images, as a small file in memory, in
which these are null. The images follow as pages of their own: plain, not compressed, from the views
they come as straight into the blocks of `direct_file`. The footer is Arrow's, with the places of
the columns put right (`footer`).

    file    "PAR1"   row group   row group  ...  footer
    group   Arrow's columns  |  pages of the first image column  |  of the second ...
    page    header  levels (which rows are null)  length and bytes of each image
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.dataset.direct_file import DirectFile
from tidegate.dataset.footer import Kind, Struct, read_struct, varint, write_struct, zigzag

__all__ = ["ImageFile", "can_hold"]

MAGIC = b"PAR1"
PAGE_BYTES = 1 << 20
"""Size of a page that is aimed at, in bytes: what a reader must read for one image."""
INLINE = 12
"""Bytes up to which an Arrow view holds its value itself."""

# Fields of the structs of a footer, by the numbers of the format.
VERSION, SCHEMA, ROWS, GROUPS, KEY_VALUES = 1, 2, 3, 4, 5  # FileMetaData
COLUMNS, GROUP_BYTES, GROUP_ROWS, GROUP_PLACE, GROUP_STORED, ORDINAL = 1, 2, 3, 5, 6, 7  # RowGroup
COLUMN = 3  # ColumnChunk
PATH, BYTES, STORED, DATA_PLACE, DICTIONARY_PLACE = 3, 6, 7, 9, 11  # ColumnMetaData
PAGE_COUNTS, SIZES = 13, 16  # ColumnMetaData


class _Images(NamedTuple):
    """The images of a column in a row group."""

    level: NDArray[np.uint8]
    """Per row: how far its value is there; `most` if it is."""
    most: int
    values: list[memoryview]
    """The images that are there, in order."""


def can_hold(schema: pa.Schema, path: str) -> bool:
    """Whether a column can be written here: views, in a column or in a field of a struct.

    Args:
        schema: Of the rows.
        path: Of the column, with a dot before the field.
    """
    name, _, inner = path.partition(".")
    field = schema.field(name)
    if inner:
        if "." in inner or not pa.types.is_struct(field.type):
            return False
        field = field.type.field(inner)
    return bool(field.nullable and pa.types.is_binary_view(field.type))


class ImageFile:
    """A Parquet file that is being written.

    Args:
        path: The file.
        schema: The columns of the file: its images are plain binary.
        images: The paths of the columns of images; `can_hold` is true for them.
        metadata: Key and value pairs for the footer.
        direct: See `DirectFile`.
        options: Of `pyarrow.parquet.ParquetWriter`, for the other columns.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        images: Sequence[str],
        metadata: dict[str, str],
        direct: bool,
        **options: Any,
    ) -> None:
        self.schema = schema
        """The columns of the file."""
        self.images = list(images)
        """The paths of the columns of images."""
        self._metadata, self._options = metadata, options
        self._file = DirectFile(path, direct)
        self._file.append(MAGIC)
        self._footer: Struct = {}

    @property
    def direct(self) -> bool:
        """Whether the disk is quick enough without the page cache."""
        return self._file.direct

    def write_table(self, rows: pa.Table) -> None:
        """Write a row group.

        Args:
            rows: At least one, of the columns of the file, with images as views.
        """
        small, footer = self._without_images(rows)
        group: Struct = footer[GROUPS][1][1][0]
        shift = self._file.size - len(MAGIC)
        self._file.append(small)
        by_path = {}
        for chunk in group[COLUMNS][1][1]:
            column: Struct = chunk[COLUMN][1]
            by_path[b".".join(column[PATH][1][1])] = column
            for place in (DATA_PLACE, DICTIONARY_PLACE):
                if place in column:
                    column[place] = Kind.I64, column[place][1] + shift
        group[GROUP_PLACE] = Kind.I64, shift + len(MAGIC)
        for path in self.images:
            self._write_images(_images_of(rows, self.schema, path), by_path[path.encode()])
        for total, of in ((GROUP_BYTES, BYTES), (GROUP_STORED, STORED)):
            group[total] = Kind.I64, sum(column[of][1] for column in by_path.values())
        self._add_group(footer, group)

    def close(self) -> None:
        """Write the footer, and close the file.

        Raises:
            OSError: The file cannot be written.
        """
        footer = write_struct(self._footer)
        self._file.append(footer + struct.pack("<I", len(footer)) + MAGIC)
        self._file.close()

    def _without_images(self, rows: pa.Table) -> tuple[memoryview, Struct]:
        """What Arrow writes of a row group whose images are null, and its footer."""
        columns = [
            _without_images(column, field, self.images)
            for column, field in zip(rows.columns, self.schema, strict=True)
        ]
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self.schema, **self._options) as writer:
            writer.add_key_value_metadata(self._metadata)
            table = pa.Table.from_arrays(columns, schema=self.schema)
            writer.write_table(table, row_group_size=rows.num_rows)
        made = memoryview(sink.getvalue()).cast("B")
        (size,) = struct.unpack("<I", made[-8:-4])
        footer = len(made) - 8 - size
        return made[len(MAGIC) : footer], read_struct(bytes(made[footer:-8]))

    def _add_group(self, footer: Struct, group: Struct) -> None:
        """Add a row group to the footer of the file."""
        if not self._footer:
            self._footer = footer
            return
        groups = self._footer[GROUPS][1][1]
        if ORDINAL in group:
            group[ORDINAL] = Kind.I16, len(groups)
        groups.append(group)
        self._footer[ROWS] = Kind.I64, self._footer[ROWS][1] + group[GROUP_ROWS][1]

    def _write_images(self, images: _Images, column: Struct) -> None:
        """Write the pages of a column, and say in the footer where they are."""
        begin = self._file.size
        pages = 0
        for rows, values, size in _pages(images):
            levels = _run_lengths(images.level[rows]) if images.most else b""
            self._file.append(_page_header(len(levels) + size, rows.stop - rows.start) + levels)
            self._file.append_sized(values)
            pages += 1
        column[DATA_PLACE] = Kind.I64, begin
        column[BYTES] = column[STORED] = Kind.I64, self._file.size - begin
        # Data pages, plain: as many as were written. Sizes by value are optional.
        one = {1: (Kind.I32, 0), 2: (Kind.I32, 0), 3: (Kind.I32, pages)}
        column[PAGE_COUNTS] = Kind.LIST, (Kind.STRUCT, [one])
        column.pop(SIZES, None)


def _without_images(column: pa.ChunkedArray, field: pa.Field, images: Sequence[str]) -> Any:
    """A column with nulls in the place of images, in the type of a field of the file."""
    if field.name in images:
        return pa.nulls(len(column), field.type)
    inside = [path.split(".", 1)[1] for path in images if path.startswith(f"{field.name}.")]
    if not inside:
        return column if column.type == field.type else column.cast(field.type)
    chunks = []
    for chunk in column.chunks:
        children = [
            pa.nulls(len(chunk), f.type)
            if f.name in inside
            else pc.struct_field(chunk, f.name).cast(f.type)
            for f in field.type
        ]
        mask = chunk.is_null() if chunk.null_count else None
        chunks.append(pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask))
    return pa.chunked_array(chunks, field.type)


def _images_of(rows: pa.Table, schema: pa.Schema, path: str) -> _Images:
    """The images of a column, and which rows have one."""
    name, _, inner = path.partition(".")
    outer = int(schema.field(name).nullable)
    levels, values = [], []
    for chunk in rows.column(name).chunks:
        level = np.asarray(chunk.is_valid()).astype(np.uint8) * np.uint8(outer)
        column = chunk
        if inner:
            column = pc.struct_field(chunk, inner)
            level += np.asarray(column.is_valid()).astype(np.uint8)
        levels.append(level)
        values += _values_of_views(column)
    return _Images(np.concatenate(levels), outer + bool(inner), values)


def _values_of_views(column: pa.Array) -> list[memoryview]:
    """The values of views that are not null, without copying them."""
    _, views, *buffers = column.buffers()
    data = [memoryview(buffer).cast("B") for buffer in (views, *buffers)]
    words = np.frombuffer(views, np.int32).reshape(-1, 4)
    row = column.offset + np.flatnonzero(np.asarray(column.is_valid()))
    size = words[row, 0]
    within = size <= INLINE
    source = np.where(within, 0, words[row, 2] + 1)
    begin = np.where(within, row * 16 + 4, words[row, 3])
    end = begin + size
    found = zip(source.tolist(), begin.tolist(), end.tolist(), strict=True)
    return [data[buffer][start:stop] for buffer, start, stop in found]


def _pages(images: _Images) -> Iterator[tuple[slice, list[memoryview], int]]:
    """Yield the rows of each page, the images that they have, and the bytes of these with their
    lengths."""
    there = images.level == images.most
    size = np.zeros(len(there), np.int64)
    size[there] = [len(value) + 4 for value in images.values]
    ends, values = np.cumsum(size), np.cumsum(there)
    first = done = 0
    while first < len(there):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + PAGE_BYTES)) + 1
        stop = min(max(stop, first + 1), len(there))
        upto = int(values[stop - 1])
        yield slice(first, stop), images.values[done:upto], int(ends[stop - 1]) - before
        first, done = stop, upto


def _run_lengths(level: NDArray[np.uint8]) -> bytes:
    """Levels of rows as runs of equal ones, with their size in front.

    >>> _run_lengths(np.array([1, 1, 1, 0], np.uint8)).hex(" ")
    '04 00 00 00 06 01 02 00'
    """
    if (level == level[0]).all():  # nearly always
        made = varint(len(level) << 1) + level[:1].tobytes()
        return struct.pack("<I", len(made)) + made
    edges = np.flatnonzero(np.diff(level)) + 1
    begin = np.concatenate([[0], edges])
    count = np.diff(np.concatenate([begin, [len(level)]]))
    runs = zip(count.tolist(), level[begin].tolist(), strict=True)
    made = b"".join(varint(many << 1) + bytes([value]) for many, value in runs)
    return struct.pack("<I", len(made)) + made


def _page_header(size: int, rows: int) -> bytes:
    """The header of a plain data page that is not compressed. Written without a tree: with it,
    headers would take a tenth of the time of a file.

    >>> plain, runs, page = (Kind.I32, 0), (Kind.I32, 3), (Kind.I32, 900)
    >>> data = {1: (Kind.I32, 7), 2: plain, 3: runs, 4: runs}
    >>> header = {1: plain, 2: page, 3: page, 5: (Kind.STRUCT, data)}
    >>> _page_header(900, 7) == write_struct(header)
    True
    """
    length = zigzag(size)
    data = b"\x15" + zigzag(rows) + b"\x15\x00\x15\x06\x15\x06\x00"
    return b"\x15\x00\x15" + length + b"\x15" + length + b"\x2c" + data + b"\x00"
