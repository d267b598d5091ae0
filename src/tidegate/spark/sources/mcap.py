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

As a stream: a folder that recordings are put into, or that is being recorded into. A file that is
still open (no footer, changed within `settle`) is read up to its last whole chunk, and goes on when
it has grown; one that stays as it is for `settle` is read to its end, and what is wrong with it is
told then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.mcap import McapFile
from tidegate.mcap.index import Channels, Piece
from tidegate.pipeline.security import current_roots
from tidegate.spark.columnar.format import ColumnarInput, Limits
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.pack import arrow_schema
from tidegate.spark.sources.recording import (
    Extent,
    Following,
    RecordingSettings,
    RecordingStreamReader,
    checked_names,
    with_path_columns,
)
from tidegate.spark.sources.registry import SourceRequest

__all__ = ["McapReader", "McapRun", "McapSource", "McapStreamReader", "read_run", "runs"]


def definitions(settings: RecordingSettings) -> Iterator[Channels]:
    """Yield the channels of all files there are, one file after the other."""
    for file in settings.files():
        with McapFile(file) as opened:
            yield from opened.definitions()


@dataclass
class McapRun(InputPartition):
    """One task: some pieces of a file.

    Args:
        file: The path of the file.
        pieces: Chunks, or runs of loose messages, to read, in order.
        faults: Whether this task also delivers what is wrong with the file itself, as an error row.
    """

    file: str
    pieces: tuple[Piece, ...]
    faults: bool


class McapSource(DataSource):
    """Registered as `mcap`. Options: `path`, `topics`, `startNs`, `endNs`, `clock`, `crc`,
    `decode`, `partitionBytes`, `columnsFromPath`; of a stream also `maxFilesPerTrigger` or
    `maxBytesPerTrigger`, and `settle`. See `RecordingSettings` and `RecordingStreamReader`.
    """

    file_column = "file"

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return "mcap"

    @staticmethod
    def columnar(request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how gate 1 reads recordings, those that are still being written among them."""
        options = {**request.options, "path": request.path or ""}
        settings = RecordingSettings.of(options).typed(definitions, df.schema)
        follow = Following.of(options)
        told = McapColumns(settings, arrow_schema(df), current_roots(), follow.settle_ns)
        return ColumnarInput(told, follow.limits if request.streaming else Limits())

    def schema(self) -> StructType:
        """Return the columns; types of decoded fields are looked up in the recordings."""
        return from_arrow_schema(RecordingSettings.of(self.options).typed(definitions).schema)

    def reader(self, schema: StructType) -> McapReader:
        """Return the batch reader for the columns Spark asks for."""
        return McapReader(
            RecordingSettings.of(self.options).typed(definitions, schema), schema.names
        )

    def streamReader(self, schema: StructType) -> McapStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream reader for the columns Spark asks for."""
        settings = RecordingSettings.of(self.options).typed(definitions, schema)
        return McapStreamReader(settings, schema.names, dict(self.options))


class McapReader(DataSourceReader):
    """Batch: all files there are now.

    Args:
        settings: The options, with types of decoded fields.
        names: The columns to deliver; an unknown one is a ConfigError.
    """

    def __init__(self, settings: RecordingSettings, names: Sequence[str]) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: runs of chunks of about `partition_bytes`. Called on the driver."""
        return [run for file in self.settings.files() for run in runs(file, self.settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Called on a worker."""
        assert isinstance(partition, McapRun)
        return read_run(partition, self.settings, self.names)


def runs(file: str, settings: RecordingSettings) -> Iterator[McapRun]:
    """Yield a file as runs of chunks of about `partition_bytes`, at least one chunk each.

    One without an index is one run: its channels are defined inside it. The last run tells what is
    wrong with the file.
    """
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


def read_run(
    run: McapRun, settings: RecordingSettings, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run, with these columns in this order."""
    with McapFile(run.file) as opened:
        for batch in opened.batches(settings.selection, run.pieces, faults=run.faults):
            yield with_path_columns(batch, run.file, settings).select(list(names))


class McapStreamReader(RecordingStreamReader):
    """Streaming: files as they appear and grow."""

    def files(self) -> list[str]:
        return self.settings.files()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Called on a worker."""
        assert isinstance(partition, McapRun)
        return read_run(partition, self.settings, self.names)

    def extent(self, file: str) -> Extent:
        found = os.stat(file)
        settled = time.time_ns() - found.st_mtime_ns >= self.settle_ns
        with McapFile(file) as opened:
            if settled or not opened.index.faults:
                return Extent(found.st_size, True)
            whole = [piece.end for piece in opened.index.pieces if piece.whole]
        return Extent(max(whole, default=0), False)

    def up_to(self, file: str, at: int, extent: Extent, most: int) -> tuple[int, bool, int]:
        """How far `most` bytes lead into a file: at least one piece, and whole ones only."""
        pieces, _ = self._between(file, at, extent.at)
        size = 0
        for place, piece in enumerate(pieces):
            size += piece.end - piece.start
            if size >= most and place + 1 < len(pieces):
                return piece.end, False, size
        return extent.at, extent.end, size

    def runs(self, file: str, at: int, upto: int, end: bool) -> Iterator[McapRun]:
        pieces, indexed = self._between(file, at, upto)
        run: list[Piece] = []
        size = 0
        for piece in pieces:
            if run and indexed and size + piece.end - piece.start > self.settings.partition_bytes:
                yield McapRun(file, tuple(run), False)
                run, size = [], 0
            run.append(piece)
            size += piece.end - piece.start
        if run or end:
            yield McapRun(file, tuple(run), end)

    def _between(self, file: str, at: int, upto: int) -> tuple[list[Piece], bool]:
        """The pieces from `at` up to `upto`, and whether the file has an index."""
        with McapFile(file) as opened:
            pieces = opened.pieces(self.settings.selection)
            indexed = opened.index.indexed
        some = []
        for piece in pieces:
            first, last = piece.start, piece.end
            if not piece.chunk:
                # A run of loose messages may have grown since: it is cut where it was cut before.
                first, last = max(first, at), min(last, upto)
            if at <= first < last <= upto:
                some.append(replace(piece, start=first, end=last, channels=None))
        return some, indexed
