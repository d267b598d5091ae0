"""The demo: a fleet's recording with every trouble real ones have, put in order and in step.

    record     `tidegate.testing.fleet` makes it up, from a seed, and knows the right answer
    run        as a stream in local mode, a micro-batch per file
    end        a control row, in a second run, that releases what stages still hold
    compare    counts with the right answer, sets with an as-of join of the same messages

Leaves `recording/`, `results/` and `pipeline.yaml` in the output folder, so that every command can
be tried on them. The demo is also a check: it says so if a count is not what it must be.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from tidegate.core.text import plural
from tidegate.output.summary import Summary
from tidegate.pipeline import PipelineDefinition
from tidegate.profile.roles import Roles
from tidegate.report.page import write_page
from tidegate.testing.fleet import Facts, facts, fleet

__all__ = ["PIPELINE", "record_demo", "run_demo"]

FILES = 6
"""Number of files the recording is split into; each is a micro-batch of the stream."""

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Java's quick compiler only: in half a minute on two cores the thorough one costs more than it
saves (30.6 s with it, 24.8 without). A real run needs it."""

TOPICS = ("gps", "lidar", "camera", "imu")
"""The slowest first: it is what the as-of join is joined to."""

PIPELINE = """\
name: fleet
streams:
  fleet:
    source: {{format: parquet, path: {recording}, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    topic: topic
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  eventtime: {{enabled: true, lateTolerance: 200 ms, maxFutureSkew: 1 h, watermarkPer: tuple}}
stages:
  - synchronize: {{topics: [{topics}], queueSize: 50, maxInterval: 100 ms}}
sink: {{format: parquet, path: {results}}}
"""
"""The pipeline, as it is left in the output folder. `maxFilesPerTrigger: 1` makes a short recording
many micro-batches, and `arrival: log_time` keeps results independent of that."""


def record_demo(
    out: Path, *, vehicles: int, seconds: int, seed: int, console: Console
) -> tuple[pa.Table, Facts]:
    """Make up a fleet's recording and a pipeline for it, without Spark.

    Args:
        out: The folder for both; `recording` and `results` in it are removed first.
        vehicles: How many vehicles are recorded, at least 1.
        seconds: The length of the recording in seconds of event time, at least 1.
        seed: Of the random numbers; the same seed gives the same recording.
        console: Where it says what it made.

    Returns:
        The recording, and what is right about it.
    """
    recording, results = out / "recording", out / "results"
    for folder in (recording, results):
        shutil.rmtree(folder, ignore_errors=True)
    recording.mkdir(parents=True)
    with console.status("recording a fleet"):
        table = fleet(vehicles, seconds, seed)
        truth = facts(table)
        # Rounded up: the last file may be shorter, none is left over.
        step = -(-table.num_rows // FILES)
        for number in range(FILES):
            pq.write_table(table.slice(number * step, step), recording / f"{number:03d}.parquet")
    console.print(
        f"recorded {table.num_rows:,} messages of {plural(vehicles, 'vehicle')}: {truth.late:,} "
        f"come too late, {truth.unreadable:,} cannot be read, one clock jumps a year ahead",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    text = PIPELINE.format(recording=recording, results=results, topics=", ".join(TOPICS))
    (out / "pipeline.yaml").write_text(text)
    return table, truth


def run_demo(out: Path, *, vehicles: int, seconds: int, seed: int, console: Console) -> Summary:
    """Record, run as a stream, announce the end, and show what came out.

    Args:
        out: The folder for everything; `recording` and `results` in it are removed first.
        vehicles: How many vehicles are recorded, at least 1.
        seconds: The length of the recording in seconds of event time, at least 1.
        seed: Of the random numbers; the same seed gives the same recording.
        console: Where results are printed.

    Returns:
        The summary of both runs together.
    """
    # here, so that a recording can be made where there is no Spark
    from tidegate.spark.open import open_pipeline
    from tidegate.spark.progress import print_summary
    from tidegate.spark.runner import run_frames, write_record
    from tidegate.spark.spark_session import log_file, session

    results = out / "results"
    began = time.perf_counter()
    table, truth = record_demo(out, vehicles=vehicles, seconds=seconds, seed=seed, console=console)
    definition = PipelineDefinition.from_yaml((out / "pipeline.yaml").read_text())
    with console.status("starting Spark in local mode"):
        spark = session(name="tidegate-demo", settings=QUICK, log=log_file())
    summary = Summary(str(results))
    with console.status("compiling the kernels (once; they are kept for the next run)"):
        _, frames = open_pipeline(spark, definition, streaming=True, control=f"{results}/_control")
        # Building it compiles the kernels; nothing runs yet.
        _ = frames.outcomes
    write_record(str(results), definition)
    for _ in range(2):
        # The first run reads the recording; the second one brings the end, which releases the rest.
        _, frames = open_pipeline(spark, definition, streaming=True, control=f"{results}/_control")
        summary += run_frames(frames, str(results), console=console, expected=table.num_rows)
        end = {"name": "end", "value": "graceful"}
        (results / "_control" / "end.json").write_text(json.dumps(end) + "\n")
    print_summary(summary, console)
    right = (
        summary.in_order == truth.in_order
        and summary.rows.get("late", 0) == truth.late
        and summary.rows.get("error", 0) == truth.unreadable + truth.skewed
    )
    console.print(
        f"the recording itself says: {truth.in_order:,} in order, {truth.late:,} late, "
        f"{truth.unreadable + truth.skewed:,} errors: {'the same' if right else 'NOT THE SAME'}"
    )
    print_sets(results, console)
    page = write_page(str(results), str(out / "page.html"), Roles())
    console.print(page["headline"], markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"the pipeline is [bold]{out / 'pipeline.yaml'}[/]; "
        f"all in {time.perf_counter() - began:.0f} s",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    console.print(
        f"look at it: [bold]{Path(page['page']).absolute().as_uri()}[/]",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    console.print(
        f"next: {program()} look {out / 'recording'}   (what inspect and init make of it)",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    return summary


def program() -> str:
    """Return how this program was called, so that a command can be typed as it is printed.

    `make demo` runs it from an environment that is not on the path.
    """
    called = Path(sys.argv[0])
    if called.name != "tidegate":
        return "tidegate"
    found = shutil.which("tidegate")
    if found is not None and Path(found).resolve() == called.resolve():
        return "tidegate"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(called)


def print_sets(results: Path, console: Console) -> None:
    """Print the sets beside a nearest-neighbour as-of join of the very same messages.

    The join takes, for every message of the slowest topic, the nearest of each other topic: a
    message may be used twice and none is ever refused, which is what the table shows.

    Args:
        results: The folder of the tables; `data` holds the sets, `dropped` unmatched messages.
        console: Where the table is printed.
    """
    import pandas as pd  # comes with Spark

    sets = ds.dataset(results / "data", partitioning="hive").to_table()
    dropped = ds.dataset(results / "dropped", partitioning="hive").to_table()
    members = {name: _member_field(sets, name, "time_ns") for name in TOPICS}
    vehicle = sets.column("vehicle").to_numpy()
    unmatched = pd.DataFrame(
        {name: dropped.column(name).to_numpy() for name in ("vehicle", "topic", "time_ns")}
    )
    left: Any = None
    for name in TOPICS:
        rest = unmatched[unmatched.topic == name]
        times = pd.DataFrame(
            {
                "vehicle": np.concatenate([vehicle, rest.vehicle.to_numpy()]),
                name: np.concatenate([members[name], rest.time_ns.to_numpy()]),
            }
        ).sort_values(name, kind="stable")
        if left is None:
            left = times
        else:
            left = pd.merge_asof(
                left, times, left_on=TOPICS[0], right_on=name, by="vehicle", direction="nearest"
            )
    assert left is not None
    joined = left[list(TOPICS)].to_numpy()
    spread = joined.max(axis=1) - joined.min(axis=1)
    ours = sets.column("spread_ns").to_numpy()
    table = Table(title="sets of one message per topic", title_justify="left")
    for title in ("", "synchronize", "as-of join (nearest)"):
        table.add_column(title, justify="left" if not title else "right")
    table.add_row("sets", f"{len(ours):,}", f"{len(spread):,}")
    for title, share in (("median spread", 50), ("99 % spread", 99), ("largest spread", 100)):
        table.add_row(title, _ms(np.percentile(ours, share)), _ms(np.percentile(spread, share)))
    for place, name in enumerate(TOPICS):
        used = len(left.groupby(["vehicle", name])) if place else len(left)
        table.add_row(f"{name} messages matched", f"{len(ours):,}", f"{used:,}")
    twice = sum(len(left) - len(left.groupby(["vehicle", name])) for name in TOPICS)
    table.add_row("messages used twice", "0", f"{twice:,}")
    console.print(table)


def _member_field(
    sets: pa.Table, topic: str, name: str
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a field of the struct column of a topic, as int64."""
    return np.asarray(pc.struct_field(sets.column(topic), name).to_numpy(), np.int64)


def _ms(ns: float) -> str:
    """Return nanoseconds as text in milliseconds."""
    return f"{ns / 1e6:.2f} ms"
