"""State and micro-batches on Spark: what keys cost, how large the state is, how long commits take.

    PYTHONPATH=benchmarks python benchmarks/spark_state.py [--messages 1000000]

Event time and sets of four topics. Medians over the micro-batches of a run, the first left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from suite.drawing import curves
from suite.results import write_note, write_picture
from suite.streams import TOPICS, Ran, in_order, run, when, write_files
from suite.usage import peak_bytes

from tidegate.spark import session

MB = 2**20


def sets(df: DataFrame) -> DataFrame:
    """The packed outcomes: what our own sinks take."""
    return in_order(df).synchronize(TOPICS, queue_size=50, unmatched=False).outcomes


def measured(spark: Any, messages: int, keys: int, batches: int) -> Ran:
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), messages, keys, 2 * batches)
        return run(spark, Path(name), sets, 2)


def of_state(ran: Ran, name: str) -> float:
    """Median over micro-batches of a figure, added over all state stores."""
    sums = []
    for part in ran.progress:
        states = part["stateOperators"]
        sums.append(sum(s[name] if name in s else s["customMetrics"].get(name, 0) for s in states))
    return statistics.median(sums)


def micros(ran: Ran) -> float:
    return ran.seconds / ran.rows * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    measured(spark, 500_000, 100, 10)  # Java and workers are warm: cold, the first rows cost twice
    per_batch = given.messages // 5
    lines = [
        "# State and micro-batches on Spark",
        "",
        f"`benchmarks/spark_state.py`, {when()}: event time (200 ms) and "
        "sets of four topics, packed outcomes into the noop sink. State in RocksDB, changelog "
        "checkpoints. Medians per micro-batch, the first left out; commit and update times are "
        "added up over the two tasks.",
        "",
        f"| keys, {per_batch:,} rows per micro-batch | us per row | state, MB | commit, ms | "
        "updates, ms | checkpoint folder, MB | peak of all processes, GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    by_keys, state, commit, by_batch = {}, {}, {}, {}
    for keys in (1, 10, 100, 1000, 10_000):
        ran = measured(spark, given.messages, keys, 5)
        label = f"{keys:,}"
        by_keys[label] = micros(ran)
        state[label] = of_state(ran, "memoryUsedBytes") / MB
        commit[label] = of_state(ran, "commitTimeMs")
        lines.append(
            f"| {label} | {micros(ran):.2f} | {state[label]:.2f} | {commit[label]:.0f} | "
            f"{of_state(ran, 'allUpdatesTimeMs'):.0f} | {ran.checkpoint_bytes / MB:.1f} | "
            f"{peak_bytes() / 2**30:.1f} |"
        )
        print(lines[-1], file=sys.stderr)
    lines += ["", "| rows per micro-batch, 100 keys | us per row | s per micro-batch |"]
    lines += ["|---|---|---|"]
    for size in (1000, 10_000, 50_000, 200_000, 500_000):
        batches = max(min(given.messages // size, 8), 3)
        ran = measured(spark, size * batches, 100, batches)
        by_batch[f"{size:,}"] = micros(ran)
        seconds = ran.seconds / len(ran.progress)
        lines.append(f"| {size:,} | {micros(ran):.2f} | {seconds:.2f} |")
        print(lines[-1], file=sys.stderr)
    if not given.no_report:
        panels = {
            "us per row, by keys": by_keys,
            "state in MB, by keys": state,
            "commit in ms, by keys": commit,
            "us per row, by rows per micro-batch": by_batch,
        }
        picture = write_picture("spark-state", curves("event time and sets on Spark", panels, ""))
        lines += ["", picture]
    text = "\n".join(lines)
    print(text)
    if not given.no_report:
        write_note("state", text)


if __name__ == "__main__":
    main()
