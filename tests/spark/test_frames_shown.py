"""Frames in a notebook: the plan and the tables, and no job for it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark.outcomes import add_file
from spark.recordings import Recording
from tidegate.report.notebook import show
from tidegate.spark import frames
from tidegate.spark.query import run_batch_job


def test_a_plan_is_shown_and_nothing_runs(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    add_file(recording.slices[0], tmp_path / "in", 0)
    df = spark.read.schema(spark.read.parquet(str(tmp_path / "in")).schema).parquet(
        str(tmp_path / "in")
    )
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    pipeline = (
        frames(df, key="vehicle", time="stamp", topic="topic", arrival="log_time")
        .event_time("unixtimestamp_ns", late_tolerance="200 ms")
        .synchronize(["camera", "lidar"])
    )
    html = pipeline._repr_html_()
    assert set(tracker.getJobIdsForGroup(None)) == before
    assert "a batch" in html
    assert "late_tolerance=200000000" in html
    assert "synchronize" in html
    assert "spread_ns: int64" in html
    assert "nothing has been computed" in html

    # what it wrote, once it has been run, is shown by its path
    run_batch_job(pipeline, str(tmp_path / "out"))
    assert set(tracker.getJobIdsForGroup(None)) > before
    shown = show(tmp_path / "out")
    assert shown.counts["data"] > 0
    assert "<svg" in shown.html
    assert "camera" in shown.html
