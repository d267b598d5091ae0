"""Run a pipeline to a sink: batch, available-now, or for ever; one commit per micro-batch."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pyarrow.fs as pafs
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import ConfigError, StateError
from tidegate.spark.frames import Frames
from tidegate.spark.session import CHECKPOINT_FILES
from tidegate.spark.sink import Commit, filesystem
from tidegate.spark.sinks import SinkSettings, open_sink
from tidegate.spark.stateful_step import check_shards

__all__ = [
    "Mode",
    "check_checkpoint",
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
    pipeline = replace(_with_shards_of(pipeline, checkpoint), flow_name=uuid.uuid4().hex)
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


def check_checkpoint(checkpoint: str) -> None:
    """Refuse a checkpoint that no longer says which query it belongs to.

    Spark would end in a Java stack if its file is damaged, and begin a query of another name if it
    is lost: what the sink has of the last batch would then be written again.
    """
    fs, root = filesystem(checkpoint)
    file = f"{root}/metadata"
    if fs.get_file_info(file).type == pafs.FileType.NotFound:
        offsets = fs.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
        if any(info.base_name.isdigit() for info in offsets):
            raise StateError(
                f"{file} is lost, which says whose checkpoint this is; put it back, or use another "
                "output path and checkpoint"
            )
        return
    with fs.open_input_stream(file) as stream:
        text = stream.read().decode(errors="replace")
    try:
        uuid.UUID(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{file} is corrupt: {text[:80]!r}") from error


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


def _with_shards_of(pipeline: Frames, checkpoint: str) -> Frames:
    """The pipeline with as many shards as its checkpoint was made with, wherever it runs now.

    Unset, their number follows the cores of the machine. On another machine keys would go to other
    shards than their state, and what is held there would never come out.
    """
    fs, root = filesystem(checkpoint)
    file = f"{root}/tidegate.json"
    if fs.get_file_info(file).type != pafs.FileType.NotFound:
        with fs.open_input_stream(file) as stream:
            text = stream.read().decode(errors="replace")
        try:
            made = json.loads(text)
            shards, partitions = int(made["shards"]), int(made["partitions"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{file} is corrupt: {text[:80]!r}") from error
        check_shards(shards, pipeline.shards or shards, f"the checkpoint {checkpoint}")
        return replace(pipeline, shards=shards, partitions=partitions)
    shards, partitions = pipeline.shard_count, pipeline.partition_count
    fs.create_dir(root)
    with fs.open_output_stream(f"{file}.tmp") as stream:
        stream.write(json.dumps({"shards": shards, "partitions": partitions}).encode())
    fs.move(f"{file}.tmp", file)
    return replace(pipeline, shards=shards, partitions=partitions)
