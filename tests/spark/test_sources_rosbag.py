"""ROS bags, ROS 1 and ROS 2: batch and as a stream, whole, broken and half copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.spark.read_limits import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")

from tidegate.errors import ConfigError
from tidegate.mcap import Selection
from tidegate.mcap.payload import parse_fields
from tidegate.pipeline import PipelineDefinition
from tidegate.recordings.bags import is_whole, read_bag
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import start
from tidegate.spark.sources.recording import RecordingSettings
from tidegate.spark.sources.rosbag import RosbagStreamReader, _rosbag_settings


@pytest.fixture
def bags(tmp_path: Path) -> Path:
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    kind = "sensor_msgs/msg/Temperature"
    new, old = get_typestore(Stores.LATEST), get_typestore(Stores.ROS1_NOETIC)

    def message(store: Any, n: int) -> Any:
        stamp = store.types["builtin_interfaces/msg/Time"](sec=n, nanosec=7)
        more = {"seq": n} if store is old else {}
        header = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="a", **more)
        return store.types[kind](header=header, temperature=float(n), variance=0.0)

    with rosbag2.Writer(tmp_path / "two", version=9) as bag:
        channel = bag.add_connection("/temperature", kind, typestore=new)
        for n in range(20):
            bag.write(channel, 1000 + n, new.serialize_cdr(message(new, n), kind))
    with rosbag1.Writer(tmp_path / "one.bag") as bag1:
        channel = bag1.add_connection("/temperature", kind, typestore=old)
        for n in range(20):
            bag1.write(channel, 1000 + n, old.serialize_ros1(message(old, n), kind))
    return tmp_path


@pytest.mark.parametrize("name", ["two", "one.bag"])
def test_bags(bags: Path, name: str) -> None:
    table = pa.Table.from_batches(read_bag(str(bags / name), Selection(clock="header")))
    assert table["header_stamp_ns"].to_pylist() == [n * 10**9 + 7 for n in range(20)]
    assert table["log_time_ns"].to_pylist() == [1000 + n for n in range(20)]
    assert set(table["topic"].to_pylist()) == {"/temperature"}
    assert table["error"].null_count == 20
    some = read_bag(str(bags / name), Selection(start_ns=1005, end_ns=1008))
    assert [batch.num_rows for batch in some] == [3]
    assert list(read_bag(str(bags / name), Selection(("/none",)))) == []


@pytest.mark.parametrize("name", ["two", "one.bag"])
def test_broken_bags(bags: Path, name: str) -> None:
    file = next((bags / name).glob("*.db3")) if name == "two" else bags / name
    data = np.frombuffer(file.read_bytes(), np.uint8).copy()
    data[20:] = 0
    file.write_bytes(data.tobytes())
    (batch,) = read_bag(str(bags / name), Selection())
    (row,) = batch.to_pylist()
    assert row["error"].startswith("the bag cannot be read on: ")
    assert row["file"] == str(bags / name)


@pytest.mark.parametrize("name", ["two", "one.bag"])
def test_fields_of_bags(bags: Path, name: str) -> None:
    asked = Selection(decode=parse_fields("temperature float, header.frame_id string as frame"))
    table = pa.Table.from_batches(read_bag(str(bags / name), asked))
    assert table["temperature"].to_pylist() == [float(n) for n in range(20)]
    assert set(table["frame"].to_pylist()) == {"a"}
    typed = _rosbag_settings({"path": str(bags), "decode": "temperature"}).schema
    assert typed.field("temperature").type == pa.float64()


# -- as a stream --------------------------------------------------------------------------------


def stream_reader(path: Path, **options: str) -> RosbagStreamReader:
    settings = RecordingSettings.of({"path": str(path)})
    return RosbagStreamReader(settings, settings.schema.names, options)


def steps(reader: RosbagStreamReader, offset: dict[str, Any], limit: Any) -> list[Any]:
    """Micro-batches until there is nothing new: (offset, rows by bag, errors)."""
    found = []
    while (after := reader.latestOffset(offset, limit)) != offset:
        batches = [b for p in reader.partitions(offset, after) for b in reader.read(p)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        counts: dict[str, int] = {}
        for row in rows:
            counts[Path(row["file"]).name] = counts.get(Path(row["file"]).name, 0) + 1
        found.append((after, counts, [row["error"] for row in rows if row["error"] is not None]))
        offset = after
    return found


@pytest.mark.parametrize("limit", [ReadMaxFiles(1), ReadMaxBytes(1)])
def test_bags_are_read_once_each_as_they_come(bags: Path, limit: Any) -> None:
    reader = stream_reader(bags)
    first = steps(reader, {}, limit)
    assert [counts for _, counts, _ in first] == [{"one.bag": 20}, {"two": 20}]
    shutil.copytree(bags / "two", bags / "0-three")
    (after, counts, errors), *more = steps(reader, first[-1][0], limit)
    assert (counts, errors, more) == ({"0-three": 20}, [], [])
    assert steps(reader, after, ReadAllAvailable()) == []


@pytest.mark.parametrize("name", ["two", "one.bag"])
def test_a_bag_that_is_being_copied_is_waited_for(bags: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "in"
    place.mkdir()
    source = next((bags / name).glob("*.db3")) if name == "two" else bags / name
    target = place / name / source.name if name == "two" else place / name
    if name == "two":
        target.parent.mkdir()
        shutil.copy(bags / name / "metadata.yaml", target.parent)
    data = source.read_bytes()
    reader = stream_reader(place)
    for part in (0, 100, len(data) // 2, len(data) - 1):
        target.write_bytes(data[:part])
        assert not is_whole(str(place / name))
        assert reader.latestOffset({}, ReadAllAvailable()) == {}
    target.write_bytes(data)
    assert [counts for _, counts, _ in steps(reader, {}, ReadAllAvailable())] == [{name: 20}]


@pytest.mark.parametrize("name", ["two", "one.bag"])
def test_a_bag_that_stays_broken_ends_as_an_error_row(bags: Path, name: str) -> None:
    file = next((bags / name).glob("*.db3")) if name == "two" else bags / name
    file.write_bytes(file.read_bytes()[:100])
    waiting = [counts for _, counts, _ in steps(stream_reader(bags), {}, ReadAllAvailable())]
    assert [name in counts for counts in waiting] == [False]
    ((_, _, errors),) = steps(stream_reader(bags, settle="0 s"), {}, ReadAllAvailable())
    assert len(errors) == 1
    assert errors[0].startswith("the bag cannot be read on: ")


PIPELINE = """
streams:
  s:
    source:
      format: rosbag
      path: {path}
      options: {{decode: "header.stamp, temperature", maxFilesPerTrigger: 1}}
    key: file
    arrival: [log_time_ns, offset]
    eventtime: {{column: header_stamp, type: unixtimestamp_ns}}
options: {{mode: {mode}, shards: 1, eventtime: {{enabled: true, watermarkPer: tuple}}}}
"""


def test_bags_from_yaml(spark: SparkSession, bags: Path) -> None:
    definition = PipelineDefinition.from_yaml(PIPELINE.format(path=bags, mode="batch"))
    made = open_pipeline(spark, definition, streaming=False)[1]
    found = made.data.groupBy("encoding").sum("temperature").collect()
    assert sorted(map(tuple, found)) == [("cdr", 190.0), ("ros1", 190.0)]


def test_bags_as_a_stream_from_yaml(spark: SparkSession, bags: Path, tmp_path: Path) -> None:
    definition = PipelineDefinition.from_yaml(PIPELINE.format(path=bags, mode="streaming"))
    for extra, rows in ((None, 40), ("three", 60)):
        if extra:
            shutil.copytree(bags / "two", bags / extra)
        made = open_pipeline(spark, definition, streaming=True)[1]
        start(made, str(tmp_path / "out")).awaitTermination()
        data = pq.read_table(tmp_path / "out" / "data")
        assert data.num_rows == rows


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clock": "publish"}, "must be log or header: bags keep no other time"),
        ({"clock": "header", "startNs": "1"}, "speaks of log times"),
        ({"decode": "nothing"}, "no message there has this field"),
    ],
)
def test_wrong_options(bags: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _rosbag_settings({"path": str(bags), **options})
