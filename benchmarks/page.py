"""What a live page costs the run it shows: the same pipeline with and without server and reader.

    python benchmarks/page.py [--rows 1000000] [--rounds 3]

The reader is a process of its own that does what an open page does: asks for the state every two
seconds and for the page when there is a new commit; and it reads /metrics every five. Runs with and
without alternate in one session; the ratio of each pair is shown, and their median.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from spark_step import DDL, record

from tidegate.report.serve import LiveServer
from tidegate.spark import frames, session
from tidegate.spark.query import start

LOOK_S, METRICS_S = 2.0, 5.0
"""As the page itself looks for news, and as Prometheus is often told to."""


def read(url: str, pages: Any, stop: Any) -> None:
    """An open page, and Prometheus."""
    known, measured = b"", 0.0
    while not stop.wait(LOOK_S):
        state = urllib.request.urlopen(f"{url}state", timeout=60).read()
        if state != known:
            known = state
            urllib.request.urlopen(url, timeout=60).read()
            with pages.get_lock():
                pages.value += 1
        if time.monotonic() > measured + METRICS_S:
            measured = time.monotonic()
            urllib.request.urlopen(f"{url}metrics", timeout=60).read()


def once(spark: Any, folder: Path, served: bool) -> tuple[float, int]:
    """Rows per second after the first micro-batch, and the pages that were read meanwhile."""
    out = Path(tempfile.mkdtemp())
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))
    pipeline = frames(stream, key="vehicle", time="stamp", topic="topic", arrival="log_time")
    stop, pages = multiprocessing.Event(), multiprocessing.Value("i", 0)
    live, reader = None, None
    try:
        if served:
            live = LiveServer(str(out)).start()
            reader = multiprocessing.Process(target=read, args=(live.url, pages, stop))
            reader.start()
        query = start(pipeline.event_time("unixtimestamp_ns", "200 ms"), str(out))
        query.awaitTermination()
        progress = [p for p in query.recentProgress if p["numInputRows"]][1:]
        rows = sum(p["numInputRows"] for p in progress)
        millis = sum(p["durationMs"]["triggerExecution"] for p in progress)
        return rows / (millis / 1000), int(pages.value)
    finally:
        stop.set()
        if reader is not None:
            reader.join(60)
        if live is not None:
            live.close()
        shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), arguments.rows, 100)
        once(spark, Path(folder), False)  # workers and kernels
        ratios = []
        for number in range(arguments.rounds):
            speeds = {}
            for served in (True, False) if number % 2 else (False, True):
                speeds[served], pages = once(spark, Path(folder), served)
                note = f", {pages} pages read" if served else ""
                print(f"{'served' if served else 'alone '}: {speeds[served]:,.0f} rows/s{note}",
                      file=sys.stderr)  # fmt: skip
            ratios.append(speeds[True] / speeds[False])
            print(f"  served / alone {ratios[-1]:.2f}", file=sys.stderr)
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{arguments.rows:,} rows: served / alone {statistics.median(ratios):.2f} ({each})")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
