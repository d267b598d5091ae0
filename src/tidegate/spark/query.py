"""Run a pipeline to a sink: batch, available-now, or for ever; one commit per micro-batch."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.spark.checkpoint import check_checkpoint, with_shards_of
from tidegate.spark.frames import Frames
from tidegate.spark.session import CHECKPOINT_FILES
from tidegate.spark.sinks import SinkSettings, open_sink

__all__ = [
    "Mode",
    "run_batch_job",
    "start",
    "stop_between_batches",
    "stop_when_quiet",
]

Mode = Literal["batch", "available-now", "continuous"]

BATCH_QUERY = "batch"
"""The name under which a backfill, which has no checkpoint, commits its one batch."""


def run_batch_job(pipeline: Frames, path: str, settings: SinkSettings | None = None) -> Commit:
    """Everything there is, from an empty state to the flush, as one batch."""
    if pipeline.df.isStreaming:
        raise ConfigError("mode", "batch", "needs a batch DataFrame (spark.read, not readStream)")
    sink = open_sink(settings or SinkSettings(), path, pipeline.schemas)
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
    settings: SinkSettings | None = None,
) -> StreamingQuery:
    """Start a stream into `path`; the checkpoint lies in it unless told otherwise.

    `on_commit` is called on the driver after every micro-batch that is whole.

    An available-now run catches up with what was recorded, and how long Spark takes for that says
    nothing about the streams: its clock stands still, as in a batch job, so that a slow machine
    makes no batch stall and no source idle. Nor does the time between two runs, of either mode:
    a stage that waits by the clock starts its wait anew.
    """
    if not pipeline.df.isStreaming:
        raise ConfigError("mode", mode, "needs a streaming DataFrame (spark.readStream)")
    checkpoint = checkpoint or f"{path}/_checkpoint"
    check_checkpoint(checkpoint)
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        # What is best for a local disk is not what Spark chooses for a store it reaches elsewhere.
        pipeline.df.sparkSession.conf.unset(CHECKPOINT_FILES)
    pipeline = replace(with_shards_of(pipeline, checkpoint), flow_name=uuid.uuid4().hex)
    if mode == "available-now":
        pipeline = replace(pipeline, wall_ns=time.time_ns())
    sink = open_sink(settings or SinkSettings(), path, pipeline.schemas)

    def write(outcomes: DataFrame, batch: int) -> None:
        query = outcomes.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        commit = sink.write(outcomes, batch, query or "")
        if on_commit is not None:
            on_commit(commit)

    writer = pipeline.observed.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint)
    if name:
        writer = writer.queryName(name)
    if mode == "available-now":
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=interval)
    query = writer.start()
    if mode == "available-now" and pipeline.needs_timers():
        threading.Thread(target=stop_when_quiet, args=(query,), daemon=True).start()
    return query


def stop_between_batches(query: StreamingQuery) -> None:
    """Let the micro-batch that is running end, then stop: whoever goes on from the checkpoint
    finds nothing half done."""
    last = query.lastProgress
    before = -1 if last is None else last.batchId
    while query.isActive and query.status["isTriggerActive"]:
        last = query.lastProgress
        if last is not None and last.batchId > before:
            break
        time.sleep(0.02)
    query.stop()


def stop_when_quiet(query: StreamingQuery) -> None:
    """End an available-now run of a pipeline that has timers.

    Spark runs empty micro-batches for as long as a processing-time timer might be set, which is for
    ever; so the run is stopped after the first one that read nothing new. The first of the run does
    not count: it may be one again that an earlier stop cut off, with the news still to come.
    """
    first: int | None = None
    while query.isActive:
        for progress in query.recentProgress:
            if first is None:
                first = progress.batchId
            elif progress.batchId > first and not _read_anything(progress):
                query.stop()
                return
        time.sleep(0.1)


def _read_anything(progress: StreamingQueryProgress) -> bool:
    return any(source.startOffset != source.endOffset for source in progress.sources)
