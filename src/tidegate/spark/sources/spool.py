"""Spark data source `spool`: what a landing process has put on disk, batch and streaming.

The offset is a position in the spool. What is between two positions never changes, so a micro-batch
that runs again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidegate import spool
from tidegate.errors import ConfigError
from tidegate.spark import options as o

__all__ = ["SpoolSource"]


@dataclass
class Stretch(InputPartition):
    """A part of a spool."""

    start: int
    end: int


def _folder(options: Mapping[str, str]) -> str:
    path = o.text(options, "path")
    if not path or not Path(path).is_dir():
        raise ConfigError("path", path, "must be the folder of a spool")
    return path


class SpoolSource(DataSource):
    """Registered as `spool`."""

    @classmethod
    def name(cls) -> str:
        return "spool"

    def schema(self) -> StructType:
        return from_arrow_schema(spool.schema())

    def reader(self, schema: StructType) -> SpoolReader:
        return SpoolReader(_folder(self.options), schema.names)

    def streamReader(self, schema: StructType) -> SpoolStreamReader:  # noqa: N802  (Spark's name)
        most = o.number(self.options, "maxRowsPerTrigger", 1)
        return SpoolStreamReader(_folder(self.options), schema.names, most)


class SpoolReader(DataSourceReader):
    """Batch: all that is durable now."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        return [Stretch(0, spool.durable_end(self.folder))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        for batch in spool.read(self.folder, partition.start, partition.end):
            yield batch.select(self.names)


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming: from where the last micro-batch ended."""

    def __init__(self, folder: str, names: Sequence[str], most: int | None) -> None:
        self.folder = folder
        self.names = list(names)
        self.most = most
        self.target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's names, here and below)
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.most is None else ReadMaxRows(self.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = spool.durable_end(self.folder)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
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
        return [Stretch(start["at"], end["at"])] if end["at"] > start["at"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        for batch in spool.read(self.folder, partition.start, partition.end):
            yield batch.select(self.names)
