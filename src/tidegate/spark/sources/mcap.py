"""Spark data source `mcap`: recordings as rows, batch and streaming.

    spark.read.format("mcap").option("topics", "/imu,/lidar").load("/logs")

A partition is a run of chunks of one file, so a large file is read by many tasks. The options
`topics`, `startNs` and `endNs` choose the chunks that are read at all. What cannot be read is a row
whose `error` says why; its times are null, so a pipeline with event time delivers it in its error
table.

There is no `pushFilters` on purpose. In Spark 4.3 a pushed filter stays in the source of the
DataFrame it was read from: after `df.where("log_time_ns < 10").count()`, `df.count()` counted only
those rows too. An option cannot go astray like that.

Spark fixes the columns before anything is read. The types of fields that are decoded are looked up
in the recordings for `schema`, once; whoever reads goes by what Spark then says they are, though
other recordings may have come in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.mcap import McapFile, Selection
from tidegate.mcap.index import Channels, Piece
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.spark.sources import options as o

__all__ = ["McapRun", "McapSource", "Settings", "read_run", "runs", "with_path_columns"]

PARTITION_BYTES = 64 << 20
"""Bytes of a file, as stored, that one task reads: some seconds of work, and few tasks per file."""

SUFFIXES = (".mcap",)


@dataclass(frozen=True)
class Settings:
    """The options of the source, checked."""

    path: str
    selection: Selection
    partition_bytes: int
    path_pattern: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        clock: Any = o.text(options, "clock") or "log"
        selection = Selection(
            o.names(options, "topics"),
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
        for name in o.PathColumns(self.path_pattern).names:
            if name in fields.names:
                raise ConfigError("columnsFromPath", name, "is the name of a column already")
            fields = fields.append(pa.field(name, pa.string()))
        return fields

    def files(self) -> list[str]:
        return o.files_of(self.path, SUFFIXES)

    def typed(
        self, recordings: Callable[[Settings], Iterable[Channels]], told: StructType | None = None
    ) -> Settings:
        """The settings with a type for every field that is decoded: as Spark tells, or as the
        recordings say. Fields that Spark does not ask for are not decoded."""
        chosen, fields = self.selection, self.selection.decode
        if told is not None:
            types = to_arrow_schema(told)
            fields = tuple(
                replace(each, type=_plain(types.field(each.name).type))
                for each in fields
                if each.name in types.names
            )
        fields = resolve_fields(fields, recordings(self), chosen.topics)
        return replace(self, selection=replace(chosen, decode=fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Lists as pyarrow makes them: Spark gives their elements another name."""
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind


def definitions(settings: Settings) -> Iterator[Channels]:
    """The channels of all files there are, one file after the other."""
    for file in settings.files():
        with McapFile(file) as opened:
            yield from opened.definitions()


@dataclass
class McapRun(InputPartition):
    """Some pieces of a file, and whether what is wrong with the file itself is told here."""

    file: str
    pieces: tuple[Piece, ...]
    faults: bool


class McapSource(DataSource):
    """Registered as `mcap`."""

    @classmethod
    def name(cls) -> str:
        return "mcap"

    def schema(self) -> StructType:
        return from_arrow_schema(Settings.of(self.options).typed(definitions).schema)

    def reader(self, schema: StructType) -> McapReader:
        return McapReader(Settings.of(self.options).typed(definitions, schema), schema.names)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  (Spark's name)
        from tidegate.spark.sources.mcap_stream import McapStreamReader

        settings = Settings.of(self.options).typed(definitions, schema)
        return McapStreamReader(settings, schema.names, dict(self.options))


class McapReader(DataSourceReader):
    """Batch: all files there are now."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)

    def partitions(self) -> Sequence[InputPartition]:
        return [run for file in self.settings.files() for run in runs(file, self.settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, McapRun)
        return read_run(partition, self.settings, self.names)


def checked_names(settings: Settings, names: Sequence[str]) -> tuple[str, ...]:
    """The columns wanted, each of which must be one of ours."""
    for name in names:
        if name not in settings.schema.names:
            known = ", ".join(settings.schema.names)
            raise ConfigError("schema", name, f"must be a column of the source: {known}")
    return tuple(names)


def runs(file: str, settings: Settings) -> Iterator[McapRun]:
    """A file as runs of chunks. One without an index is one run: its channels are inside it."""
    with McapFile(file) as opened:
        pieces = opened.pieces(settings.selection)
        indexed, faults = opened.index.indexed, bool(opened.index.faults)
    run: list[Piece] = []
    size = 0
    for piece in pieces:
        if run and indexed and size + piece.end - piece.start > settings.partition_bytes:
            yield McapRun(file, tuple(run), False)
            run, size = [], 0
        run.append(replace(piece, channels=None))
        size += piece.end - piece.start
    if run or faults:
        yield McapRun(file, tuple(run), True)


def read_run(run: McapRun, settings: Settings, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a run, with these columns."""
    with McapFile(run.file) as opened:
        for batch in opened.batches(settings.selection, run.pieces, faults=run.faults):
            yield with_path_columns(batch, run.file, settings).select(list(names))


def with_path_columns(batch: pa.RecordBatch, file: str, settings: Settings) -> pa.RecordBatch:
    """The rows of a file with the columns whose values stand in its path."""
    constant = [
        pa.nulls(batch.num_rows, pa.string())
        if value is None
        else pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        for value in o.PathColumns(settings.path_pattern).of(file)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *constant], schema=settings.schema)
