"""What the sources `mcap` and `rosbag` share: options, and a folder of recordings as a stream.

As a stream, the offset says for every recording how far it has been read: `number` is its place in
the order in which recordings were first seen, `at` the place before which everything has been
delivered, `end` whether it is finished with. How far one can be read now is the kind's own affair.

Clock policy: the wall clock decides only whether a recording that is still open is waited for.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.mcap import Selection
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.recordings.definitions import SUFFIXES
from tidegate.recordings.listing import PathColumns, files_of
from tidegate.spark import options as o
from tidegate.spark.columnar.format import Limits
from tidegate.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    asked,
)

__all__ = [
    "Extent",
    "Following",
    "Offset",
    "RecordingSettings",
    "RecordingStreamReader",
    "checked_names",
    "with_path_columns",
]

PARTITION_BYTES = 64 << 20
"""Bytes of a file, as stored, that one task reads: some seconds of work. Much less makes many tasks
that each open the file again; much more leaves cores idle over a single large file."""

Offset = dict[str, dict[str, Any]]
"""How far each recording has been read, by its path: `number`, `at` and `end`. Kept by Spark as
JSON."""


@dataclass(frozen=True)
class RecordingSettings:
    """The options of a source of recordings, checked.

    Args:
        path: A file, a folder or a pattern.
        selection: Which messages, by which clock, and which fields of them are decoded.
        partition_bytes: How much of a file, as stored, one task reads.
        path_pattern: A pattern whose named groups become columns; see `PathColumns`.
    """

    path: str
    selection: Selection
    partition_bytes: int
    path_pattern: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> RecordingSettings:
        """Read the options; names are compared without regard to case.

        Args:
            options: `path` (required), `topics` (with commas), `startNs` and `endNs` (ns, by
                `clock`), `clock` (`log`, the default, `publish`,
                `header` or `header_or_log`), `crc` (whether
                checksums are verified; default false), `decode`, `partitionBytes`,
                `columnsFromPath`.

        Raises:
            ConfigError: For a value that cannot be used, or without `path`.
        """
        clock: Any = o.text(options, "clock") or "log"
        selection = Selection(
            o.name_list(options, "topics"),
            o.number(options, "startNs"),
            o.number(options, "endNs"),
            clock,
            o.flag(options, "crc"),
            parse_fields(o.text(options, "decode")),
        )
        size = o.number(options, "partitionBytes", 1) or PARTITION_BYTES
        path = o.text(options, "path")
        if not path:
            raise ConfigError("path", path, "is required")
        pattern = o.text(options, "columnsFromPath")
        return cls(path, selection, size, pattern)

    @property
    def schema(self) -> pa.Schema:
        """The columns of a message, then those from the path."""
        fields = self.selection.schema
        for name in PathColumns(self.path_pattern).names:
            if name in fields.names:
                raise ConfigError("columnsFromPath", name, "is the name of a column already")
            fields = fields.append(pa.field(name, pa.string()))
        return fields

    def files(self) -> list[str]:
        """Return the MCAP files that `path` names now, sorted."""
        return files_of(self.path, SUFFIXES)

    def typed(
        self,
        recordings: Callable[[RecordingSettings], Iterable[Channels]],
        told: StructType | None = None,
    ) -> RecordingSettings:
        """Return the settings with a type for every field that is decoded.

        Args:
            recordings: Yields the channels of the recordings, which say what types their fields
                have.
                Not used up where all types are known.
            told: The columns Spark has fixed; their types win, and fields that are not among them
                are
                not decoded. None: the recordings decide.
        """
        chosen, fields = self.selection, self.selection.decode
        if told is not None:
            types = to_arrow_schema(told)
            fields = tuple(
                replace(each, type=_without_element_names(types.field(each.name).type))
                for each in fields
                if each.name in types.names
            )
        fields = resolve_fields(fields, recordings(self), chosen.topics)
        return replace(self, selection=replace(chosen, decode=fields))


def _without_element_names(kind: pa.DataType) -> pa.DataType:
    """Lists as pyarrow makes them: Spark gives their elements another name."""
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind


def checked_names(settings: RecordingSettings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns Spark asks for. Raises ConfigError for one the source does not have."""
    for name in names:
        if name not in settings.schema.names:
            known = ", ".join(settings.schema.names)
            raise ConfigError("schema", name, f"must be a column of the source: {known}")
    return tuple(names)


def with_path_columns(
    batch: pa.RecordBatch, file: str, settings: RecordingSettings
) -> pa.RecordBatch:
    """Return the rows of a file with the columns whose values are in its path."""
    constant = [
        pa.nulls(batch.num_rows, pa.string())
        if value is None
        else pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        for value in PathColumns(settings.path_pattern).of(file)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *constant], schema=settings.schema)


@dataclass(frozen=True)
class Extent:
    """How far a recording can be read now.

    Args:
        at: The position before which everything is whole, in the unit of its kind: bytes.
        end: Whether nothing more will come.
    """

    at: int
    end: bool


class Following(NamedTuple):
    """How a stream follows a folder of recordings.

    - `limits`: the most of a micro-batch.
    - `settle_ns`: how long a recording must be unchanged before it counts as finished though it
      was not closed.
    """

    limits: Limits
    settle_ns: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Following:
        """Read the options `maxFilesPerTrigger`, `maxBytesPerTrigger` and `settle` of a stream.
        Raises ConfigError for a value that cannot be used, or both limits.
        """
        files = o.number(options, "maxFilesPerTrigger", 1)
        nbytes = o.number(options, "maxBytesPerTrigger", 1)
        if files is not None and nbytes is not None:
            raise ConfigError("maxBytesPerTrigger", nbytes, "excludes maxFilesPerTrigger")
        return cls(Limits(files, nbytes), o.duration_ns(options, "settle", "30 s"))


class RecordingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Recordings as they appear. Subclasses say what a recording of their kind is.

    Recordings are taken in the order in which they were first seen, those of one look by name. One
    that is finished with and has left the folder is forgotten, so the offset does not grow for
    ever.

    Args:
        settings: The options that batch and stream share.
        names: The columns to deliver; an unknown one is a ConfigError.
        options: `maxFilesPerTrigger` or `maxBytesPerTrigger` (not both): the most of a micro-batch;
            unset: everything there is. `settle`: how long a recording must be unchanged before it
            counts as finished though it was not closed; default 30 s. Shorter, and a slow recorder
            is cut off; longer, and one that crashed is waited for.
    """

    def __init__(
        self, settings: RecordingSettings, names: Sequence[str], options: Mapping[str, str]
    ) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)
        limits, self.settle_ns = Following.of(options)
        self.max_files, self.max_bytes = limits.files, limits.nbytes
        self.target: dict[str, Extent] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's names, here and below)
        """Return the offset of a new stream: nothing has been read."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most that a micro-batch reads, from the options."""
        if self.max_files is not None:
            return ReadMaxFiles(self.max_files)
        return ReadAllAvailable() if self.max_bytes is None else ReadMaxBytes(self.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what an available-now run reads: what there is at its start, however it grows
        meanwhile.
        """
        self.target = self._extents(self.files())

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Return how far the next micro-batch reads, within `limit`; `start` itself if there is
        nothing. For a call without both see `tidegate.spark.read_limits`; recordings are then in
        the order of their names.
        """
        start, limit = asked(start, limit, self.initialOffset())
        # Files that are finished with are not opened again: there may be thousands.
        finished = {file for file, done in start.items() if done["end"]}
        there = set(self.files())
        extents = self._extents(there - finished) if self.target is None else self.target
        # One that is finished with and gone from the folder need not be remembered.
        now = {file: dict(done) for file, done in start.items() if file not in finished - there}
        for file in finished - there:
            extents.pop(file, None)
        number = max((done["number"] for done in start.values()), default=-1) + 1
        known = sorted(now, key=lambda file: now[file]["number"])
        new = sorted(file for file in extents if file not in start)
        files_left = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        bytes_left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        moved = False
        for file in [*known, *new]:
            extent = extents.get(file)
            before = now.get(file, {"number": number, "at": 0, "end": False})
            if extent is None or before["end"]:
                continue
            if (files_left is not None and files_left <= 0) or (
                bytes_left is not None and bytes_left <= 0
            ):
                break
            at, end = extent.at, extent.end
            if bytes_left is not None:
                at, end, taken = self.up_to(file, before["at"], extent, bytes_left)
                bytes_left -= taken
            if (at, end) == (before["at"], before["end"]):
                continue
            if file not in now:
                number += 1
            now[file] = {**before, "at": at, "end": end}
            files_left = None if files_left is None else files_left - 1
            moved = True
        return now if moved else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks between two offsets, in the order of the recordings.

        Depends on the offsets and on bytes that no longer change, so a micro-batch that runs again
        reads the same rows.
        """
        found: list[InputPartition] = []
        for file in sorted(end, key=lambda name: end[name]["number"]):
            before = start.get(file, {"at": 0, "end": False})
            if not before["end"]:
                found += self.runs(file, before["at"], end[file]["at"], end[file]["end"])
        return found

    # -- what a kind of recording says -----------------------------------------------------------

    @abstractmethod
    def files(self) -> list[str]:
        """Return the recordings there are now. Called on the driver for every micro-batch."""

    @abstractmethod
    def extent(self, file: str) -> Extent | None:
        """Return how far a recording can be read now; None if it must be waited for. May raise
        FileNotFoundError for one that was deleted meanwhile.
        """

    @abstractmethod
    def up_to(self, file: str, at: int, extent: Extent, most: int) -> tuple[int, bool, int]:
        """Return how far about `most` bytes after `at` lead: position, whether that is the end, and
        bytes.

        Must make progress: at least one piece, even if it is larger than `most`.
        """

    @abstractmethod
    def runs(self, file: str, at: int, upto: int, end: bool) -> Iterable[InputPartition]:
        """Return the tasks that read a recording from `at` up to `upto`; `end`: whether that is its
        end.
        """

    # -- inside ---------------------------------------------------------------------------------

    def _extents(self, files: Iterable[str]) -> dict[str, Extent]:
        """Return how far each of the files can be read; those to wait for are left out."""
        found = {}
        for file in files:
            # One that is deleted while we look was never begun: there is nothing to go on with.
            with contextlib.suppress(FileNotFoundError):
                extent = self.extent(file)
                if extent is not None:
                    found[file] = extent
        return found
