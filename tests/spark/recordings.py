"""A recording as files, and the pipeline most tests run over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidegate.spark import Frames, frames
from tidegate.spark.control_rows import control_schema
from tidegate.testing.fleet import Facts


@dataclass(frozen=True)
class Recording:
    """A fleet's messages in order of arrival, as one table and as the files of a folder."""

    table: pa.Table
    folder: Path
    files: int
    facts: Facts

    @property
    def slices(self) -> list[pa.Table]:
        return cut(self.table, self.files)


def cut(table: pa.Table, files: int) -> list[pa.Table]:
    """A table as `files` tables of about the same length."""
    step = -(-table.num_rows // files)
    return [table.slice(number * step, step) for number in range(files)]


def ordered(df: DataFrame, late_tolerance: str = "200 ms", **options: Any) -> Frames:
    """Rows of a fleet in order of event time."""
    options = {"key": "vehicle", "time": "stamp", "arrival": "log_time"} | options
    return frames(df, **options).event_time(
        "unixtimestamp_ns", late_tolerance, max_future_skew="1 h"
    )


def stream_of(spark: SparkSession, folder: Path, files: int = 1) -> DataFrame:
    """The files of a folder as a stream, so many per micro-batch."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))


def with_control(spark: SparkSession, pipeline: Frames, folder: Path) -> Frames:
    """The pipeline, listening to control rows in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = spark.readStream.schema(control_schema(pipeline.df.schema, pipeline.keys))
    return replace(pipeline, control=rows.json(str(folder)))
