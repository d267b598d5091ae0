"""What the Spark path costs: every operator beside the same pipeline with one that does nothing,
and that beside Spark's own ceiling for Python (mapInArrow identity). Streaming, noop sink.

    python benchmarks/spark_step.py [--rows 3000000] [--keys 100] [--rounds 3] [--only event_time]

Prints rows/s and ratios measured in the same run; contestants alternate, medians are shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from suite.nothing import Nothing

from tidegate.spark import frames, session
from tidegate.windows import Tumbling

FILES = 6
TOPICS = ["lidar", "camera", "imu", "gps"]
AGGREGATES = {"n": "count", "mean": ("mean", "value")}
DDL = "vehicle string, topic string, stamp long, log_time long, value double, payload binary"


def record(folder: Path, rows: int, keys: int, payload_bytes: int = 90) -> None:
    """A recording of `rows` messages of about 60 bytes and a payload, 200 ms out of order."""
    rng = np.random.default_rng(0)
    stamp = np.arange(rows) * (10**9 // (145 * keys)) + 1_700_000_000 * 10**9
    arrival = stamp + rng.integers(0, 200_000_000, rows)
    order = np.argsort(arrival, kind="stable")
    topics = pa.array(TOPICS)
    weights = np.array([10, 30, 100, 5]) / 145
    names = pa.array([f"vehicle-{number:05d}" for number in range(keys)])
    payload = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(payload_bytes), rows, [None, pa.py_buffer(rng.bytes(payload_bytes * rows))]
    ).cast(pa.binary())
    table = pa.table(
        {
            "vehicle": names.take(pa.array(rng.integers(0, keys, rows))),
            "topic": topics.take(pa.array(rng.choice(4, rows, p=weights))),
            "stamp": stamp[order],
            "log_time": arrival[order],
            "value": rng.random(rows),
            "payload": payload,
        }
    )
    step = -(-rows // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet")


def spark_window(df: Any) -> Any:
    """What Spark's own operator makes of the same question, without what it does not have: its
    watermark is one for all keys, and late rows are gone."""
    stamped = df.withColumn("ts", F.timestamp_micros((F.col("stamp") / 1000).cast("long")))
    windows = stamped.withWatermark("ts", "200 milliseconds").groupBy(
        "vehicle", "topic", F.window("ts", "1 second")
    )
    return windows.agg(F.count("*"), F.mean("value"))


def contestants(only: set[str]) -> dict[str, Callable[[Any], Any]]:
    def pipeline(df: Any) -> Any:
        return frames(df, key="vehicle", time="stamp", topic="topic", arrival="log_time")

    def timed(df: Any) -> Any:
        return pipeline(df).event_time("unixtimestamp_ns", "200 ms")

    known: dict[str, Callable[[Any], Any]] = {
        "read": lambda df: df,
        "mapInArrow": lambda df: df.mapInArrow(lambda batches: batches, DDL),
        "nothing": lambda df: pipeline(df).then(Nothing()).data,
        "event_time": lambda df: timed(df).data,
        "synchronize": lambda df: timed(df).synchronize(TOPICS, queue_size=50).data,
        "batch": lambda df: timed(df).batch("1 s").data,
        "window": lambda df: (
            timed(df).window(Tumbling("1 s"), aggregates=AGGREGATES, group_by=["topic"]).data
        ),
        "spark_window": spark_window,
    }
    return {name: make for name, make in known.items() if not only or name in only}


def _read(query: Any) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _memory() -> int:
    """Resident memory of the Python workers, where the machine tells (Linux)."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            if b"tidegate.spark.environment.daemon" in command and b"java" not in command:
                words = status.read_text().split("VmRSS:")[1].split()
                total += int(words[0]) * 1024
        except (OSError, IndexError):  # gone meanwhile, or a kernel thread
            continue
    return total


def once(spark: Any, folder: Path, rows: int, make: Callable[[Any], Any]) -> float:
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))
    checkpoint = tempfile.mkdtemp()
    try:
        writer = make(stream).writeStream.format("noop").outputMode("append")
        query = writer.option("checkpointLocation", checkpoint).start()
        # Not processAllAvailable: with timers Spark runs empty micro-batches and never is done.
        while query.isActive and _read(query) < rows:
            time.sleep(0.5)
        query.stop()
        # The first micro-batch starts workers; the figure is the steady state after it.
        progress = [p for p in query.recentProgress if p["numInputRows"]][1:]
        steady = sum(p["numInputRows"] for p in progress)
        millis = sum(p["durationMs"]["triggerExecution"] for p in progress)
        grown = _memory()
        if grown:
            print(f"  workers: {grown / 2**20:.0f} MiB resident", file=sys.stderr)
        return steady / (millis / 1000) if millis else float("nan")
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--payload", type=int, default=90, help="bytes per message beside the rest")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--set", nargs="*", default=[], help="Spark settings to try: key=value")
    arguments = parser.parse_args()
    tried = dict(pair.split("=", 1) for pair in arguments.set)
    spark = session(settings={"spark.sql.shuffle.partitions": "2", **tried})
    everyone = contestants(set(arguments.only))
    for keys in arguments.keys:
        with tempfile.TemporaryDirectory() as folder:
            record(Path(folder), arguments.rows, keys, arguments.payload)
            speeds: dict[str, list[float]] = {name: [] for name in everyone}
            for _ in range(arguments.rounds):
                for name, make in everyone.items():
                    speeds[name].append(once(spark, Path(folder), arguments.rows, make))
                    print(f"{name}: {speeds[name][-1] / 1e6:.3f} M rows/s", file=sys.stderr)
        middle = {name: statistics.median(values) for name, values in speeds.items()}
        print(f"\n{keys} keys, {arguments.rows} rows, median of {arguments.rounds}")
        for name, speed in middle.items():
            line = f"  {name:12s} {speed / 1e6:6.3f} M rows/s"
            if "mapInArrow" in middle:
                line += f"   {speed / middle['mapInArrow']:5.2f} of mapInArrow"
            if "nothing" in middle:
                line += f"   {speed / middle['nothing']:5.2f} of nothing"
            spread = (max(speeds[name]) - min(speeds[name])) / speed
            print(f"{line}   (spread {spread:.0%})")


if __name__ == "__main__":
    main()
