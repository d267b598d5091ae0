"""Run a pipeline to a sink: batch, available-now, or for ever; one commit per micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import ConfigError
from tidegate.spark.frames import Frames
from tidegate.spark.sink import Commit, ParquetSink

__all__ = ["Mode", "run_batch_job", "start"]

Mode = Literal["batch", "available-now", "continuous"]

BATCH_QUERY = "batch"
"""The name under which a backfill, which has no checkpoint, commits its one batch."""


def run_batch_job(pipeline: Frames, path: str) -> Commit:
    """Everything there is, from an empty state to the flush, as one batch."""
    if pipeline.df.isStreaming:
        raise ConfigError("mode", "batch", "needs a batch DataFrame (spark.read, not readStream)")
    sink = ParquetSink(path, pipeline.schemas)
    sink.check_unused()
    return sink.write(pipeline.outcomes, 0, BATCH_QUERY)


def start(
    pipeline: Frames,
    path: str,
    *,
    checkpoint: str | None = None,
    mode: Mode = "available-now",
    interval: str | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    name: str | None = None,
) -> StreamingQuery:
    """Start a stream into `path`; the checkpoint lies in it unless told otherwise.

    `on_commit` is called on the driver after every micro-batch that is whole.
    """
    if not pipeline.df.isStreaming:
        raise ConfigError("mode", mode, "needs a streaming DataFrame (spark.readStream)")
    sink = ParquetSink(path, pipeline.schemas)

    def write(outcomes: DataFrame, batch: int) -> None:
        query = outcomes.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        commit = sink.write(outcomes, batch, query or "")
        if on_commit is not None:
            on_commit(commit)

    writer = pipeline.observed.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint or f"{path}/_checkpoint")
    if name:
        writer = writer.queryName(name)
    if mode == "available-now":
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=interval)
    return writer.start()
