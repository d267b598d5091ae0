"""The `mcap` source on Spark: the same messages, fewer chunks, streams that stop and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from mcap_files import by_stock_reader, recording, unindexed
from tidegate.errors import ConfigError
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import run_batch_job, start
from tidegate.spark.read_limits import IN_STEPS, ReadAllAvailable, ReadMaxBytes, ReadMaxFiles
from tidegate.spark.sources import register_sources
from tidegate.spark.sources.mcap import McapReader, McapStreamReader
from tidegate.spark.sources.recording import RecordingSettings

COLUMNS = ["topic", "log_time_ns", "publish_time_ns", "sequence", "data"]


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_sources(spark)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for vehicle, file in (("v1", recording(900)), ("v2", unindexed(600))):
        (tmp_path / vehicle).mkdir()
        (tmp_path / vehicle / "a.mcap").write_bytes(file)
    return tmp_path


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.where("error is null").select(COLUMNS).collect())


def test_batch(spark: SparkSession, logs: Path) -> None:
    df = (
        spark.read.format("mcap")
        .option("partitionBytes", 15_000)
        .option("columnsFromPath", r"/(?P<vehicle>[^/]+)/[^/]*$")
        .load(str(logs))
    )
    assert df.rdd.getNumPartitions() >= 3
    for vehicle, messages in (("v1", 900), ("v2", 600)):
        one = df.where(f"vehicle = '{vehicle}'")
        assert rows_of(one) == sorted(by_stock_reader(recording(messages)))


def test_options_choose_chunks(logs: Path) -> None:
    chosen = {"topics": "/imu, /lidar", "startNs": "100007", "endNs": "110007"}
    everything = McapReader(
        RecordingSettings.of({"path": str(logs), "partitionBytes": "1"}), COLUMNS
    )
    settings = RecordingSettings.of({"path": str(logs / "v1"), "partitionBytes": "1", **chosen})
    reader = McapReader(settings, COLUMNS)
    assert len(reader.partitions()) * 10 < len(everything.partitions())
    rows = [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]
    wanted = [r for r in by_stock_reader(recording(900)) if r[0] in ("/imu", "/lidar")]
    got = [tuple(row[name] for name in COLUMNS) for row in rows]
    assert got == [r for r in wanted if 100_007 <= r[1] < 110_007]


def test_a_filter_on_one_frame_does_not_change_another(spark: SparkSession, logs: Path) -> None:
    df = spark.read.format("mcap").load(str(logs / "v1"))
    assert df.where("log_time_ns < 10000").count() == 10
    assert df.count() == 900


@pytest.mark.skipif(not IN_STEPS, reason="Spark 4.1 reads a Python source in one micro-batch")
def test_stream_in_small_steps(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    def run(name: str) -> int:
        stream = spark.readStream.format("mcap").option("maxBytesPerTrigger", 20_000)
        query = (
            stream.load(str(logs))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len([p for p in query.recentProgress if p.numInputRows])

    assert run("first") >= 2
    wanted = by_stock_reader(recording(900)) + by_stock_reader(recording(600))
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == sorted(wanted)
    (logs / "v2" / "0-earlier-name.mcap").write_bytes(recording(30))
    assert run("second") == 1
    wanted += by_stock_reader(recording(30))
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == sorted(wanted)


def walk(reader: McapStreamReader, offset: dict[str, Any], limit: Any) -> Iterator[Any]:
    """Micro-batches until there is nothing new: (offset, messages, errors)."""
    while (after := reader.latestOffset(offset, limit)) != offset:
        batches = [b for p in reader.partitions(offset, after) for b in reader.read(p)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        good = [tuple(row[name] for name in COLUMNS) for row in rows if row["error"] is None]
        yield after, good, [row for row in rows if row["error"] is not None]
        offset = after


def stream_reader(path: Path, **options: str) -> McapStreamReader:
    settings = RecordingSettings.of({"path": str(path), **options})
    return McapStreamReader(settings, settings.schema.names, options)


@pytest.mark.parametrize("limit", [ReadMaxBytes(1), ReadMaxBytes(5_000), ReadMaxFiles(1)])
@pytest.mark.parametrize("make", [recording, unindexed])
def test_any_limit_gives_every_message_once(logs: Path, limit: Any, make: Any) -> None:
    (logs / "v1" / "b.mcap").write_bytes(make(200, use_chunking=make is recording))
    (logs / "v1" / "c.mcap").write_bytes(recording(200, use_chunking=False))
    steps = list(walk(stream_reader(logs), {}, limit))
    got = [row for _, good, errors in steps for row in good]
    wanted = [row for n in (900, 600, 200, 200) for row in by_stock_reader(recording(n))]
    assert sorted(got) == sorted(wanted)
    assert len(steps) >= 4


@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_that_is_still_growing(tmp_path: Path, chunked: bool) -> None:
    """Read up to its last whole chunk, go on where that ended, and end when it is closed."""
    file = recording(300, use_chunking=chunked)
    path = tmp_path / "live.mcap"
    reader = stream_reader(tmp_path)
    offset: dict[str, Any] = {}
    got = []
    for cut in (20, 3_000, 3_001, 6_000, len(file) - 400, len(file)):
        path.write_bytes(file[:cut])
        for after, good, errors in walk(reader, offset, ReadAllAvailable()):
            got += good
            offset = after
            assert errors == []
    assert got == by_stock_reader(file)
    assert offset[str(path)]["end"]


def test_a_file_that_was_cut_off_ends_with_an_error_row(tmp_path: Path) -> None:
    (tmp_path / "cut.mcap").write_bytes(recording(300)[:4_000])
    assert [e for _, _, e in walk(stream_reader(tmp_path), {}, ReadAllAvailable())] == [[]]
    ((_, good, errors),) = walk(stream_reader(tmp_path, settle="0 s"), {}, ReadAllAvailable())
    assert good == by_stock_reader(recording(300))[: len(good)]
    assert [row["error"] for row in errors] == ["the file ends inside a record"]


def test_available_now_does_not_see_what_comes_after(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(recording(10))
    reader = stream_reader(tmp_path)
    reader.prepareForTriggerAvailableNow()
    (tmp_path / "b.mcap").write_bytes(recording(20))
    assert sum(len(good) for _, good, _ in walk(reader, {}, ReadAllAvailable())) == 10


def test_a_file_that_is_read_and_deleted_is_forgotten_not_read_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.mcap").write_bytes(recording(10))
    reader = stream_reader(tmp_path)
    reader.prepareForTriggerAvailableNow()
    got = 0
    for offset, good, _ in walk(reader, {}, ReadMaxFiles(1)):
        got += len(good)
        last = offset
        (tmp_path / "a.mcap").unlink(missing_ok=True)
    assert got == 30
    assert {Path(file).name for file in last} == {"b.mcap", "c.mcap"}


PIPELINE = """
streams:
  fleet:
    source:
      format: mcap
      path: {path}
      options: {{columnsFromPath: "/(?P<vehicle>[^/]+)/[^/]*$", maxFilesPerTrigger: 1, settle: 0 s,
                 clock: {clock}}}
    key: vehicle
    topic: topic
    arrival: [log_time_ns, file, offset, position]
    eventtime: {{column: {column}, type: unixtimestamp_ns}}
options:
  mode: {mode}
  eventtime: {{enabled: true, lateTolerance: 10 us, watermarkPer: tuple}}
"""


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_pipeline_from_yaml(spark: SparkSession, logs: Path, tmp_path: Path, mode: str) -> None:
    (logs / "v3").mkdir()
    (logs / "v3" / "cut.mcap").write_bytes(recording(300)[:4_000])
    text = PIPELINE.format(path=logs, mode=mode, clock="log", column="publish_time_ns")
    streaming = mode == "streaming"
    _, frames = open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=streaming)
    out = tmp_path / "result"
    if streaming:
        start(frames, str(out)).awaitTermination()
    else:
        run_batch_job(frames, str(out))
    data = pq.read_table(out / "data")
    errors = pq.read_table(out / "error").to_pylist()
    assert [(row["error"], row["vehicle"]) for row in errors] == [
        ("the file ends inside a record", "v3")
    ]
    for vehicle, messages in (("v1", 900), ("v2", 600)):
        own = data.filter(pc.equal(data["vehicle"], vehicle))
        held = 10 if streaming else 0  # a stream goes on: what may still be overtaken is held back
        assert own.num_rows == messages - held
        times = own.sort_by("time_ns")["publish_time_ns"].to_pylist()
        assert times == [1000 * n for n in range(messages - held)]


def test_header_clock_from_yaml(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    with McapWriter(tmp_path / "v" / "a.mcap") as log:
        channel = log.channel("/a")
        for place, n in enumerate((2, 0, 1)):
            log.message(channel, place, b'{"header":{"stamp":{"sec":%d,"nanosec":0}}}' % n)
        log.message(channel, 200, b'{"no": "header"}')
    text = PIPELINE.format(path=tmp_path, mode="batch", clock="header", column="header_stamp_ns")
    _, frames = open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=False)
    assert [r.header_stamp_ns for r in frames.data.collect()] == [2 * 10**9]
    late = frames.late.orderBy("header_stamp_ns").collect()
    assert [r.lateness_ns for r in late] == [2 * 10**9 - 10_000, 10**9 - 10_000]
    (error,) = frames.errors.collect()
    assert bytes(error.data) == b'{"no": "header"}'


@pytest.mark.parametrize("streaming", [False, True])
def test_decoded_fields_from_yaml(spark: SparkSession, tmp_path: Path, streaming: bool) -> None:
    """Event time is a field of the payload; what cannot be decoded is in the error table."""
    (tmp_path / "v").mkdir()
    schema = b'{"properties": {"at": {"type": "integer"}, "v": {"type": "number"}}}'
    with McapWriter(tmp_path / "v" / "a.mcap") as log:
        channel = log.channel("/a", schema="S", schema_encoding="jsonschema", schema_data=schema)
        for n in range(20):
            log.message(channel, n, b'{"at": %d, "v": %d.5, "more": [1]}' % (n * 10, n))
        log.message(channel, 20, b"{broken")
    text = f"""
streams:
  s:
    source: {{format: mcap, path: {tmp_path / "v"}, options: {{decode: "at, v, *"}}}}
    arrival: [offset, position]
    eventtime: {{column: at, type: unixtimestamp_ns}}
options: {{mode: {"streaming" if streaming else "batch"}, shards: 1,
           eventtime: {{enabled: true, watermarkPer: tuple}}}}
"""
    frames = open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=streaming)[1]
    out = tmp_path / "out"
    if streaming:
        start(frames, str(out)).awaitTermination()
    else:
        run_batch_job(frames, str(out))
    data = pq.read_table(out / "data").sort_by("time_ns").to_pylist()
    assert [(row["time_ns"], row["v"]) for row in data] == [(n * 10, n + 0.5) for n in range(20)]
    assert data[3]["decoded"] == '{"at": 30, "v": 3.5, "more": [1]}'
    (error,) = pq.read_table(out / "error").to_pylist()
    assert error["error"].startswith("not JSON: ")
    assert (error["file"], error["data"]) == (str(tmp_path / "v" / "a.mcap"), b"{broken")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("decode: x.y", "decode: got 'x.y', its schema does not say of which type it is"),
        ("clock: sun", "clock: got 'sun', must be one of log, publish, header"),
        ("startNs: soon", "startNs: got 'soon', must be a whole number"),
        ('columnsFromPath: "("', "columnsFromPath: got '\\(', must be a pattern"),
        ('columnsFromPath: "(?P<topic>.)"', "is the name of a column already"),
        ("crc: maybe", "crc: got 'maybe', must be true or false"),
        ("partitionBytes: 0", "partitionBytes: got 0, must be at least 1"),
    ],
)
def test_wrong_options_are_one_sentence(
    spark: SparkSession, logs: Path, options: str, sentence: str
) -> None:
    text = f"streams: {{f: {{source: {{format: mcap, path: {logs}, options: {{{options}}}}}}}}}"
    definition = PipelineDefinition.from_yaml(text)
    with pytest.raises(ConfigError, match=sentence) as error:
        open_pipeline(spark, definition, streaming=False)
    assert "\n" not in str(error.value)
