"""Run a pipeline to a sink: batch, available-now, or for ever; one commit per micro-batch."""

from __future__ import annotations

import logging
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
from tidegate.spark.dataflow import Dataflow
from tidegate.spark.failures import failures_in_a_sentence
from tidegate.spark.pack import holds_lists
from tidegate.spark.session import CHECKPOINT_FILES, limit_list_batches, settings_for_now
from tidegate.spark.sinks import SinkSettings, open_sink

__all__ = [
    "Mode",
    "run_batch_job",
    "settings_of",
    "start",
    "stop_between_batches",
    "stop_when_quiet",
]

log = logging.getLogger(__name__)

Mode = Literal["batch", "available-now", "continuous"]

BATCH_QUERY = "batch"
"""The name under which a backfill, which has no checkpoint, commits its one batch."""


def run_batch_job(pipeline: Dataflow, path: str, settings: SinkSettings | None = None) -> Commit:
    """Run everything there is, from an empty state to the flush, as one batch; return its record.

    `path` is the output, which must be empty; `settings` the sink, by default Parquet. Raises
    ConfigError for a stream, an output that holds another run, or a wrong option, and RunError with
    the cause if Spark fails.
    """
    if pipeline.df.isStreaming:
        raise ConfigError("mode", "batch", "needs a batch DataFrame (spark.read, not readStream)")
    sink = open_sink(settings or SinkSettings(), path, pipeline.schemas)
    sink.check_unused()
    _log_arrival(pipeline)
    settings_now = settings_for_now(pipeline.df.sparkSession, settings_of(pipeline))
    with failures_in_a_sentence(), settings_now:
        return sink.write(pipeline.outcomes, 0, BATCH_QUERY)


def settings_of(pipeline: Dataflow) -> dict[str, str]:
    """Return the settings that a session should have while this pipeline starts."""
    lists = any(holds_lists(df) for df, _ in pipeline.inputs())
    return limit_list_batches(pipeline.df.sparkSession) if lists else {}


def _log_arrival(pipeline: Dataflow) -> None:
    """Say in which order rows are taken, as a warning where that depends on Spark."""
    rule, *warnings = pipeline.notes()
    log.log(logging.WARNING if "changes" in rule else logging.INFO, rule)
    for warning in warnings:
        log.warning(warning)


def start(
    pipeline: Dataflow,
    path: str,
    *,
    checkpoint: str | None = None,
    mode: Mode = "available-now",
    interval: str | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    name: str | None = None,
    settings: SinkSettings | None = None,
) -> StreamingQuery:
    """Start a stream into `path`: one query and one state for all tables. Returns the query.

    - `checkpoint`: where Spark keeps offsets and state; default `path`/_checkpoint.
    - `mode`: `available-now` reads what is there and ends; `continuous` runs until it is stopped.
    - `interval`: the time between micro-batches of a continuous run, as Spark wants it (`1
      seconds`); unset: one follows the other.
    - `on_commit`: called on the driver after every micro-batch that is whole, with its record.
    - `name`: of the query, for Spark's user interface. `settings`: the sink, by default Parquet.

    Settings of the session that a run needs are put back once the query has started. Raises
    ConfigError for a batch DataFrame, StateError for a checkpoint that cannot be used.

    An available-now run catches up with what was recorded, and how long Spark takes for that says
    nothing about the streams: its clock stands still, as in a batch job, so that a slow machine
    makes no batch stall and no source idle. Nor does the time between two runs, of either mode:
    a stage that waits by the clock starts its wait anew.
    """
    if not pipeline.df.isStreaming:
        raise ConfigError("mode", mode, "needs a streaming DataFrame (spark.readStream)")
    checkpoint = checkpoint or f"{path}/_checkpoint"
    check_checkpoint(checkpoint)
    changed: dict[str, str | None] = {**settings_of(pipeline)}
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        # What is best for a local disk is not what Spark chooses for a store it reaches elsewhere.
        changed[CHECKPOINT_FILES] = None
    pipeline = replace(with_shards_of(pipeline, checkpoint), flow_name=uuid.uuid4().hex)
    if mode == "available-now":
        pipeline = replace(pipeline, wall_ns=time.time_ns(), recorded=True)
    _log_arrival(pipeline)
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
    with settings_for_now(pipeline.df.sparkSession, changed):
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
