"""Runs on Spark add up: every row that came in is in a file, or held; see `tidegate audit`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.outcomes import run_now
from spark.recordings import Recording, ordered, stream_of
from tidegate.output.audit import audit_run
from tidegate.spark.query import run_batch_job
from tidegate.spark.sinks import SinkSettings


@pytest.mark.parametrize("form", ["parquet", "delta", "mcap"])
def test_a_backfill_adds_up(
    spark: SparkSession, recording: Recording, tmp_path: Path, form: str
) -> None:
    frames = ordered(spark.read.parquet(str(recording.folder)))
    run_batch_job(frames, str(tmp_path / "out"), SinkSettings(form))
    report = audit_run(str(tmp_path / "out"))
    assert report.passed, report.failures
    assert not report.held
    assert not report.unaudited
    assert report.tallies["in"].rows == recording.table.num_rows
    assert report.tallies["error"].rows
    assert report.tallies["late"].rows


def test_a_stream_adds_up(spark: SparkSession, recording: Recording, tmp_path: Path) -> None:
    frames = ordered(stream_of(spark, recording.folder, files=2))
    run_now(frames, tmp_path / "out")
    report = audit_run(str(tmp_path / "out"))
    assert report.passed, report.failures
    assert report.tallies["in"].rows == recording.table.num_rows
    assert not report.unaudited
