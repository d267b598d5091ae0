"""The demo: a fleet's recording with every trouble real ones have, put in order on Spark."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from tidegate.pipeline import PipelineDefinition
from tidegate.spark.pipeline import open_pipeline
from tidegate.spark.report import Summary, print_summary, run_frames
from tidegate.spark.session import log_file, session
from tidegate.testing.fleet import facts, fleet

__all__ = ["PIPELINE", "run_demo"]

FILES = 6
"""The recording is split into so many files, each a micro-batch of the stream."""

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
sink: {{format: parquet, path: {results}}}
"""


def run_demo(out: Path, *, vehicles: int, seconds: int, seed: int, console: Console) -> Summary:
    """Record, run as a stream, announce the end, and show what came out."""
    recording, results = out / "recording", out / "results"
    for folder in (recording, results):
        shutil.rmtree(folder, ignore_errors=True)
    recording.mkdir(parents=True)
    began = time.perf_counter()
    with console.status("recording a fleet"):
        table = fleet(vehicles, seconds, seed)
        truth = facts(table)
        step = -(-table.num_rows // FILES)
        for number in range(FILES):
            pq.write_table(table.slice(number * step, step), recording / f"{number:03d}.parquet")
    console.print(
        f"recorded {table.num_rows:,} messages of {vehicles} vehicles: {truth.late:,} come too "
        f"late, {truth.unreadable} have an unreadable stamp, one clock jumps a year ahead"
    )
    text = PIPELINE.format(recording=recording, results=results)
    (out / "pipeline.yaml").write_text(text)
    definition = PipelineDefinition.from_yaml(text)
    with console.status("starting Spark in local mode"):
        spark = session(name="tidegate-demo", log=log_file())
    summary = Summary(str(results))
    for _ in range(2):
        # The first run reads the recording; the second one brings the end, which releases the rest.
        _, frames = open_pipeline(spark, definition, streaming=True, control=f"{results}/_control")
        one = run_frames(frames, str(results), console=console, expected=table.num_rows)
        for batch in ("batches", "seconds"):
            setattr(summary, batch, getattr(summary, batch) + getattr(one, batch))
        for kind, rows in one.rows.items():
            summary.rows[kind] = summary.rows.get(kind, 0) + rows
        summary.shards |= one.shards
        summary.watermark_ns = one.watermark_ns or summary.watermark_ns
        end = {"name": "end", "value": "graceful"}
        (results / "_control" / "end.json").write_text(json.dumps(end) + "\n")
    print_summary(summary, console)
    console.print(
        f"expected from the recording itself: {truth.in_order:,} in order, {truth.late:,} late, "
        f"{truth.unreadable + truth.skewed:,} errors"
    )
    console.print(
        f"the pipeline is [bold]{out / 'pipeline.yaml'}[/]; "
        f"all in {time.perf_counter() - began:.0f} s"
    )
    return summary
