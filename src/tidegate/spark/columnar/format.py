"""What a file format does for gate 1. To add one: a class with these methods, and one line in the
`columnar` method of its `Source`.

An instance travels to the workers: it holds settings, never open files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.pipeline.security import check_files_read

__all__ = [
    "FILES_AHEAD",
    "ColumnarFormat",
    "ColumnarInput",
    "FileIdentity",
    "FilePart",
    "Limits",
    "Low",
    "NewParts",
    "identity_of",
]

FILES_AHEAD = 100
"""Files that a format prepares for together."""

Int64s = NDArray[np.int64]

Low = Callable[[pa.RecordBatch], "tuple[int, bool]"]
"""The smallest value of what orders a run, in rows that have the columns it is made of, and whether
all of the rows have one: a time may be unreadable."""


class FileIdentity(NamedTuple):
    """What tells a file from another one that was put in its place under the same name."""

    inode: int
    nbytes: int
    changed_ns: int


def identity_of(path: str) -> FileIdentity:
    """Return what a file is now. Raises OSError if there is none."""
    found = os.stat(path)
    return FileIdentity(found.st_ino, found.st_size, found.st_mtime_ns)


def with_codes(schema: pa.Schema, found: pa.Schema) -> pa.Schema:
    """Return a schema in which columns of text that were read as codes stay codes."""
    for place, field in enumerate(schema):
        index = found.get_field_index(field.name)
        kind = field.type if index < 0 else found.field(index).type
        if pa.types.is_dictionary(kind) and kind.value_type.equals(field.type):
            schema = schema.set(place, field.with_type(kind))
    return schema


class FilePart(NamedTuple):
    """A part of a file as its format cuts it; see `tidegate.spark.columnar.pieces.LoggedPiece`."""

    start: int
    stop: int
    rows: int
    nbytes: int
    low: int


class NewParts(NamedTuple):
    """What a stream has found in a file since it last looked.

    - `parts`: the new parts, in order.
    - `more`: whether the file may still grow: it is looked at again.
    """

    parts: list[FilePart]
    more: bool = False


class Limits(NamedTuple):
    """How much a micro-batch takes; None: see `tidegate.spark.columnar.source`."""

    files: int | None = None
    nbytes: int | None = None
    rows: int | None = None


class ColumnarFormat(ABC):
    """Files of one format below one path."""

    name: str
    """What the format is called in `explain`."""

    roots: tuple[str, ...] = ()
    """The folders that files must be in, links followed; empty: anywhere."""

    def check_inside(self, path: str) -> None:
        """Raise ConfigError if a file is not inside `roots`. Asked before every file that is
        opened: the log in a checkpoint names files, and somebody may have changed it.
        """
        if self.roots:
            check_files_read([path], self.roots)

    def check_whole(self, path: str, positions: Int64s, changed_us: int) -> None:  # noqa: B027
        """Raise IndexError if rows at these positions may have been cut off since `changed_us`,
        when the file was last modified as far as the run knows. By default nothing: most formats
        cannot read half a row.
        """

    always_read: tuple[str, ...] = ()
    """Columns that travel with every row that has an address, because a position alone does not
    tell rows apart for ever."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of its rows, in the types Spark has for them."""

    @abstractmethod
    def narrowed(self, columns: Sequence[str]) -> ColumnarFormat:
        """Return the same files with only these columns."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return the files there are now, absolute, sorted by name. Called on the driver."""

    def look_ahead(self, paths: Sequence[str]) -> None:  # noqa: B027
        """Prepare for `parts` of these files, at most `FILES_AHEAD`. Called on the driver; what is
        wrong with a file is said by `parts`. By default nothing.
        """

    @abstractmethod
    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        """Return the parts of a file, in order. Called on the driver; must not read payload.

        Args:
            path: The file.
            columns: Those that will be read, for their size.
            ordering: The columns that `low` needs; empty: it is not asked for.
            low: Returns the smallest value of rows with those columns.

        Raises:
            OSError, pa.ArrowInvalid: If the file cannot be read.
        """

    def new_parts(
        self, path: str, after: int, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> NewParts:
        """Return the parts of a file that a stream has not seen, as `parts` does. The default is
        for files that are whole when they appear: all parts, and no more.

        Args:
            path: The file.
            after: Where the last part known ends; 0: none is known.
            columns: See `parts`, as for `ordering` and `low`.
        """
        return NewParts(self.parts(path, columns, ordering, low))

    @abstractmethod
    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Yield rows of a part, in order, with these columns of `schema` (text may be dictionary
        codes), and for each row its position in the file: what `fetch` finds it by. Called on a
        worker.
        """

    @abstractmethod
    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Yield the rows at these positions, in any order and in batches that fit in memory, and
        for each row which of `positions` it is. Called on a worker.
        """

    @abstractmethod
    def bytes_per_row(self, columns: Sequence[str]) -> float:
        """Return about how many bytes these columns of a row take, from a look at one file."""


class ColumnarInput(NamedTuple):
    """An input of a pipeline that can come through gate 1.

    - `format`: reads it.
    - `limits`: how much of it a micro-batch takes.
    """

    format: ColumnarFormat
    limits: Limits = Limits()
