"""Gate 1 beside gate 2, Spark's own tumbling window and mapInArrow, from Parquet, on Spark.

    python benchmarks/columnar.py [--rows 8000000] [--keys 100] [--rounds 2] [--only order]

Streams over 8 files in micro-batches of 2 files into the noop sink; the first micro-batch of each
run starts workers and is left out. In local mode blobs stay in files of the machine; "as on a
cluster" they go through Spark. Contestants alternate, medians of the rounds are shown: seconds
per million rows by the clock and of CPU (all processes), and the ratio to Spark's tumbling window
and to mapInArrow identity in the same run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from suite.streams import TOPICS, when, write_files
from suite.usage import cpu_seconds

from tidegate.spark import Frames, blob_files, frames, read, session
from tidegate.windows import Tumbling

STAY = blob_files.LEAST_BYTES
AGGREGATES = {"n": "count", "m": ("mean", "value")}


def pipeline(rows: Any, job: str, **options: Any) -> Frames:
    """The recording of the suite through one job."""
    made = frames(rows, key="key", time="t", topic="name", arrival="id", **options)
    made = made.event_time("unixtimestamp_ns", "200 ms")
    if job == "sets":
        return made.synchronize(TOPICS)
    if job == "tumbling":
        return made.window(Tumbling("1 s"), group_by=("name",), aggregates=AGGREGATES)
    return made


def asked_for(made: Frames, job: str) -> DataFrame:
    """The outcomes, packed; of windows only the data, so that other columns need not travel."""
    return made._narrowed().outcomes if job == "tumbling" else made.outcomes


def measured(outcomes: DataFrame, checkpoint: Path, rows: int) -> tuple[float, float]:
    """Run a stream to its end; seconds per million rows by the clock and of CPU."""
    began = cpu_seconds()
    writer = outcomes.writeStream.format("noop").outputMode("append")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    spent = cpu_seconds() - began
    done = [dict(part) for part in query.recentProgress if part["numInputRows"]]
    steady = [part["durationMs"]["triggerExecution"] / 1000 for part in done][1:4]
    per_batch = rows / 4
    return statistics.mean(steady) / per_batch * 1e6, spent / rows * 1e6


def contestants(spark: SparkSession, folder: Path) -> dict[str, Callable[[str], DataFrame]]:
    """The streams to be compared, by name; each is made with its own checkpoint."""
    limit = {"maxFilesPerTrigger": "2"}
    schema = spark.read.parquet(str(folder)).schema

    def rows() -> DataFrame:
        return spark.readStream.schema(schema).options(**limit).parquet(str(folder))

    def tumbling_of_spark(_: str) -> DataFrame:
        timed = rows().withColumn("ts", F.timestamp_micros((F.col("t") / 1000).cast("long")))
        windows = timed.withWatermark("ts", "200 milliseconds").groupBy(
            "key", "name", F.window("ts", "1 second")
        )
        return windows.agg(F.count("*").alias("n"), F.avg("value").alias("m"))

    def identity(_: str) -> DataFrame:
        return rows().mapInArrow(lambda batches: batches, schema)

    def gate_1(
        job: str, *, through_spark: bool = False, **options: Any
    ) -> Callable[[str], DataFrame]:
        def make(checkpoint: str) -> DataFrame:
            opened = read(str(folder), streaming=True, options=limit, spark=spark)
            made = pipeline(opened, job, **options)
            made = replace(made, log=f"{checkpoint}/pieces", recorded=True, read_at_once=True)
            blob_files.LEAST_BYTES = 2**62 if through_spark else STAY
            return asked_for(made, job)

        return make

    def gate_2(job: str) -> Callable[[str], DataFrame]:
        def make(_: str) -> DataFrame:
            blob_files.LEAST_BYTES = STAY
            return asked_for(replace(pipeline(rows(), job), read_at_once=True), job)

        return make

    found: dict[str, Callable[[str], DataFrame]] = {
        "Spark: tumbling window": tumbling_of_spark,
        "Spark: mapInArrow identity": identity,
    }
    for job in ("order", "sets", "tumbling"):
        found[f"gate 2: {job}"] = gate_2(job)
        found[f"gate 1: {job}"] = gate_1(job)
        found[f"gate 1, addressed: {job}"] = gate_1(job, payload="addressed")
        found[f"gate 1, as on a cluster: {job}"] = gate_1(job, through_spark=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    place = Path(tempfile.mkdtemp())
    folder = place / "recording"
    folder.mkdir()
    write_files(folder, given.rows, given.keys, 8)
    print(f"{when()}, {given.rows:,} rows, {given.keys} keys", file=sys.stderr)
    every = contestants(spark, folder)
    chosen = {n: make for n, make in every.items() if given.only in n or n.startswith("Spark")}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    try:
        for number in range(given.rounds + 1):
            for name, make in chosen.items():
                checkpoint = Path(tempfile.mkdtemp(dir=place))
                found = measured(make(str(checkpoint)), checkpoint, given.rows)
                shutil.rmtree(checkpoint, ignore_errors=True)
                print(f"{number} {name}: {found[0]:.2f} s, {found[1]:.2f} s CPU", file=sys.stderr)
                if number:  # the first round warms up
                    times[name].append(found)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    medians = {
        n: tuple(statistics.median(x) for x in zip(*v, strict=True)) for n, v in times.items()
    }
    window, identity = (medians[name][0] for name in list(chosen)[:2])
    print("| path | s per M rows | CPU s per M rows | M rows/s | x tumbling | x identity |")
    print("|---|---|---|---|---|---|")
    for name, (clock, cpu) in medians.items():
        print(
            f"| {name} | {clock:.2f} | {cpu:.2f} | {1 / clock:.2f} | {window / clock:.2f} "
            f"| {identity / clock:.2f} |"
        )


if __name__ == "__main__":
    main()
