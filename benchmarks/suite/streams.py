"""Streams for measuring: a recording as files, a run to its end, and what Spark says of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from suite.data import record
from suite.usage import cpu_seconds
from tidegate.spark import frames
from tidegate.spark.frames_api import Frames

TOPICS = ["lidar", "camera", "imu", "gps"]


@dataclass(frozen=True)
class Ran:
    """A stream that was run to its end."""

    progress: list[dict[str, Any]]
    """One per micro-batch with rows, the first left out: it starts workers and compiles."""
    checkpoint_bytes: int
    cpu_s: float
    """CPU seconds of all processes, over all micro-batches."""

    @property
    def rows(self) -> int:
        return sum(part["numInputRows"] for part in self.progress)

    @property
    def seconds(self) -> float:
        return sum(part["durationMs"]["triggerExecution"] for part in self.progress) / 1000


def when() -> str:
    """The time of day, and how busy the machine is already."""
    return f"{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f}"


def write_files(folder: Path, messages: int, keys: int, files: int) -> None:
    """The recording of the suite, cut into files in order of arrival."""
    with tempfile.TemporaryDirectory() as other:
        path = Path(other) / "recording.parquet"
        record(path, messages, keys)
        table = pq.read_table(path)
    step = -(-messages // files)
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number:05d}.parquet")


def run(
    spark: SparkSession, folder: Path, make: Callable[[DataFrame], DataFrame], files_per_batch: int
) -> Ran:
    """Run a stream into the noop sink until all files are read."""
    schema = spark.read.parquet(str(folder)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    checkpoint = Path(tempfile.mkdtemp())
    try:
        began = cpu_seconds()
        writer = make(reader.parquet(str(folder))).writeStream.format("noop").outputMode("append")
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [dict(part) for part in query.recentProgress if part["numInputRows"]]
        size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        return Ran(progress[1:], size, cpu_seconds() - began)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def pipeline(df: DataFrame) -> Frames:
    """The recording as frames, without a stage."""
    return frames(df, key="key", time="t", topic="name", arrival="id")


def in_order(df: DataFrame) -> Frames:
    """The recording put in order within 200 ms."""
    return pipeline(df).event_time("unixtimestamp_ns", "200 ms")
