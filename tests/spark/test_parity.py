"""The law of parity: in process, as a batch and as a stream, the same rows come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from spark.outcomes import (
    add_file,
    arranged,
    assert_same,
    count,
    in_process,
    of_outcomes,
    run_now,
    say,
    written,
)
from spark.recordings import Recording, cut, ordered, stream_of, with_control
from tidegate.core.flow import Flow
from tidegate.core.outcomes import ControlSignal, End, Outcome
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import Frames
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import run_batch_job


def test_stream_restarted_twice_and_ended_key_by_key(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    folder, out, control = (tmp_path / name for name in ("in", "out", "control"))
    for number in (0, 1):
        add_file(recording.slices[number], folder, number)

    def opened() -> Frames:
        return with_control(spark, ordered(stream_of(spark, folder)), control)

    expected = in_process(opened(), recording.slices)
    progress = run_now(opened(), out)
    half = written(out, opened())
    for number in (2, 3):
        add_file(recording.slices[number], folder, number)
    run_now(opened(), out)
    before_end = written(out, opened())
    assert count(half["data"]) < count(before_end["data"]) < count(expected["data"])
    assert_same(before_end, in_process(opened(), recording.slices, end=False))

    # the end of one key releases that key and no other; one that is not known is an error row
    say(control, "end", "graceful", vehicle="car-00001")
    say(control, "end", "graceful", vehicle="car-99999")
    say(control, "end", "soon", vehicle="car-00002")
    say(control, "end", "quick", vehicle="car-00003")
    (control / "broken.json").write_text("end!\n")
    run_now(opened(), out)
    one_ended = written(out, opened())
    for key, rows in one_ended["data"].items():
        wanted = expected if key == ("car-00001",) else before_end
        assert rows == wanted["data"][key], key
    reasons = [row for rows in one_ended["error"].values() for row in rows if row["seq"] is None]
    said = sorted((r["vehicle"] or "", r["error_value"], r["error_reason"]) for r in reasons)
    assert said == [
        ("", "end!", "control row cannot be read"),
        ("car-00002", "soon", "an end must be one of graceful, quick"),
        ("car-00003", "quick", "a quick end speaks to all keys, not to one"),
        ("car-99999", "graceful", "control row for a key that is not known"),
    ]

    say(control, "end", "graceful")
    run_now(opened(), out)
    ended = written(out, opened())
    ended["error"] = {
        key: kept
        for key, rows in ended["error"].items()
        if (kept := [row for row in rows if row["seq"] is not None])
    }
    assert_same(ended, expected)

    # the fleet's own sums, from no operator of ours
    known = recording.facts
    assert count(ended["data"]) == known.in_order
    assert count(ended["late"]) == known.late > 0
    assert count(ended["error"]) == known.unreadable + known.skewed

    seen = [report["observedMetrics"]["tidegate"] for report in progress]
    assert [metrics["rows_in"] for metrics in seen] == [
        sum(part.num_rows for part in recording.slices[: n + 1]) for n in range(2)
    ]
    assert sum(metrics["data_rows"] for metrics in seen) == count(half["data"])
    assert sum(metrics["late_rows"] for metrics in seen) == count(half.get("late", {}))
    assert sum(metrics["error_rows"] for metrics in seen) == count(half["error"])
    last = seen[-1]
    assert last["keys"] == 5
    assert last["state_bytes"] > 0
    assert last["watermark_ns"] == last["eventtime_watermark.current_watermark"]
    assert last["eventtime_watermark.late_dropped_count"] == count(half.get("late", {}))


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_batch_whatever_the_number_of_shards(
    spark: SparkSession, recording: Recording, tmp_path: Path, shards: int
) -> None:
    pipeline = ordered(spark.read.parquet(str(recording.folder)), shards=shards)
    run_batch_job(pipeline, str(tmp_path / "out"))
    expected = in_process(pipeline, [recording.table])
    assert_same(written(tmp_path / "out", pipeline), expected)


def test_two_keys_with_nulls_in_both(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    def hole(name: str, value: str) -> pa.Array:
        return pa.array([None if v == value else v for v in recording.table[name].to_pylist()])

    table = recording.table.slice(0, 2000)
    for name, value in (("vehicle", "car-00002"), ("topic", "lidar")):
        place = table.column_names.index(name)
        table = table.set_column(place, name, hole(name, value).slice(0, 2000))
    folder = tmp_path / "in"
    # two files per micro-batch, and Spark opens them in whatever order it likes
    for number, part in enumerate(cut(table, 4)):
        add_file(part, folder, number)

    def keyed(df: DataFrame) -> Frames:
        return ordered(df, key=["vehicle", "topic"], shards=7)

    batch = keyed(spark.read.parquet(str(folder)))
    expected = in_process(batch, [table])
    assert {(None, None), ("car-00001", None), (None, "imu")} < set(expected["data"])
    run_batch_job(batch, str(tmp_path / "batch"))
    assert_same(written(tmp_path / "batch", batch), expected)

    df = spark.readStream.schema(batch.df.schema).option("maxFilesPerTrigger", 2)
    stream = keyed(df.parquet(str(folder)))
    run_now(stream, tmp_path / "out")
    assert_same(written(tmp_path / "out", stream), in_process(batch, [table], end=False))


def test_no_key_is_one_lane(spark: SparkSession, recording: Recording) -> None:
    pipeline = ordered(spark.read.parquet(str(recording.folder)), key=None)
    expected = in_process(pipeline, [recording.table])
    found = [(kind, pipeline.table(kind).toArrow()) for kind in ("data", "late", "error")]
    assert_same(arranged(found, ()), expected)


def test_arrival_columns_of_any_type_that_has_an_order() -> None:
    """Every one stands for the same log time; one that is the same for all leaves ties to the
    next; nulls come last; rows that agree in all keep their places."""
    shuffled = np.array([(n * 701) % 997 for n in range(997)])
    numbers = pa.array(shuffled)
    texts = pa.array([f"{n:04d}" for n in shuffled])
    columns: dict[str, pa.Array] = {
        "long": numbers,
        "int": numbers.cast(pa.int32()),
        "double": numbers.cast(pa.float64()),
        "timestamp": numbers.cast(pa.timestamp("us", "UTC")),
        "date": numbers.cast(pa.int32()).cast(pa.date32()),
        "decimal": numbers.cast(pa.decimal128(38, 3)),
        "text": texts,
        "bytes": texts.cast(pa.binary()),
        "same": pa.array(["x"] * 997),
        "null": pa.nulls(997, pa.int64()),
        "some": pa.array([None if n >= 500 else int(n) for n in shuffled], pa.int64()),
    }
    rows = pa.record_batch({**columns, "n": numbers})
    for name in (name for name in columns if name not in ("same", "null", "some")):
        assert ArrivalOrder((name,)).rows(rows)["n"].to_pylist() == list(range(997)), name
    assert ArrivalOrder(("same", "null", "int")).rows(rows)["n"].to_pylist() == list(range(997))
    for name in ("same", "null"):
        assert ArrivalOrder((name,)).rows(rows)["n"].equals(numbers), name
    late = [int(n) for n in shuffled if n >= 500]
    assert ArrivalOrder(("some",)).rows(rows)["n"].to_pylist() == [*range(500), *late]


def test_arrival_by_text_on_spark(spark: SparkSession, recording: Recording) -> None:
    """Files that Spark may open in any order, and partitions that mix them."""
    rows = spark.read.parquet(str(recording.folder))
    rows = rows.withColumn("offset", F.lpad(F.col("log_time").cast("string"), 20, "0"))
    pipeline = ordered(rows.repartition(3), arrival="offset")
    expected = in_process(pipeline, [rows.orderBy("log_time").toArrow()])
    found = [("data", pipeline.data.toArrow())]
    assert_same(arranged(found, ["vehicle"]), {"data": expected["data"]})


SEVERAL = """
name: two
streams:
  fast:
    source: {{format: parquet, path: {root}/fast, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
  slow:
    source: {{format: parquet, path: {root}/slow, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    arrival: log_time
    eventtime: {{column: taken, type: unixtimestamp_ms}}
options:
  mode: {mode}
  eventtime: {{enabled: true, lateTolerance: 200 ms, watermarkPer: tuple}}
"""


def test_two_streams_with_times_of_their_own(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    """One has its stamps in ns as text, the other in ms as numbers; keys are int and bigint."""
    table = recording.table.slice(0, 1600)
    number = pa.array([int(v[-1:]) for v in table["vehicle"].to_pylist()])
    table = table.set_column(0, "vehicle", number.cast(pa.int32()))
    topics = table["topic"].to_pylist()
    fast = table.filter(pa.array([topic in ("imu", "camera") for topic in topics]))
    slow = table.filter(pa.array([topic in ("lidar", "gps") for topic in topics]))
    stamps = [s if s and s.isdigit() and len(s) == 19 else None for s in slow["stamp"].to_pylist()]
    taken = pa.array([None if s is None else int(s) // 10**6 for s in stamps], pa.int64())
    slow = slow.drop_columns(["stamp"]).append_column("taken", taken)
    slow = slow.set_column(0, "vehicle", slow["vehicle"].cast(pa.int64()))
    for name, rows in (("fast", fast), ("slow", slow)):
        add_file(rows, tmp_path / name, 0)

    def opened(mode: str, control: Path | None = None) -> tuple[Any, Frames]:
        text = SEVERAL.format(root=tmp_path, mode=mode)
        definition = PipelineDefinition.from_yaml(text)
        return open_pipeline(
            spark,
            definition,
            streaming=mode == "streaming",
            control=None if control is None else str(control),
        )

    plan, batch = opened("batch")
    flow: Flow = plan.flow()
    outcomes: list[Outcome] = []
    merged = sorted(
        [(t, 0, n) for n, t in enumerate(fast["log_time"].to_pylist())]
        + [(t, 1, n) for n, t in enumerate(slow["log_time"].to_pylist())]
    )
    sides = [side.combine_chunks().to_batches()[0] for side in (fast, slow)]
    for _, side, place in merged:
        collection, errors = plan.inputs[side].decoder.decode(sides[side].slice(place, 1))
        outcomes += [errors] if errors is not None else []
        outcomes += flow.accept(collection)
    one_ended = flow.control(ControlSignal("end", End.GRACEFUL, lane_of(flow, 3)))
    ended = one_ended + flow.end()
    expected = of_outcomes(batch, outcomes + ended)
    assert len(expected["data"]) == 5
    assert count(expected["error"]) == stamps.count(None) + sum(
        not (s and s.isdigit() and len(s) == 19) for s in fast["stamp"].to_pylist()
    )
    run_batch_job(batch, str(tmp_path / "batch"))
    assert_same(written(tmp_path / "batch", batch), expected)

    # Control rows come behind the data of their micro-batch. A key that is no number must not be
    # taken for none, which would speak to all.
    say(tmp_path / "control", "end", "graceful", vehicle="three")
    say(tmp_path / "control", "end", "graceful", vehicle=3)
    _, stream = opened("streaming", tmp_path / "control")
    run_now(stream, tmp_path / "out")
    found = written(tmp_path / "out", stream)
    (wrong,) = found["error"].pop((None,))
    assert wrong["error_reason"] == "control row cannot be read"
    assert "three" in wrong["error_value"]
    assert_same(found, of_outcomes(batch, outcomes + one_ended))


def lane_of(flow: Flow, *key: Any) -> NDArray[np.int32]:
    return np.array([flow.find_lane(*key)], np.int32)
