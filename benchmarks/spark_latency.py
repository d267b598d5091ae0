"""How long a decision takes on Spark, end to end, at trigger 0: from the file with the message that
decides, to the rows in the hands of the sink.

    PYTHONPATH=benchmarks python benchmarks/spark_latency.py [--seconds 30] [--rate 2000]

Messages are written every 100 ms, as files that appear whole, stamped with the clock just before.
The sink collects every micro-batch and reads the clock. Beside it the same without any stage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from suite.drawing import curves
from suite.results import write_note, write_picture
from suite.streams import TOPICS, when

from tidegate.spark import frames, session
from tidegate.spark.frames import Frames

KEYS = 100
EVERY_S = 0.1


def write(folder: Path, number: int, rows: int) -> None:
    """One file of messages that happen now."""
    now = time.time_ns()
    key = np.arange(rows) % KEYS
    topic = np.arange(rows) // KEYS % len(TOPICS)
    table = pa.table(
        {
            "id": np.arange(rows) + number * rows,
            "key": key.astype(np.int32),
            "name": pa.array(TOPICS).take(pa.array(topic)),
            "t": now + np.arange(rows),
        }
    )
    hidden = folder / f".{number}.parquet"
    pq.write_table(table, hidden)
    os.rename(hidden, folder / f"{number:06d}.parquet")


def feed(folder: Path, rows: int, stop: threading.Event) -> None:
    number = 1
    while not stop.is_set():
        began = time.monotonic()
        write(folder, number, rows)
        number += 1
        stop.wait(max(0.0, EVERY_S - (time.monotonic() - began)))


def latencies(
    spark: Any, make: Callable[[Any], Any], column: str, seconds: float, rows: int
) -> tuple[list[float], int]:
    """Milliseconds per decided row, and the number of micro-batches; the first half is left out."""
    folder, checkpoint = Path(tempfile.mkdtemp()), tempfile.mkdtemp()
    found: list[tuple[float, np.ndarray]] = []

    def sink(df: Any, _: int) -> None:
        times = df.select(column).toArrow()[column].to_numpy()
        now = time.time_ns()
        if len(times):
            found.append((time.monotonic(), (now - times) / 1e6))

    stop = threading.Event()
    feeder = threading.Thread(target=feed, args=(folder, rows, stop))
    write(folder, 0, rows)
    schema = spark.read.parquet(str(folder)).schema
    began = time.monotonic()
    try:
        stream = spark.readStream.schema(schema).parquet(str(folder))
        writer = (
            make(stream).writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        )
        query = writer.trigger(processingTime="0 seconds").start()
        feeder.start()
        query.awaitTermination(int(seconds))
        stop.set()
        feeder.join()
        _settle(query)
        query.stop()
    finally:
        stop.set()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(checkpoint, ignore_errors=True)
    steady = [values for at, values in found if seconds / 2 < at - began < seconds]
    return (np.concatenate(steady).tolist() if steady else []), len(steady)


def _settle(query: Any) -> None:
    """Wait until nothing is under way: Java ends badly if stopped within a micro-batch."""
    for _ in range(100):
        if not query.status["isDataAvailable"] and not query.status["isTriggerActive"]:
            return
        time.sleep(0.1)


def _frames(df: Any) -> Frames:
    told = frames(df, key="key", time="t", topic="name", arrival="id")
    return told.event_time("unixtimestamp_ns", 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30, help="per contestant")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds before, per contestant")
    parser.add_argument("--rate", type=int, default=4000, help="messages per second")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    rows = int(given.rate * EVERY_S)
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    everyone: dict[str, tuple[Callable[[Any], Any], str]] = {
        "no stage": (lambda df: df, "t"),
        "mapInArrow identity": (lambda df: df.mapInArrow(lambda parts: parts, df.schema), "t"),
        "event time": (lambda df: _frames(df).data, "time_ns"),
        "sets": (lambda df: _frames(df).synchronize(TOPICS).data, "decided_at_ns"),
    }
    lines = [
        "# Latency of a decision on Spark, trigger 0",
        "",
        f"`benchmarks/spark_latency.py`, {when()}: {given.rate:,} "
        f"messages per second of {KEYS} keys in files every {EVERY_S * 1000:.0f} ms. "
        "From the stamp of the message that decides, taken before its file is written, to the "
        "collected rows. Milliseconds.",
        "",
        "| stage | p50 | p95 | p99 | micro-batches | s each |",
        "|---|---|---|---|---|---|",
    ]
    panels: dict[str, dict[str, float]] = {}
    for name, (make, column) in everyone.items():
        # In a query of its own: while Java is cold, files gather for longer than a run lasts.
        latencies(spark, make, column, given.warm_up, rows)
        found, batches = latencies(spark, make, column, given.seconds, rows)
        if not found:
            raise SystemExit(f"{name}: nothing came out within {given.seconds} s")
        p50, p95, p99 = np.percentile(found, [50, 95, 99])
        each = given.seconds / 2 / batches
        lines.append(f"| {name} | {p50:.0f} | {p95:.0f} | {p99:.0f} | {batches} | {each:.2f} |")
        print(lines[-1], file=sys.stderr)
        panels[name] = {"p50": p50, "p95": p95, "p99": p99}
    if not given.no_report:
        by_stage = {part: {n: v[part] for n, v in panels.items()} for part in ("p50", "p99")}
        lines += ["", write_picture("spark-latency", curves("latency in ms", by_stage, "ms"))]
    text = "\n".join(lines)
    print(text)
    if not given.no_report:
        write_note("latency", text)


if __name__ == "__main__":
    main()
