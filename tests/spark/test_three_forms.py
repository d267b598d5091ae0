"""In process, on DataFrames and from YAML: one definition, one result, on the demo's recording."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidegate.core.flow import Flow
from tidegate.core.outcomes import Watermark
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import frames
from tidegate.spark.open import open_pipeline
from tidegate.sync import Synchronize
from tidegate.testing.fleet import facts, fleet

TOPICS = ("camera", "lidar", "imu")

YAML = """
name: fleet
streams:
  fleet:
    source: {{format: parquet, path: {recording}}}
    key: vehicle
    topic: topic
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  eventtime: {{enabled: true, lateTolerance: 200 ms, maxFutureSkew: 1 h}}
stages:
  - synchronize: {{topics: [camera, lidar, imu], queueSize: 10, maxInterval: 50 ms}}
"""


def in_process(table: pa.Table) -> dict[str, list[Any]]:
    flow = Flow(
        [
            EventtimeWatermark("200 ms", watermark_per="tuple", max_future_skew="1 h"),
            Synchronize(
                TOPICS, queue_size=10, topic="topic", keys=("vehicle",), max_interval="50 ms"
            ),
        ],
        key="vehicle",
        decoder=Decoder((TimeColumn("stamp", "unixtimestamp_ns"),)),
    )
    found: dict[str, list[Any]] = {}
    for batch in table.sort_by("log_time").combine_chunks().to_batches(max_chunksize=1000):
        for outcome in flow.process(batch):
            if not isinstance(outcome, Watermark):
                found.setdefault(outcome.kind, []).extend(outcome.table().to_pylist())
    for outcome in flow.end():
        found.setdefault(outcome.kind, []).extend(outcome.table().to_pylist())  # type: ignore[union-attr]
    return found


def shape(kind: str, rows: list[dict[str, Any]]) -> Counter[Any]:
    """Rows of a kind in a form that compares: which messages, and why."""
    if kind == "data":
        members = [tuple((t, row[t]["stamp"], row[t]["log_time"]) for t in TOPICS) for row in rows]
        return Counter(zip((r["vehicle"] for r in rows), members, strict=True))
    names = ("vehicle", "topic", "stamp", "log_time", "lateness_ns", "reason", "error_reason")
    return Counter(tuple(row.get(name) for name in names) for row in rows)


def test_three_forms_are_one_definition(spark: SparkSession, tmp_path: Path) -> None:
    table = fleet(vehicles=4, seconds=8, seed=3)
    (tmp_path / "recording").mkdir()
    for number in range(3):
        step = -(-table.num_rows // 3)
        part = table.slice(number * step, step)
        pq.write_table(part, tmp_path / "recording" / f"{2 - number}.parquet")
    expected = {kind: shape(kind, rows) for kind, rows in in_process(table).items()}
    truth = facts(table)
    assert sum(expected["late"].values()) == truth.late
    assert sum(expected["error"].values()) == truth.unreadable + truth.skewed

    aligned = (
        frames(
            spark.read.parquet(str(tmp_path / "recording")),
            key="vehicle", topic="topic", time="stamp", arrival="log_time",
        )
        .event_time("unixtimestamp_ns", late_tolerance="200 ms", max_future_skew="1 h")
        .synchronize(["camera", "lidar", "imu"], queue_size=10, max_interval="50 ms")
    )  # fmt: skip
    aligned.write(str(tmp_path / "frames"))
    text = YAML.format(recording=tmp_path / "recording")
    _, planned = open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=False)
    planned.write(str(tmp_path / "yaml"))
    for form in ("frames", "yaml"):
        run = open_run(str(tmp_path / form))
        for kind, counted in expected.items():
            names = run.schema(kind).names
            found = shape(kind, run.table(kind, names).to_pylist())
            assert found == counted, (form, kind)
        assert set(run.kinds) == set(expected)
