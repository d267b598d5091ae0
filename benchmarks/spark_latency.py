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
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from suite.drawing import curves
from suite.results import write_note, write_picture
from suite.streams import TOPICS, when

from tidegate.spark import frames, read, session
from tidegate.spark.frames_api import Frames

KEYS = 100
EVERY_S = 0.1
SMALL = 1000


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
    spark: Any, make: Contestant, column: str, seconds: float, rows: int
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
    began = time.monotonic()
    try:
        stream = make(Source(spark, folder, checkpoint))
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
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


def small_batches(spark: Any, make: Contestant, count: int, rows: int) -> float:
    """Milliseconds per micro-batch of one small file, the median of the second half of them."""
    folder, checkpoint = Path(tempfile.mkdtemp()), tempfile.mkdtemp()
    try:
        for number in range(count):
            write(folder, number, rows)
        stream = make(Source(spark, folder, checkpoint, {"maxFilesPerTrigger": "1"}))
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [dict(part) for part in query.recentProgress if part["numInputRows"]]
        times = [part["durationMs"]["triggerExecution"] for part in done]
        return statistics.median(times[len(times) // 2 :])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(checkpoint, ignore_errors=True)


def _settle(query: Any) -> None:
    """Wait until nothing is under way: Java ends badly if stopped within a micro-batch."""
    for _ in range(100):
        if not query.status["isDataAvailable"] and not query.status["isTriggerActive"]:
            return
        time.sleep(0.1)


class Source(NamedTuple):
    """Where a contestant reads."""

    spark: Any
    folder: Path
    checkpoint: str
    limits: Mapping[str, str] = MappingProxyType({})

    def rows(self) -> Any:
        """Spark's own source of Parquet files."""
        schema = self.spark.read.parquet(str(self.folder)).schema
        return self.spark.readStream.schema(schema).options(**self.limits).parquet(str(self.folder))

    def columns(self) -> Frames:
        """Our source, which reads files as columns."""
        read_from = read(str(self.folder), streaming=True, options=self.limits, spark=self.spark)
        return replace(pipeline(read_from), log=f"{self.checkpoint}/pieces", recorded=False)


Contestant = Callable[[Source], Any]


class HandOn(StatefulProcessor):
    """transformWithState that does nothing: a state that is never used, rows handed on."""

    def init(self, handle: Any) -> None:
        self.state = handle.getMapState("pages", "page int", "blob binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        return (Row(t=row.t) for row in rows)

    def close(self) -> None:
        pass


# Workers cannot import benchmarks: what is defined here travels to them whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def bare(source: Source) -> Any:
    """transformWithState that does nothing, over two groups as we have two shards."""
    grouped = source.rows().withColumn("shard", F.col("key") % 2).groupBy("shard")
    return grouped.transformWithState(
        statefulProcessor=HandOn(), outputStructType="t long", outputMode="append", timeMode="none"
    )


def identity(source: Source) -> Any:
    rows = source.rows()
    return rows.mapInArrow(lambda parts: parts, rows.schema)


def pipeline(rows: Any) -> Frames:
    told = frames(rows, key="key", time="t", topic="name", arrival="id")
    return told.event_time("unixtimestamp_ns", 0)


EVERYONE: dict[str, tuple[Contestant, str]] = {
    "no stage": (lambda source: source.rows(), "t"),
    "mapInArrow identity": (identity, "t"),
    "transformWithState that does nothing": (bare, "t"),
    "event time": (lambda source: pipeline(source.rows()).data, "time_ns"),
    "event time, files as columns": (lambda source: source.columns().data, "time_ns"),
    "sets": (lambda source: pipeline(source.rows()).synchronize(TOPICS).data, "decided_at_ns"),
    "sets, files as columns": (
        lambda source: source.columns().synchronize(TOPICS).data,
        "decided_at_ns",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30, help="per contestant")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds before, per contestant")
    parser.add_argument("--rate", type=int, default=4000, help="messages per second")
    parser.add_argument("--batches", type=int, default=40, help="small micro-batches, per stage")
    parser.add_argument("--only", default="", help="contestants with this in their names")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    rows = int(given.rate * EVERY_S)
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    lines = [
        "# Latency of a decision on Spark, trigger 0",
        "",
        f"`benchmarks/spark_latency.py`, {when()}: {given.rate:,} "
        f"messages per second of {KEYS} keys in files every {EVERY_S * 1000:.0f} ms. "
        "From the stamp of the message that decides, taken before its file is written, to the "
        "collected rows. Milliseconds.",
        "",
        f"Micro-batches of {SMALL:,} rows: available now, a file each, into the noop sink.",
        "",
        "| stage | p50 | p95 | p99 | micro-batches | s each | ms for a small micro-batch |",
        "|---|---|---|---|---|---|---|",
    ]
    panels: dict[str, dict[str, float]] = {}
    for name, (make, column) in EVERYONE.items():
        if given.only not in name:
            continue
        # In a query of its own: while Java is cold, files gather for longer than a run lasts.
        latencies(spark, make, column, given.warm_up, rows)
        found, batches = latencies(spark, make, column, given.seconds, rows)
        if not found:
            raise SystemExit(f"{name}: nothing came out within {given.seconds} s")
        p50, p95, p99 = np.percentile(found, [50, 95, 99])
        each = given.seconds / 2 / batches
        small = small_batches(spark, make, given.batches, SMALL)
        lines.append(
            f"| {name} | {p50:.0f} | {p95:.0f} | {p99:.0f} | {batches} | {each:.2f} | {small:.0f} |"
        )
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
