"""Run a pipeline to a sink: batch, available-now, or for ever; one commit per micro-batch.

    run_batch_job     everything there is, from an empty state to the flush, as batch 0
    start             a streaming query; Spark calls the sink for every micro-batch
    stop_...          how a stream ends without leaving a micro-batch half done

Exactly once: Spark may hand the same micro-batch to the sink again after a crash. The sink knows
it by (query id, batch number) and does not write it twice; see `tidegate.spark.sinks`.

Clock policy: a batch and an available-now run take the wall clock once, when they start, and use
that one time for all shards. A continuous run goes by Spark's processing time.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pyarrow.fs as pafs
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.filesystem import filesystem, read_bytes, write_whole
from tidegate.output.savepoint import read_beginning
from tidegate.spark.batch_writer import BatchWriter
from tidegate.spark.checkpoint import RunNote, check_checkpoint, stages_present, with_checkpoint
from tidegate.spark.columnar.pieces import FOLDER as PIECES
from tidegate.spark.connect import CommitFollower, is_connect
from tidegate.spark.dataflow import Dataflow
from tidegate.spark.failures import failures_in_a_sentence
from tidegate.spark.new_columns import NewColumns
from tidegate.spark.pack import holds_lists
from tidegate.spark.sinks import SinkSettings, claim_output, open_sink
from tidegate.spark.spark_session import (
    CHECKPOINT_FILES,
    limit_list_batches,
    settings_for_now,
    state_store_setting,
)

__all__ = [
    "ClockWatch",
    "Mode",
    "check_output",
    "run_batch_job",
    "settings_of",
    "start",
    "start_followed",
    "stop_between_batches",
    "stop_when_quiet",
]

log = logging.getLogger(__name__)

Mode = Literal["batch", "available-now", "continuous"]
"""How a pipeline runs: once over a batch, over what a stream has now, or until it is stopped."""

BATCH_QUERY = "batch"
"""The name under which a backfill, which has no checkpoint, commits its one batch."""


LOOK_EVERY_S = 0.2
"""Seconds between two looks at the records of a run on Spark Connect: soon for a person, and one
listing of a folder each."""

BEGUN = "begun"
"""A file in the checkpoint of a backfill: the wall time of its first start, in ns since 1970."""

FINISHED = "finished"
"""A file in the checkpoint of a backfill that is over: running it again is refused."""


def run_batch_job(
    pipeline: Dataflow,
    path: str,
    settings: SinkSettings | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    checkpoint: str | None = None,
) -> Commit:
    """Run everything there is, from an empty state to the flush.

    Files that gate 1 reads are a stream that ends: they are taken in micro-batches, so memory is
    bounded, and a run that was killed goes on where it was. Any other input is one batch.

    Args:
        pipeline: A pipeline on a batch DataFrame.
        path: The output, a folder or URI; it must hold no other run.
        settings: The sink; None: Parquet.
        on_commit: Called on the driver after every micro-batch that is whole, with its record.
        checkpoint: Where a backfill keeps how far it has come; None: `path`/_checkpoint.

    Returns:
        The record of the batch, when all of it is written; of several, what they sum up to.

    Raises:
        ConfigError: For a stream, an output that holds another run, or a wrong option.
        RunError: If Spark fails; it names the cause.
    """
    if pipeline.df.isStreaming:
        raise ConfigError("mode", "batch", "needs a batch DataFrame (spark.read, not readStream)")
    settings = settings or SinkSettings()
    if replace(pipeline, log="").no_gate() is None:
        return _run_backfill(pipeline, path, settings, on_commit, checkpoint)
    sink = open_sink(settings, path, pipeline.schemas)
    sink.check_unused()
    _log_arrival(pipeline)
    settings_now = settings_for_now(pipeline.df.sparkSession, settings_of(pipeline))
    claim = claim_output(sink)
    running = threading.Event()
    running.set()
    claim.keep(running.is_set)
    try:
        with failures_in_a_sentence(), settings_now:
            commit = sink.write(pipeline.outcomes, 0, BATCH_QUERY)
    finally:
        running.clear()
        claim.release()
    if on_commit is not None:
        on_commit(commit)
    return commit


def _run_backfill(
    pipeline: Dataflow,
    path: str,
    settings: SinkSettings,
    on_commit: Callable[[Commit], None] | None,
    checkpoint: str | None,
) -> Commit:
    """Run files as a stream that ends with a flush; go on if a run of it was cut off."""
    checkpoint = checkpoint or f"{path}/_checkpoint"
    check_output(pipeline, path, settings, checkpoint)
    commits: list[Commit] = []

    def committed(commit: Commit) -> None:
        commits.append(commit)
        if on_commit is not None:
            on_commit(commit)

    stream = replace(pipeline, ends=True)
    query, finish = start_followed(
        stream, path, checkpoint=checkpoint, on_commit=committed, settings=settings,
        wall_ns=_begun_at(checkpoint),
    )  # fmt: skip
    try:
        while query.isActive:  # see `tidegate.spark.runner`: Ctrl-C inside Java leaves a mess
            time.sleep(0.05)
        with failures_in_a_sentence():
            query.awaitTermination()
    finally:
        query.stop()
    finish()
    fs, root = filesystem(checkpoint, "checkpoint")
    write_whole(fs, f"{root}/{FINISHED}", b"")
    return Commit.total(commits)


def _begun_at(checkpoint: str) -> int:
    """Return the wall time a backfill goes by: that of its first start, however often it was cut
    off, so that it gives what it would have given in one go."""
    fs, root = filesystem(checkpoint, "checkpoint")
    known = read_bytes(fs, f"{root}/{BEGUN}")
    if known is None:
        now = time.time_ns()
        write_whole(fs, f"{root}/{BEGUN}", str(now).encode())
        return now
    if not known.isdigit():
        raise StateError(f"{checkpoint}/{BEGUN} is corrupt: {known[:40]!r}")
    return int(known)


def check_output(
    pipeline: Dataflow, path: str, settings: SinkSettings, checkpoint: str | None = None
) -> None:
    """Raise ConfigError if a batch cannot be written to `path`: it holds another run, or this one,
    finished. One that was cut off and can go on is no reason.
    """
    sink = open_sink(settings, path, pipeline.schemas)
    fs, root = filesystem(checkpoint or f"{path}/_checkpoint", "checkpoint")
    begun = fs.get_file_info(f"{root}/{PIECES}").type == pafs.FileType.Directory
    over = fs.get_file_info(f"{root}/{FINISHED}").type == pafs.FileType.File
    if over or not begun:
        sink.check_unused()


def _check_gate(pipeline: Dataflow, checkpoint: str) -> None:
    """Raise StateError if a checkpoint was made by the other gate: its offsets mean nothing now."""
    fs, root = filesystem(checkpoint, "checkpoint")
    found = fs.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
    offsets = [info.path for info in found if info.base_name.isdigit()]
    if not offsets:
        return
    columns = b'"piece"' in (read_bytes(fs, max(offsets, key=_number_of)) or b"")
    if columns != bool(pipeline.readings):
        before, now = ("by Arrow", "by Spark") if columns else ("by Spark", "by Arrow")
        raise StateError(
            f"the checkpoint {checkpoint} is of a run whose files were read {before}, and now they "
            f"would be read {now} ({pipeline.gate()}); use the options it was made with, or "
            "another output path and checkpoint"
        )


def settings_of(pipeline: Dataflow) -> dict[str, str]:
    """Return the session settings this pipeline should be started with; empty if the session's will
    do.

    They hand rows to Python in short batches where columns hold lists; see `holds_lists`.
    """
    if pipeline.readings:  # no row goes through Java
        return {}
    lists = any(holds_lists(df) for df, _ in pipeline.inputs())
    return limit_list_batches(pipeline.df.sparkSession) if lists else {}


def _log_arrival(pipeline: Dataflow) -> None:
    """Log in which order rows are taken: as a warning where that depends on Spark (the sentence
    then says what changes it), else as information. Warnings of the definition follow.
    """
    rule, gate, *warnings = pipeline.notes()
    log.log(logging.WARNING if "changes" in rule else logging.INFO, rule)
    log.info(gate)
    for warning in warnings:
        log.warning(warning)


def _number_of(path: str) -> int:
    """Return the number that a file is named by."""
    return int(path.rsplit("/", 1)[-1])


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
    """Start a stream into `path`: one query and one state for all tables.

    An available-now run catches up with what was recorded, and how long Spark takes for that says
    nothing about the streams: its clock is fixed at the start, as in a batch job, so that a slow
    machine makes no batch stall and no source idle. Nor is the time between two runs silence, in
    either mode: a stage that waits for a source begins its wait again. What must leave after a time
    at the latest (`AfterTime`, the `max` of adaptive windows, `timeThreshold`) leaves when a run
    starts after that time.

    Session settings that a run needs are put back once the query has started: a query keeps those
    of the moment it was started in.

    Args:
        pipeline: A pipeline on a streaming DataFrame.
        path: The output, a folder or URI.
        checkpoint: Where Spark keeps offsets and state; None: `path`/_checkpoint.
        mode: `available-now` reads what is there and ends; `continuous` runs until it is stopped.
        interval: The least time between micro-batches of a continuous run, as Spark writes it
            (`1 seconds`); None: one follows the other.
        on_commit: Called on the driver after every micro-batch that is whole, with its record.
        name: Of the query, for Spark's user interface.
        settings: The sink; None: Parquet.

    Returns:
        The running query.

    Raises:
        ConfigError: For a batch DataFrame, a wrong option of the sink, or an output that another
            driver is writing to (`SinkSettings.take_over` takes it over).
        StateError: For a checkpoint that is damaged, was made with other shards, or with settings
            that cannot be adopted.
    """
    query, _ = start_followed(
        pipeline, path, checkpoint=checkpoint, mode=mode, interval=interval, on_commit=on_commit,
        name=name, settings=settings,
    )  # fmt: skip
    return query


def start_followed(
    pipeline: Dataflow,
    path: str,
    *,
    checkpoint: str | None = None,
    mode: Mode = "available-now",
    interval: str | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    name: str | None = None,
    settings: SinkSettings | None = None,
    wall_ns: int | None = None,
) -> tuple[StreamingQuery, Callable[[], None]]:
    """Start a stream as `start` does; for callers who count on `on_commit`.

    Args:
        pipeline, path, checkpoint, mode, interval, on_commit, name, settings: See `start`.
        wall_ns: The clock of an available-now run, in ns since 1970; None: the time now.

    Returns:
        The query, and a function to call once it has ended: when that returns, `on_commit` was
        called for every batch. On Spark Connect batches are written on the server, and a thread
        here reads their records.
    """
    if not pipeline.is_stream:
        raise ConfigError("mode", mode, "needs a streaming DataFrame (spark.readStream)")
    checkpoint = checkpoint or f"{path}/_checkpoint"
    check_checkpoint(checkpoint)
    unread = NewColumns(checkpoint, (name for df, _ in pipeline.inputs() for name in df.columns))
    pipeline = replace(pipeline, log=f"{checkpoint}/{PIECES}")
    _check_gate(pipeline, checkpoint)
    spark = pipeline.df.sparkSession
    changed: dict[str, str | None] = {**settings_of(pipeline), **state_store_setting(spark)}
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        # What is best for a local disk is not what Spark chooses for a store it reaches elsewhere.
        changed[CHECKPOINT_FILES] = None
    earlier = CommitLog.at(path).totals()
    present = None
    if earlier.batches:
        present = stages_present(read_beginning(path) | earlier.shards)
    pipeline, notes = with_checkpoint(pipeline, checkpoint, present)
    pipeline = replace(pipeline, flow_name=uuid.uuid4().hex, read_at_once=True)
    for note in notes:
        log.warning("adopting the state: %s", note)
    if mode == "available-now":
        pipeline = replace(pipeline, wall_ns=wall_ns or time.time_ns(), recorded=True)
    _log_arrival(pipeline)

    def committed(commit: Commit) -> None:
        for sentence in unread.look():
            log.warning(sentence)
        if on_commit is not None:
            on_commit(commit)

    settings, payload = settings or SinkSettings(), pipeline.attacher
    sink = open_sink(settings, path, pipeline.schemas, payload)
    observed = pipeline.observed
    claim = claim_output(sink)
    pipeline.note_beginning(path)
    follower = CommitFollower(getattr(sink, "commits", None), committed)
    write = BatchWriter(
        settings.factory(), settings.request(path, pipeline.schemas, payload), checkpoint,
        RunNote.of(pipeline), payload, epoch=getattr(claim, "epoch", None), sink=sink,
        on_commit=committed,
    )  # fmt: skip
    try:
        writer = observed.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", checkpoint)
        if name:
            writer = writer.queryName(name)
        if mode == "available-now":
            writer = writer.trigger(availableNow=True)
        elif interval is not None:
            writer = writer.trigger(processingTime=interval)
        with settings_for_now(spark, changed):
            query = writer.start()
    except BaseException:
        claim.release()
        raise
    claim.keep(lambda: query.isActive)
    if mode == "available-now" and pipeline.needs_timers():
        threading.Thread(target=stop_when_quiet, args=(query,), daemon=True).start()
    if not is_connect(spark):
        return query, lambda: None
    following = threading.Thread(target=_follow, args=(query, follower), daemon=True)
    following.start()
    return query, following.join


def _follow(query: StreamingQuery, follower: CommitFollower) -> None:
    """Report the commits of a query that writes in another process, until it has ended."""
    active = True
    while active:
        time.sleep(LOOK_EVERY_S)
        try:
            active = query.isActive
        except Exception:  # the session is gone, and the query with it
            active = False
        follower.look()


SET_BACK_S = 10.0
"""Seconds by which a clock must be set back for a stream to be started again. Spark waits for as
long before its next micro-batch, and a start costs a few seconds; a clock that is merely adjusted
moves by milliseconds."""


class ClockWatch:
    """Notices that the wall clock of this machine was set back.

    Spark plans the next micro-batch of a run with an interval by that clock: set back by an hour,
    it would begin none for an hour, and say nothing.

    Example:
        >>> watch = ClockWatch()
        >>> watch.set_back_s()
        0.0
    """

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def set_back_s(self) -> float:
        """Return by how many seconds the clock was set back since the last call; 0.0 for less than
        `SET_BACK_S`."""
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        back = before - self._ahead
        return back if back >= SET_BACK_S else 0.0


def stop_between_batches(query: StreamingQuery) -> None:
    """Let the micro-batch that is running end, then stop the query.

    Whoever goes on from the checkpoint then finds nothing half done. Returns when it has stopped. A
    query that waits for its next trigger is stopped at once.
    """
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
    """Return whether any source of a micro-batch moved its offset."""
    return any(source.startOffset != source.endOffset for source in progress.sources)
