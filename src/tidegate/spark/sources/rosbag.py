"""Spark data source `rosbag`: ROS 1 bags (`.bag`) and ROS 2 bags (a folder with `metadata.yaml`,
SQLite or MCAP inside), read by `rosbags`, with the columns of the `mcap` source. Batch only.

`offset` is the number of a message in its bag: there is no other order that all bags keep. A
partition is a bag. What cannot be read is a row whose `error` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.mcap import Clock, Selection
from tidegate.mcap import schema as columns_of
from tidegate.mcap.index import Channels
from tidegate.mcap.records import Channel, Schema
from tidegate.mcap.stamps import header_stamps
from tidegate.spark.sources.mcap import Settings, checked_names, with_path_columns

__all__ = ["RosbagSource", "bags_of", "read_bag"]

ROWS = 8_192
"""Messages per Arrow batch."""


def bags_of(path: str) -> list[str]:
    """The bags a path names: itself, or those below a folder, in order."""
    root = Path(path.removeprefix("file://"))
    if not root.exists():
        raise ConfigError("path", path, "does not exist")
    if root.is_file() or (root / "metadata.yaml").exists():
        return [str(root)]
    folders = {str(found.parent) for found in root.rglob("metadata.yaml")}
    return sorted(folders | {str(found) for found in root.rglob("*.bag")})


def read_bag(path: str, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The messages of a bag in Arrow batches, in order of their log time."""
    opened: Any = _reader(path)
    count = 0
    try:
        with opened as bag:
            channels = _channels(bag.connections)
            wanted = [
                c for c in bag.connections
                if selection.topics is None or c.topic in selection.topics
            ]  # fmt: skip
            if not wanted:
                return
            span = selection.log_span
            found = bag.messages(wanted, start=span[0], stop=span[1])
            while some := list(islice(found, ROWS)):
                yield _batch(path, some, count, channels, selection)
                count += len(some)
    except GeneratorExit:
        raise
    except Exception as error:
        # rosbags raises whatever its parsers meet; whichever it is, it is about this bag
        words = str(error).strip().split("\n")[0] or type(error).__name__
        yield _fault(path, count, f"the bag cannot be read on: {words}", selection.clock)


def _reader(path: str) -> Any:
    try:
        from rosbags import rosbag1, rosbag2
    except ImportError as error:
        raise ConfigError(
            "format", "rosbag", "needs the package rosbags: pip install 'tidegate[rosbag]'"
        ) from error

    class _Lazy:
        """Opening a broken bag fails too: it must fail where reading it is guarded."""

        def __enter__(self) -> Any:
            kind = rosbag1.Reader if path.endswith(".bag") else rosbag2.Reader
            self.bag = kind(path)
            self.bag.open()
            return self.bag

        def __exit__(self, *_: object) -> None:
            self.bag.close()

    return _Lazy()


def _channels(connections: Sequence[Any]) -> Channels:
    """Connections as the channels of an MCAP file, so that header stamps are found the same way."""
    made = Channels()
    for number, one in enumerate(connections, 1):
        ros1 = hasattr(one.ext, "latching")
        kind = one.msgdef.format.name
        data, encoding = one.msgdef.data, "ros1msg" if ros1 else "ros2msg"
        if kind == "IDL":
            encoding = "ros2idl"
        elif kind == "NONE":
            data = _known_definition(one.msgtype)
        made.schemas[number] = Schema(number, one.msgtype, encoding, data.encode())
        serial = "ros1" if ros1 else one.ext.serialization_format
        made.by_id[number] = Channel(number, number, one.topic, serial)
    return made


def _known_definition(msgtype: str) -> str:
    """Older SQLite bags carry no definitions; those of common messages are known."""
    from rosbags.typesys import Stores, get_typestore

    try:
        return str(get_typestore(Stores.LATEST).generate_msgdef(msgtype, ros_version=2)[0])
    except Exception:  # a type of the user's own: it has no definition here
        return ""


def _batch(
    path: str, some: list[Any], first: int, channels: Channels, selection: Selection
) -> pa.RecordBatch:
    places = {(c.topic, c.schema_id): c for c in channels.by_id.values()}
    by_topic = {(topic, channels.schemas[n].name): c for (topic, n), c in places.items()}
    own = [by_topic[one.topic, one.msgtype] for one, _, _ in some]
    data = pa.array([bytes(raw) for _, _, raw in some], pa.binary())
    number = np.arange(first, first + len(some), dtype=np.int64)
    logged = pa.array([time for _, time, _ in some], pa.int64())
    columns: dict[str, pa.Array] = {
        "file": pa.array([path] * len(some)), "offset": pa.array(number),
        "position": pa.array(np.zeros(len(some), np.int64)),
        "topic": pa.array([c.topic for c in own]), "log_time_ns": logged,
        "publish_time_ns": pa.nulls(len(some), pa.int64()),
        "sequence": pa.nulls(len(some), pa.int64()),
        "schema": pa.array([channels.schemas[c.schema_id].name for c in own]),
        "encoding": pa.array([c.encoding for c in own]), "data": data,
        "error": pa.nulls(len(some), pa.string()),
    }  # fmt: skip
    wanted = columns_of(selection.clock)
    if selection.clock == "header":
        ids = np.array([c.id for c in own])
        columns["header_stamp_ns"] = header_stamps(data, ids, channels)
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


def _fault(path: str, at: int, reason: str, clock: Clock) -> pa.RecordBatch:
    wanted = columns_of(clock)
    row = dict.fromkeys(wanted.names)
    row |= {"file": path, "offset": at, "position": 0, "error": reason}
    return pa.RecordBatch.from_pylist([row], schema=wanted)


@dataclass
class Bag(InputPartition):
    """One bag."""

    path: str


class RosbagSource(DataSource):
    """Registered as `rosbag`."""

    @classmethod
    def name(cls) -> str:
        return "rosbag"

    def schema(self) -> StructType:
        return from_arrow_schema(_settings(self.options).schema)

    def reader(self, schema: StructType) -> RosbagReader:
        return RosbagReader(_settings(self.options), schema.names)


def _settings(options: Any) -> Settings:
    settings = Settings.of(options)
    if settings.selection.clock == "publish":
        raise ConfigError("clock", "publish", "must be log or header: bags keep no other time")
    if settings.selection.clock == "header" and settings.selection != Selection(
        settings.selection.topics, clock="header", crc=settings.selection.crc
    ):
        raise ConfigError("startNs", "given", "speaks of log times: use it with clock log")
    return settings


class RosbagReader(DataSourceReader):
    """Batch: all bags there are now."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)

    def partitions(self) -> Sequence[InputPartition]:
        return [Bag(path) for path in bags_of(self.settings.path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Bag)
        for batch in read_bag(partition.path, self.settings.selection):
            yield with_path_columns(batch, partition.path, self.settings).select(list(self.names))
