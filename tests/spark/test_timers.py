"""Quiet keys in a running stream: a timer releases what they hold, and frees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark.outcomes import add_file, count, say, written
from spark.recordings import stream_of, with_control
from tidegate.spark import frames
from tidegate.spark.query import start
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest


def rows(vehicle: str, *milliseconds: int) -> pa.Table:
    return pa.table(
        {
            "vehicle": [vehicle] * len(milliseconds),
            "stamp": pa.array(milliseconds, pa.int64()),
            "log_time": pa.array(range(len(milliseconds)), pa.int64()),
        }
    )


def eventually(what: str, holds: Callable[[], Any], query: Any, seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := holds():
            return found
        assert query.isActive, query.exception()
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


def test_a_quiet_key_is_released_then_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """No row comes any more: only the clock can bring these rows out, and free the key."""
    folder, out, control = (tmp_path / name for name in ("in", "out", "control"))
    add_file(rows("a", 3000, 1000, 2000), folder, 0)
    pipeline = frames(
        stream_of(spark, folder), key="vehicle", time="stamp", arrival="log_time", forget="4 s"
    ).event_time("unixtimestamp_ms", "1 h", idle_timeout="1 s")
    pipeline = with_control(spark, pipeline, control)
    sink = ParquetSink(SinkRequest(str(out), pipeline.schemas))

    def last(metric: str) -> int | None:
        commits = list(sink.commits)
        shards = {n: metrics for c in commits for n, metrics in c.shards.items()}
        return sum(metrics[metric] for metrics in shards.values()) if shards else None

    def released() -> list[int]:
        data = written(out, pipeline).get("data", {})
        return [row["stamp"] for row in data.get(("a",), [])]

    query = start(pipeline, str(out), mode="continuous")
    try:
        eventually("rows are held", lambda: list(sink.commits), query)
        eventually("idle rows come out", released, query)
        assert released() == [1000, 2000, 3000]
        assert next(iter(sink.commits)).rows == {}, "they came out at once: nothing was held"
        eventually("the key is forgotten", lambda: last("keys") == 0, query)
        assert last("eventtime_watermark.rows_held") == 0

        # a key that was forgotten is not known; when it comes back it starts anew, behind nothing
        say(control, "end", "graceful", vehicle="a")
        eventually("an error row", lambda: written(out, pipeline).get("error"), query)
        errors = [row for part in written(out, pipeline)["error"].values() for row in part]
        assert [(row["vehicle"], row["error_column"]) for row in errors] == [("a", "end")]
        add_file(rows("a", 500), folder, 1)
        eventually("the key comes back", lambda: len(released()) == 4, query)
        assert released() == [1000, 2000, 3000, 500]
        assert count(written(out, pipeline).get("late", {})) == 0
    finally:
        query.stop()


def test_batch_jobs_have_a_clock_too(spark: SparkSession) -> None:
    """Against 1970 every row would lie in the future, and processing time would stand still."""
    now = time.time_ns()
    year = 365 * 86_400 * 10**9
    stamps = [now - year, now - 5, now + year]
    df = spark.createDataFrame([(stamp, n) for n, stamp in enumerate(stamps)], "t long, n long")
    opened = frames(df, time="t", arrival="n")
    guarded = opened.event_time(
        "unixtimestamp_ns", max_future_skew="1 h", skew_against="clock", late_tolerance="400 d"
    )
    assert guarded.stages[0].uses_wall_time(), "a stream must hand it the clock as well"
    assert [row.n for row in guarded.data.collect()] == [0, 1]
    (error,) = guarded.errors.collect()
    assert (error.n, error.error_column) == (2, "time_ns")
    stamped = opened.process_time().data.collect()
    assert all(now <= row.time_ns <= time.time_ns() for row in stamped)
    assert len(stamped) == 3
