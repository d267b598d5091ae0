"""The MCAP sink: logs that the format's own reader plays, each batch once, and nothing lost."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mcap.reader import make_reader
from pyspark.sql import SparkSession

from tidegate import mcap
from tidegate.errors import ConfigError, StateError
from tidegate.mcap import McapWriter
from tidegate.mcap.reader import attached_rows
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import run_batch_job, start
from tidegate.spark.sinks import SinkSettings, open_sink
from tidegate.spark.sinks.mcap import McapSink

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")

PIPELINE = """
streams:
  fleet:
    source:
      format: mcap
      path: {logs}
      options:
        columnsFromPath: "/(?P<vehicle>[^/]+)/[^/]*$"
        decode: "header.frame_id, temperature"
        maxFilesPerTrigger: 1
    key: vehicle
    topic: topic
    arrival: [file, offset, position]
    eventtime: {{column: log_time_ns, type: unixtimestamp_ns}}
options:
  mode: {mode}
  shards: 2
  eventtime: {{enabled: true, lateTolerance: 20 ns, watermarkPer: tuple}}
{stages}
sink: {{format: mcap, path: {out}}}
"""
SETS = "stages: [{synchronize: {topics: [/front, /rear], maxInterval: 10 ns}}]"
KIND = "sensor_msgs/msg/Temperature"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two vehicles with two thermometers each; one message is late, one cannot be decoded."""
    folder = tmp_path_factory.mktemp("logs")
    rng = random.Random(5)
    for vehicle in ("v1", "v2"):
        (folder / vehicle).mkdir()
        with McapWriter(folder / vehicle / "a.mcap") as log:
            schema = {"schema": KIND, "schema_encoding": "ros2msg"}
            own = {**schema, "schema_data": ros.definition(KIND), "encoding": "cdr"}
            front, rear = log.channel("/front", **own), log.channel("/rear", **own)
            for n in range(30):
                for place, channel in enumerate((front, rear)):
                    payload = ros.serialised(ros.any_message(KIND, rng))
                    log.message(channel, 1_000 * n + place, payload)
            log.message(front, 5, ros.serialised(ros.any_message(KIND, rng)))
            log.message(rear, 40_000, b"\0\1\0\0no")
    return folder


def opened(spark: SparkSession, logs: Path, out: Path, mode: str, stages: str = "") -> Any:
    text = PIPELINE.format(logs=logs, out=out, mode=mode, stages=stages)
    definition = PipelineDefinition.from_yaml(text)
    frames = open_pipeline(spark, definition, streaming=mode == "streaming")[1]
    return frames, SinkSettings.of(definition.sink, definition.streams)


def played(out: Path, kind: str) -> list[Any]:
    found = []
    for file in sorted((out / kind).rglob("*.mcap")):
        reader = make_reader(io.BytesIO(file.read_bytes()), validate_crcs=True)
        found += list(reader.iter_messages())
        assert [a.name for a in reader.iter_attachments()] == ["rows.parquet"]
    return found


def as_recorded(logs: Path, vehicle: str) -> list[tuple[str, int, bytes]]:
    rows = pa.Table.from_batches(mcap.read(logs / vehicle / "a.mcap")).to_pylist()
    return [(f"/{vehicle}{row['topic']}", row["log_time_ns"], row["data"]) for row in rows]


def test_a_batch_job(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    frames, settings = opened(spark, logs, tmp_path, "batch")
    commit = run_batch_job(frames, str(tmp_path), settings)
    assert commit.rows == {"data": 120, "late": 2, "error": 2}
    messages = played(tmp_path, "data")
    wanted = [row for vehicle in ("v1", "v2") for row in as_recorded(logs, vehicle)]
    wanted = [row for row in wanted if row[1] != 5 and row[1] != 40_000]
    assert sorted((c.topic, m.log_time, m.data) for _, c, m in messages) == sorted(wanted)
    assert {(s.name, s.encoding, s.data) for s, _, _ in messages} == {
        (KIND, "ros2msg", ros.definition(KIND))
    }
    for _, channel, message in played(tmp_path, "error"):
        said = json.loads(message.data)
        assert channel.topic in ("/v1/error", "/v2/error")
        assert "cannot be decoded: the payload ends inside header.stamp" in said["error"]
        assert said["data"] == "AAEAAG5v"
    assert {json.loads(m.data)["lateness_ns"] > 0 for _, _, m in played(tmp_path, "late")} == {True}
    # what a message has no place for is in the attached table, and so the page can be made
    run = open_run(str(tmp_path))
    assert run.counts == {"data": 120, "late": 2, "error": 2}
    table = run.table("data", ["vehicle", "topic", "time_ns", "temperature", "offset"])
    assert table.num_rows == 120
    assert table["temperature"].null_count == 0
    assert "data" not in run.schema("data").names
    decoded = mcap.read(next((tmp_path / "data").rglob("*.mcap")), decode="header.frame_id")
    assert all(row["error"] is None for batch in decoded for row in batch.to_pylist())


def test_sets_as_a_stream(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    frames, settings = opened(spark, logs, tmp_path, "streaming", SETS)
    start(frames, str(tmp_path), settings=settings).awaitTermination()
    sets = played(tmp_path, "data")
    together: dict[tuple[str, int], list[str]] = {}
    for _, channel, message in sets:
        vehicle, topic = channel.topic[1:].split("/", 1)
        together.setdefault((vehicle, message.log_time), []).append(topic)
    assert len(together) >= 50
    assert {tuple(sorted(topics)) for topics in together.values()} == {("front", "rear", "sets")}
    assert len(list((tmp_path / "_commits").iterdir())) >= 2
    first = next((tmp_path / "data").rglob("*.mcap"))
    member = pq.read_schema(pa.BufferReader(attached_rows(first))).field("/front").type
    names = [member.field(n).name for n in range(member.num_fields)]
    assert "temperature" in names
    assert "data" not in names


class CrashError(Exception):
    pass


def test_a_batch_that_died_is_replaced_and_one_that_is_whole_is_skipped(
    spark: SparkSession, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, settings = opened(spark, logs, tmp_path, "batch")
    outcomes = frames.outcomes.cache()

    def dying(*_: Any) -> None:
        raise CrashError

    monkeypatch.setattr(McapSink, "_publish", dying)
    with pytest.raises(CrashError):
        open_sink(settings, str(tmp_path), frames.schemas).write(outcomes, 0, "q")
    left = {file.name for file in tmp_path.rglob("*.mcap")}
    monkeypatch.undo()
    sink = open_sink(settings, str(tmp_path), frames.schemas)
    commit = sink.write(outcomes, 0, "q")
    assert sorted(commit.files) == sorted(
        str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.mcap")
    )
    assert left
    assert len(played(tmp_path, "data")) == 120
    assert sink.write(outcomes, 0, "q") == commit
    with pytest.raises(StateError, match="another query"):
        sink.write(outcomes, 0, "someone else")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"compression": "gzip"}, "sink.options.compression: got 'gzip', must be one of"),
        ({"key": "wheel"}, "sink.options.key: got 'wheel', must be a column: vehicle"),
        ({"x": "1"}, "sink.options.x: got '1', allowed are compression, key, schemasPath"),
    ],
)
def test_wrong_settings(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    schemas = {"data": pa.schema([("vehicle", pa.string())])}
    with pytest.raises(ConfigError) as error:
        open_sink(SinkSettings("mcap", options), str(tmp_path), schemas)
    assert str(error.value).startswith(sentence)
