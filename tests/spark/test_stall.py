"""The stall backstop on Spark: a clock that steps back is followed, not waited out for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from spark.outcomes import add_file, count, written
from spark.recordings import stream_of
from tidegate.batching import Batch
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.spark import Frames, frames
from tidegate.spark.query import start
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

HOUR = 3600 * 10**9


def _rows(first_ns: int, rows: int, number: int) -> pa.Table:
    times = first_ns + np.arange(rows) * 10**7
    return pa.table(
        {
            "vehicle": ["a"] * rows,
            "topic": ["det"] * rows,
            "stamp": times,
            "n": np.arange(rows) + 10_000 * number,
        }
    )


def test_a_clock_that_steps_back_is_followed_after_a_stall(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    add_file(_rows(5 * HOUR, 100, 0), folder, 0)

    def opened() -> Frames:
        stream = frames(
            stream_of(spark, folder), key="vehicle", topic="topic", time="stamp", arrival="n"
        )
        # The stage alone, in order of arrival: behind event time these rows would be late.
        decoder = Decoder((TimeColumn("stamp", "unixtimestamp_ns"),))
        stage = Batch("100 ms", topic="topic", keys=("vehicle",))
        return replace(stream, decoder=decoder).then(stage)

    def reasons() -> list[Any]:
        rows = written(out, opened()).get("batch", {}).get(("a",), [])
        return [row["batch_reason"] for row in rows]

    def until(what: str, done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 120
        while not done():
            assert query.isActive, query.exception()
            assert time.monotonic() < give_up, f"waited for: {what}"
            time.sleep(0.3)

    query = start(opened(), str(out), mode="continuous")
    try:
        until("batches of the first clock", lambda: len(reasons()) > 5)
        add_file(_rows(4 * HOUR, 5, 1), folder, 1)
        # ten batch lengths of wall time without a close; only a timer runs the stage meanwhile
        sink = ParquetSink(SinkRequest(str(out), opened().schemas))
        seen = len(list(sink.commits))
        until("micro-batches without rows", lambda: len(list(sink.commits)) > seen + 3)
        time.sleep(1.2)
        add_file(_rows(4 * HOUR + 10**8, 60, 2), folder, 2)
        until("the stall is reported", lambda: "stall" in reasons())
    finally:
        query.stop()
    assert count(written(out, opened())["data"]) > 100
