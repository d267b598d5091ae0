"""Where the time of the Spark path goes: the path is built up part by part, and differences count.

    PYTHONPATH=benchmarks python benchmarks/spark_profile.py [--messages 2000000] [--rounds 3]

Streams into the noop sink, seconds per million rows, medians of rounds in which all take turns. A
difference of two noisy figures is noisier than either: where it is below zero it says so. What the
engine itself says of planning, state and commits stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from suite.drawing import stack
from suite.nothing import Nothing
from suite.results import write_note, write_picture
from suite.streams import Ran, in_order, pipeline, run, when, write_files

from tidegate.core.columns import SHARD
from tidegate.core.flow import Flow
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.spark import session
from tidegate.spark.pack import PACKED_DDL, Packer
from tidegate.spark.shards import labels

SHARDS = 2


def packed(df: DataFrame) -> DataFrame:
    """Rows as the step gets them, before the shuffle."""
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    shard = F.pmod(F.hash("key"), F.lit(SHARDS)).cast("int")
    packer = Packer(decoder, labels(SHARDS, SHARDS), 0)
    return df.withColumn(SHARD, shard).mapInArrow(packer, PACKED_DDL)


LADDER: dict[str, Callable[[DataFrame], DataFrame]] = {
    "scan": lambda df: df,
    "one hop (mapInArrow identity)": lambda df: df.mapInArrow(lambda parts: parts, df.schema),
    "pack": packed,
    "pack, shuffle": lambda df: packed(df).repartition(SHARDS, "shard"),
    "pack, shuffle, step that does nothing": lambda df: pipeline(df).then(Nothing()).outcomes,
    "the same, unpacked to rows": lambda df: pipeline(df).then(Nothing()).data,
    "pack, shuffle, event time": lambda df: in_order(df).outcomes,
    "event time, unpacked to rows": lambda df: in_order(df).data,
}
DIFFERENCES = {
    "scan of Parquet": ("scan", None),
    "rows to Python as Arrow, packing, blobs back": ("pack", "scan"),
    "shuffle of the blobs": ("pack, shuffle", "pack"),
    "stateful step without an operator": ("pack, shuffle, step that does nothing", "pack, shuffle"),
    "operator (event time) and its state": (
        "pack, shuffle, event time",
        "pack, shuffle, step that does nothing",
    ),
    "outcomes to Python, unpacked, rows back": (
        "event time, unpacked to rows",
        "pack, shuffle, event time",
    ),
}


def kernel(folder: Path) -> float:
    """Seconds per million rows of the operator alone, in process, on the same rows."""
    stage = EventtimeWatermark("200 ms", watermark_per="tuple")
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    parts = [
        pq.read_table(file).combine_chunks().to_batches()[0] for file in sorted(folder.iterdir())
    ]
    taken = []
    for _ in range(4):
        flow = Flow((stage,), key="key", decoder=decoder)
        began = time.perf_counter()
        for part in parts:
            flow.process(part)
        taken.append(time.perf_counter() - began)
    return min(taken[1:]) / sum(part.num_rows for part in parts) * 1e6


def engine_says(ran: Ran) -> dict[str, float]:
    """Seconds per million rows that Spark counts itself; those of tasks are added over tasks."""
    names = ["getBatch", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets"]
    out = {name: sum(p["durationMs"].get(name, 0) for p in ran.progress) for name in names}
    states = [state for p in ran.progress for state in p["stateOperators"]]
    out["state: commit, all tasks"] = sum(state["commitTimeMs"] for state in states)
    out["state: updates, all tasks"] = sum(state["allUpdatesTimeMs"] for state in states)
    return {name: value / 1000 / ran.rows * 1e6 for name, value in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    spark = session(settings={"spark.sql.shuffle.partitions": str(SHARDS)})
    wall: dict[str, list[float]] = {name: [] for name in LADDER}
    cpu: dict[str, list[float]] = {name: [] for name in LADDER}
    says: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, given.messages, given.keys, 8)
        alone = kernel(folder)
        for number in range(given.rounds + 1):  # the first warms up
            for step, make in LADDER.items():
                ran = run(spark, folder, make, 2)
                if number:
                    wall[step].append(ran.seconds / ran.rows * 1e6)
                    cpu[step].append(ran.cpu_s / given.messages * 1e6)
                if step == "pack, shuffle, event time":
                    says = engine_says(ran)
                print(f"{number} {step}: {ran.seconds / ran.rows * 1e6:.2f} s", file=sys.stderr)
    middle = {step: statistics.median(values) for step, values in wall.items()}
    parts = {
        what: middle[after] - (middle[before] if before else 0.0)
        for what, (after, before) in DIFFERENCES.items()
    }
    lines = [
        "# Where the time of the Spark path goes",
        "",
        f"`benchmarks/spark_profile.py`: {given.messages:,} messages of {given.keys:,} keys in "
        f"micro-batches of {given.messages // 4:,}, noop sink, {given.rounds} rounds, "
        f"{when()}. Seconds per million rows.",
        "",
        "| path | wall, median | least to most | CPU, median |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step} | {middle[step]:.2f} | {min(wall[step]):.2f} to {max(wall[step]):.2f} | "
        f"{statistics.median(cpu[step]):.2f} |"
        for step in LADDER
    ]
    drawn = {what: max(value, 0.0) for what, value in parts.items()}
    title = "event time on Spark, rows in and rows out: seconds per million rows"
    picture = "" if given.no_report else write_picture("spark-profile", stack(title, drawn, "s"))
    lines += ["", picture, "", "| part (difference of two of the above) | s |", "|---|---|"]
    lines += [f"| {what} | {value:.2f} |" for what, value in parts.items()]
    lines += [
        "",
        f"The operator alone, in process and on one core, takes {alone:.2f} s. Of the path with "
        "event time Spark itself says (wall, of tasks added up over tasks): "
        + ", ".join(f"{name} {value:.2f}" for name, value in says.items())
        + ".",
    ]
    text = "\n".join(lines)
    print(text)
    if not given.no_report:
        write_note("profile", text)


if __name__ == "__main__":
    main()
