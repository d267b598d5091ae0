"""Spark data source `rosbag`: ROS 1 and ROS 2 bags as rows, batch and streaming.

A partition is a bag. As a stream, a folder that bags are put into: each is read once, as a whole,
when it is closed and all of it is there (see `is_whole`), or has not changed for `settle`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.mcap.index import Channels
from tidegate.pipeline.security import current_roots
from tidegate.recordings.bags import bag_definitions, bag_size, bags_of, is_whole, read_bag
from tidegate.spark.columnar.bags import BagColumns
from tidegate.spark.columnar.format import ColumnarInput, Limits
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

__all__ = ["RosbagSource"]


@dataclass
class Bag(InputPartition):
    """One task: a whole bag.

    Args:
        path: The `.bag` file, or the folder of a ROS 2 bag.
    """

    path: str


class RosbagSource(DataSource):
    """Registered as `rosbag`. Options as for `mcap`, but `clock` is `log` or `header` only."""

    file_column = "file"

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return "rosbag"

    @staticmethod
    def columnar(request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how gate 1 reads bags."""
        options = {**request.options, "path": request.path or ""}
        settings = _rosbag_settings(options, df.schema)
        follow = Following.of(options)
        told = BagColumns(settings, arrow_schema(df), current_roots(), follow.settle_ns)
        return ColumnarInput(told, follow.limits if request.streaming else Limits())

    def schema(self) -> StructType:
        """Return the columns; types of decoded fields are looked up in the bags."""
        return from_arrow_schema(_rosbag_settings(self.options).schema)

    def reader(self, schema: StructType) -> RosbagReader:
        """Return the batch reader for the columns Spark asks for."""
        return RosbagReader(_rosbag_settings(self.options, schema), schema.names)

    def streamReader(self, schema: StructType) -> RosbagStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream reader for the columns Spark asks for."""
        return RosbagStreamReader(
            _rosbag_settings(self.options, schema), schema.names, self.options
        )


def _rosbag_settings(
    options: Mapping[str, str], told: StructType | None = None
) -> RecordingSettings:
    """Return the options, checked, with types of decoded fields: as Spark has fixed them (`told`),
    else as the bags say. Raises ConfigError for a clock that bags do not have, or a span of log
    times with another clock.
    """
    settings = RecordingSettings.of(options)
    chosen = settings.selection
    if chosen.clock == "publish":
        raise ConfigError("clock", "publish", "must be log or header: bags keep no other time")
    if chosen.clock == "header" and (chosen.start_ns, chosen.end_ns) != (None, None):
        raise ConfigError("startNs", "given", "speaks of log times: use it with clock log")
    return settings.typed(_definitions, told)


def _definitions(settings: RecordingSettings) -> Iterator[Channels]:
    """Yield the channels of all bags there are."""
    return (bag_definitions(path) for path in bags_of(settings.path))


def _read_columns(
    bag: InputPartition, settings: RecordingSettings, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a bag, with the columns `names` in this order."""
    assert isinstance(bag, Bag)
    for batch in read_bag(bag.path, settings.selection):
        yield with_path_columns(batch, bag.path, settings).select(list(names))


class RosbagReader(DataSourceReader):
    """Batch: all bags there are now.

    Args:
        settings: The options, with types of decoded fields.
        names: The columns to deliver; an unknown one is a ConfigError.
    """

    def __init__(self, settings: RecordingSettings, names: Sequence[str]) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per bag. Called on the driver."""
        return [Bag(path) for path in bags_of(self.settings.path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one bag. Called on a worker."""
        return _read_columns(partition, self.settings, self.names)


class RosbagStreamReader(RecordingStreamReader):
    """Streaming: bags as they are finished."""

    def files(self) -> list[str]:
        return bags_of(self.settings.path)

    def extent(self, file: str) -> Extent | None:
        size, changed_ns = bag_size(file)
        settled = time.time_ns() - changed_ns >= self.settle_ns
        return Extent(size, True) if settled or is_whole(file) else None

    def up_to(self, file: str, at: int, extent: Extent, most: int) -> tuple[int, bool, int]:
        return extent.at, extent.end, extent.at

    def runs(self, file: str, at: int, upto: int, end: bool) -> Iterator[Bag]:
        yield Bag(file)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one bag. Called on a worker."""
        return _read_columns(partition, self.settings, self.names)
