"""The operators on Spark: the same as in process, and the same as Spark's own where it has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from spark.outcomes import assert_same, count, in_process, run_now, say, written
from spark.recordings import Recording, ordered, stream_of, with_control
from tidegate import align
from tidegate.align import Align
from tidegate.batching import Batch
from tidegate.spark import Frames
from tidegate.spark.query import run_batch_job
from tidegate.sync import Synchronize
from tidegate.windows import AfterCount, Session, Sliding, Tumbling

Pipeline = Callable[[Frames], Frames]

PIPELINES: dict[str, Pipeline] = {
    "synchronize": lambda f: f.synchronize(["lidar", "camera", "imu"], max_interval="50 ms"),
    "align": lambda f: f.align(
        {"lidar": align.nearest("60 ms"), "imu": align.linear("50 ms"), "gps": align.latest()},
        reference="camera",
    ),
    "align to a grid": lambda f: f.align(
        {"lidar": align.next("60 ms"), "imu": align.mean("50 ms")}, grid="20 Hz", missing="drop"
    ),
    "align, then episodes": lambda f: f.align(
        {"lidar": align.nearest("60 ms"), "gps": align.latest()}, reference="camera"
    ).episodes(
        gap="120 ms", marker="gps", actions={"action": {"delta": "lidar.value"}}, last="repeat"
    ),
    "batch": lambda f: f.batch("1 s", gated=["lidar", "imu"]),
    "window rows": lambda f: f.window(Tumbling("500 ms"), trigger=AfterCount(40)),
    "window after window": lambda f: f.window(
        Tumbling("250 ms"), aggregates={"n": "count", "v": ("mean", "value")}, group_by=["topic"]
    ).window(Tumbling("1 s"), aggregates={"n": ("sum", "n")}),
}

SETTINGS: dict[str, tuple[type, dict[str, Any]]] = {
    "batch, settings": (Batch, {
        "length": "500 ms", "gated": ["lidar", "imu"], "timeout": 0.9, "max_streams": 2,
        "max_rows": 40, "rates": "any", "correct_skew": True, "idle_close": "1 h",
    }),
    "synchronize, settings": (Synchronize, {
        "topics": ["lidar", "camera", "imu", "gps"], "queue_size": 8, "age_penalty": 0.2,
        "max_interval": "80 ms", "lower_bounds": {"imu": "1 ms"}, "optional": ["gps"],
        "timeout": "150 ms", "max_jump_back": "10 s", "on_jump": "topic",
        "offsets": {"imu": "3 ms"}, "overflow_patience": 3, "unmatched": False,
    }),
    "synchronize, queues by time": (Synchronize, {
        "topics": ["lidar", "camera", "imu"], "queue_time": "150 ms", "max_queue": 12,
        "learn_bounds": True,
    }),
    "synchronize, epsilon": (Synchronize, {
        "topics": ["lidar", "camera"], "policy": "epsilon", "max_interval": "20 ms",
        "queue_size": 20,
    }),
    "align, settings": (Align, {
        "topics": {"lidar": align.nearest("60 ms"), "imu": align.linear("50 ms")},
        "grid": "10 Hz", "origin": 7_000_000, "max_gap": "2 s", "missing": "drop",
        "unused": False,
    }),
    "align, reference": (Align, {"topics": {"lidar": align.latest()}, "reference": "camera"}),
}  # fmt: skip
"""Every setting of the stages that have no list of their own, at a value that changes something."""

NOT_COMPARED = {
    ("Synchronize", "diagnosis"): "when its rows come depends on how the input was cut",
    **dict.fromkeys(
        [(k, s) for k in ("Batch", "Synchronize", "Align") for s in ("topic", "keys")],
        "set by pipelines",
    ),
}


def _with_settings(stage: type, settings: dict[str, Any]) -> Pipeline:
    call = {Batch: Frames.batch, Synchronize: Frames.synchronize, Align: Frames.align}[stage]
    return lambda frames: call(frames, **settings)  # type: ignore[operator]


PIPELINES |= {name: _with_settings(*case) for name, case in SETTINGS.items()}


def test_every_setting_is_in_a_case() -> None:
    for stage in (Batch, Synchronize, Align):
        given = {name for kind, case in SETTINGS.values() if kind is stage for name in case}
        left_out = {name for kind, name in NOT_COMPARED if kind == stage.__name__}
        assert given | left_out == {field.name for field in fields(stage) if field.init}


def opened(df: DataFrame, name: str) -> Frames:
    return PIPELINES[name](ordered(df, topic="topic"))


@pytest.mark.parametrize("name", PIPELINES)
def test_in_process_batch_and_stream_agree(
    name: str, spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    batch = opened(spark.read.parquet(str(recording.folder)), name)
    expected = in_process(batch, recording.slices)
    assert count(expected["data"]) > 20
    run_batch_job(batch, str(tmp_path / "batch"))
    assert_same(expected, written(tmp_path / "batch", batch))

    control = tmp_path / "control"

    def stream() -> Frames:
        return with_control(spark, opened(stream_of(spark, recording.folder), name), control)

    run_now(stream(), tmp_path / "stream")
    say(control, "end", "graceful")
    run_now(stream(), tmp_path / "stream")
    assert_same(expected, written(tmp_path / "stream", stream()))


def test_a_run_goes_on_after_a_micro_batch_that_was_cut_off(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    """A stage with timers leaves empty micro-batches behind; one cut off by the stop comes again
    first, and is not taken for the end of the next run."""
    control = tmp_path / "control"

    def stream() -> Frames:
        return with_control(spark, opened(stream_of(spark, recording.folder), "batch"), control)

    run_now(stream(), tmp_path / "out")
    commits = tmp_path / "out" / "_checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    say(control, "end", "graceful")
    run_now(stream(), tmp_path / "out")
    expected = in_process(
        opened(spark.read.parquet(str(recording.folder)), "batch"), recording.slices
    )
    assert_same(expected, written(tmp_path / "out", stream()))


def test_batch_length_is_changed_by_a_control_row(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    control = tmp_path / "control"
    say(control, "batch_length", "2 s", vehicle="car-00001")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (0, 1, 2, 3):
        source = recording.folder / f"{number:03d}.parquet"
        (folder / source.name).symlink_to(source)

    def stream() -> Frames:
        return with_control(spark, opened(stream_of(spark, folder), "batch"), control)

    run_now(stream(), tmp_path / "out")
    say(control, "end", "graceful")
    run_now(stream(), tmp_path / "out")
    lengths: dict[Any, set[int]] = {}
    for key, rows in written(tmp_path / "out", stream())["batch"].items():
        whole = [r for r in rows if r["batch_reason"] not in ("first", "flush")]
        lengths[key[0]] = {r["batch_end_ns"] - r["batch_start_ns"] for r in whole}
    assert 2 * 10**9 in lengths["car-00001"]
    assert all(2 * 10**9 not in found for key, found in lengths.items() if key != "car-00001")


def _times(spark: SparkSession) -> DataFrame:
    """Rows in order, with times to the microsecond, so that Spark's own windows see the same."""
    rows = spark.range(4000).select(
        (F.col("id") % 3).cast("string").alias("k"),
        (F.col("id") * 7919 + F.pmod(F.hash("id"), F.lit(5000))).alias("us"),
        (F.col("id") * 1.5).alias("v"),
    )
    with_gaps = rows.where(F.col("us") % 1_000_000 < 700_000)
    return with_gaps.select("k", (F.col("us") * 1000).alias("t"), "v")


@pytest.mark.parametrize(
    ("window", "native"),
    [
        (Tumbling("500 ms"), lambda: F.window("ts", "500 milliseconds")),
        (Sliding("1 s", "250 ms"), lambda: F.window("ts", "1 second", "250 milliseconds")),
        (Session("30 ms"), lambda: F.session_window("ts", "30 milliseconds")),
    ],
    ids=["tumbling", "sliding", "session"],
)
def test_windows_equal_sparks_own(window: Any, native: Any, spark: SparkSession) -> None:
    from tidegate.spark import frames

    df = _times(spark)
    ours = (
        frames(df, key="k", time="t", arrival="t")
        .event_time("unixtimestamp_ns")
        .window(window, aggregates={"n": "count", "s": ("sum", "v")})
        .data.select("k", "window_start_ns", "window_end_ns", "n", "s")
    )
    stamped = df.withColumn("ts", F.timestamp_micros((F.col("t") / 1000).cast("long")))
    theirs = stamped.groupBy("k", native().alias("w")).agg(F.count("*"), F.sum("v")).select(
        "k", (F.unix_micros("w.start") * 1000).alias("start"),
        (F.unix_micros("w.end") * 1000).alias("end"), "count(1)", "sum(v)",
    )  # fmt: skip
    found = sorted(tuple(row) for row in ours.collect())
    wanted = sorted(tuple(row) for row in theirs.collect())
    assert len(wanted) > 20
    assert found == wanted


def test_columns_that_data_is_not_made_of_are_not_read(
    spark: SparkSession, recording: Recording
) -> None:
    """Asked for alone, data needs no payload; refused rows have all their columns."""
    df = spark.read.parquet(str(recording.folder)).withColumn("payload", F.lit(b"0123456789"))
    pipeline = ordered(df, topic="topic").window(
        Tumbling("500 ms"), aggregates={"n": "count", "m": ("mean", "value")}, group_by=["topic"]
    )
    narrow = pipeline._narrowed().df.columns
    assert "payload" not in narrow
    assert {"topic", "value"} <= set(narrow)
    expected = pipeline.outcomes.where("kind = 'data'").agg(F.sum("rows")).first()
    assert expected is not None
    assert pipeline.data.count() == expected[0]
    assert "payload" in pipeline.late.columns
    rows = ordered(df, topic="topic").window(Tumbling("500 ms"))
    assert rows._narrowed() is rows
