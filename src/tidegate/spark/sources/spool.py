"""Spark data source `spool`: what a landing process has put on disk, batch and streaming.

The offset is a position in the spool. What is between two positions never changes, so a micro-batch
that runs again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate import spool
from tidegate.errors import ConfigError
from tidegate.pipeline.security import current_roots
from tidegate.spark import options as o
from tidegate.spark.columnar.format import ColumnarInput, Limits
from tidegate.spark.columnar.spool import SpoolColumns
from tidegate.spark.pack import arrow_schema
from tidegate.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    asked,
)
from tidegate.spark.sources.registry import SourceRequest

__all__ = ["SpoolSource"]


@dataclass
class Stretch(InputPartition):
    """One task: the messages from offset `start` up to, not including, `end`.

    Args:
        start: The first offset.
        end: The offset after the last.
    """

    start: int
    end: int


def _folder(options: Mapping[str, str]) -> str:
    """Return the option `path`. Raises ConfigError unless it is a folder."""
    path = o.text(options, "path")
    if not path or not Path(path).is_dir():
        raise ConfigError("path", path, "must be the folder of a spool")
    return path


class SpoolSource(DataSource):
    """Registered as `spool`. Options: `path`, the folder of the spool; of a stream also
    `maxRowsPerTrigger`, the most rows of a micro-batch (unset: everything that is durable).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return "spool"

    @staticmethod
    def columnar(request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how gate 1 reads a spool."""
        options = {**request.options, "path": request.path or ""}
        most = o.number(options, "maxRowsPerTrigger", 1) if request.streaming else None
        columns = SpoolColumns(_folder(options), arrow_schema(df), most, current_roots())
        return ColumnarInput(columns, Limits(rows=most))

    def schema(self) -> StructType:
        """Return the columns of a spool: they are the same for all."""
        return from_arrow_schema(spool.schema())

    def reader(self, schema: StructType) -> SpoolReader:
        """Return the batch reader for the columns Spark asks for."""
        return SpoolReader(_folder(self.options), schema.names)

    def streamReader(self, schema: StructType) -> SpoolStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream reader for the columns Spark asks for."""
        most = o.number(self.options, "maxRowsPerTrigger", 1)
        return SpoolStreamReader(_folder(self.options), schema.names, most)


class SpoolReader(DataSourceReader):
    """Batch: all that is durable now, as one task.

    Args:
        folder: The folder of the spool.
        names: The columns to deliver.
    """

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one task, up to what is durable at this moment."""
        return [Stretch(0, spool.durable_end(self.folder))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Called on a worker."""
        assert isinstance(partition, Stretch)
        for batch in spool.read(self.folder, partition.start, partition.end):
            yield batch.select(self.names)


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming: from where the last micro-batch ended.

    Args:
        folder: The folder of the spool.
        names: The columns to deliver.
        most: The most rows of a micro-batch; None: everything that is durable.
    """

    def __init__(self, folder: str, names: Sequence[str], most: int | None) -> None:
        self.folder = folder
        self.names = list(names)
        self.most = most
        self.target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's names, here and below)
        """Return the offset of a new stream: the beginning of the spool."""
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most that a micro-batch reads."""
        return ReadAllAvailable() if self.most is None else ReadMaxRows(self.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of an available-now run: what is durable at its start."""
        self.target = spool.durable_end(self.folder)

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return where the next micro-batch ends, within `limit`; `start` itself if nothing is
        new. For a call without both see `tidegate.spark.read_limits`.
        """
        start, limit = asked(start, limit, self.initialOffset())
        end = spool.durable_end(self.folder) if self.target is None else self.target
        if end <= start["at"]:
            return start
        if isinstance(limit, ReadMaxRows):
            left = limit.max_rows
            for batch in spool.read(self.folder, start["at"], end):
                if batch.num_rows > left:
                    return {"at": int(batch.column("offset")[left].as_py())}
                left -= batch.num_rows
        return {"at": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one task for what is between two offsets; none if they are equal."""
        return [Stretch(start["at"], end["at"])] if end["at"] > start["at"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Called on a worker."""
        assert isinstance(partition, Stretch)
        for batch in spool.read(self.folder, partition.start, partition.end):
            yield batch.select(self.names)
