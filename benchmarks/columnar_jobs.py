"""What the columnar path costs in whole jobs: with payload, with a Parquet sink, with many keys.

python benchmarks/columnar_jobs.py [--rows 4000000] [--only sets]

sets        Parquet -> sets with payload -> Parquet, beside Spark's own tumbling window
            Parquet -> Parquet: seconds per million rows of the micro-batches behind the first
keys        order into the noop sink, 10,000 keys beside 100
large       rows of 1 KB and of 200 kB through event time: MB/s of the recording, decided by
            address, and with all payload written by our sink, beside reading the files with
            Arrow and copying them with Arrow
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from suite.streams import TOPICS, when, write_files

from tidegate.spark import frames, read, session
from tidegate.spark.query import start

ROUNDS = 3
FILES = 8
PER_BATCH = 2
LIMIT = {"maxFilesPerTrigger": str(PER_BATCH)}


def steady(query: Any) -> float:
    """Seconds of a micro-batch: the mean of those behind the first."""
    query.awaitTermination()
    done = [dict(part) for part in query.recentProgress if part["numInputRows"]]
    return statistics.mean(p["durationMs"]["triggerExecution"] for p in done[1:]) / 1000


def medians(contestants: dict[str, Callable[[Path], float]]) -> dict[str, float]:
    """Run all in turns, each with a folder of its own; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS):
        for name, run in contestants.items():
            place = Path(tempfile.mkdtemp())
            try:
                took = run(place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
            print(f"  {number} {name}: {took:.3f}", file=sys.stderr, flush=True)
            if number:
                times[name].append(took)
    return {name: statistics.median(found) for name, found in times.items()}


def in_order(spark: SparkSession, folder: Path, **options: Any) -> Any:
    rows = read(str(folder), streaming=True, options=LIMIT, spark=spark)
    made = frames(rows, key="key", time="t", topic="name", arrival="id", **options)
    return made.event_time("unixtimestamp_ns", "200 ms")


def into_noop(made: Any, place: Path) -> float:
    made = replace(made, log=f"{place}/pieces", recorded=True, read_at_once=True)
    writer = made.outcomes.writeStream.format("noop").trigger(availableNow=True)
    return steady(writer.option("checkpointLocation", f"{place}/checkpoint").start())


def sets(spark: SparkSession, folder: Path, rows: int) -> None:
    """Both read the same Parquet files and write Parquet files."""
    write_files(folder, rows, 100, FILES)
    schema = spark.read.parquet(str(folder)).schema
    million = rows / FILES * PER_BATCH / 1e6

    def window(place: Path) -> float:
        stream = spark.readStream.schema(schema).options(**LIMIT).parquet(str(folder))
        timed = stream.withColumn("ts", F.timestamp_micros((F.col("t") / 1000).cast("long")))
        panes = timed.withWatermark("ts", "200 milliseconds").groupBy(
            "key", "name", F.window("ts", "1 second")
        )
        made = panes.agg(F.count("*").alias("n"), F.avg("value").alias("m"))
        writer = made.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{place}/checkpoint")
        return steady(writer.start(f"{place}/out")) / million

    def ours(place: Path) -> float:
        made = in_order(spark, folder).synchronize(TOPICS)
        return steady(start(made, f"{place}/out")) / million

    def order(place: Path) -> float:
        return steady(start(in_order(spark, folder), f"{place}/out")) / million

    found = medians({"Spark: window": window, "sets": ours, "order": order})
    for name, took in found.items():
        print(f"Parquet to Parquet, {name}: {took:.2f} s per million rows, "
              f"{found['Spark: window'] / took:.2f} of Spark's window")  # fmt: skip


def keys(spark: SparkSession, folder: Path, rows: int) -> None:
    few, many = folder / "few", folder / "many"
    for place, count in ((few, 100), (many, 10_000)):
        place.mkdir()
        write_files(place, rows, count, FILES)
    found = medians(
        {
            "100 keys": lambda place: into_noop(in_order(spark, few), place),
            "10,000 keys": lambda place: into_noop(in_order(spark, many), place),
        }
    )
    a, b = found.values()
    print(f"order, 10,000 keys over 100 keys, time per row: {b / a:.2f} ({b:.2f} s, {a:.2f} s)")


def write_large(folder: Path, nbytes: int, total: int) -> float:
    """Rows with that much payload, which does not compress; returns MB of a micro-batch."""
    rng = np.random.default_rng(0)
    rows = total // nbytes // FILES
    for number in range(FILES):
        n = np.arange(rows) + number * rows
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(nbytes), rows, [None, pa.py_buffer(rng.bytes(nbytes * rows))]
        ).cast(pa.binary())
        table = pa.table(
            {
                "id": n,
                "key": (n % 100).astype(np.int32),
                "name": pa.array(TOPICS).take(pa.array(n // 100 % 4)),
                "t": n * 10**6 + rng.integers(0, 10**8, rows),
                "payload": payload,
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", compression="none",
                       row_group_size=max(1, (32 << 20) // nbytes))  # fmt: skip
    return sum(f.stat().st_size for f in folder.iterdir()) / FILES * PER_BATCH / 2**20


def large(spark: SparkSession, folder: Path, total: int = FILES * 100 << 20) -> None:
    for nbytes in (1_000, 200_000):
        here = folder / f"{nbytes}"
        here.mkdir()
        size = write_large(here, nbytes, total)

        def plain(place: Path, here: Path = here) -> float:
            began = time.perf_counter()
            for file in sorted(here.iterdir()):
                for batch in pq.ParquetFile(file, memory_map=True).iter_batches(4096):
                    _ = [column.nbytes for column in batch.columns]
            return (time.perf_counter() - began) / FILES * PER_BATCH

        def copy(place: Path, here: Path = here) -> float:
            began = time.perf_counter()
            for file in sorted(here.iterdir()):
                pq.write_table(pq.read_table(file), place / file.name, compression="none")
            return (time.perf_counter() - began) / FILES * PER_BATCH

        found = medians(
            {
                "plain read": plain,
                "copy by Arrow": copy,
                "decided": lambda place, h=here: into_noop(
                    in_order(spark, h, payload="addressed"), place
                ),
                "carried into noop": lambda place, h=here: into_noop(
                    in_order(spark, h, payload="carried"), place
                ),
                "written with payload": lambda place, h=here: steady(
                    start(in_order(spark, h), f"{place}/out")
                ),
            }
        )
        for name, took in found.items():
            print(f"rows of {nbytes:,} bytes, {name}: {size / took:,.0f} MB/s, "
                  f"{found['plain read'] / took:.2f} of a plain read, "
                  f"{found['copy by Arrow'] / took:.2f} of a copy")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    print(when())
    place = Path(tempfile.mkdtemp())
    try:
        for job in ("sets", "keys", "large"):
            if given.only not in job:
                continue
            folder = place / job
            folder.mkdir()
            if job == "sets":
                sets(spark, folder, given.rows)
            elif job == "keys":
                keys(spark, folder, given.rows)
            else:
                large(spark, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
