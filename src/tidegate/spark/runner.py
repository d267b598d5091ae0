"""Run a definition: check it against its sources and its sink, then run it to its end.

    open_definition    everything that can be found wrong before a row is read
    run_opened         write the record of the run beside the tables, then run
    run_frames         the same for frames that were made without a definition

Ctrl-C stops a stream; running the same command again goes on from the last commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from tidegate.core.chain import Chain
from tidegate.core.time import parse_duration
from tidegate.errors import ConfigError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Epochs
from tidegate.output.filesystem import filesystem, write_whole
from tidegate.output.savepoint import read_beginning
from tidegate.output.summary import Summary
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.formats import sink_path
from tidegate.pipeline.run_record import RECORD, record_text
from tidegate.spark.failures import failures_in_a_sentence
from tidegate.spark.frames_api import Frames
from tidegate.spark.open import check_sources, open_pipeline, session_for
from tidegate.spark.progress import progress_bar
from tidegate.spark.query import (
    ClockWatch,
    check_output,
    run_batch_job,
    start_followed,
    stop_between_batches,
)
from tidegate.spark.sinks import SinkSettings, check_output_is_free, open_sink
from tidegate.spark.spark_session import log_file

__all__ = [
    "OpenRun",
    "open_definition",
    "run_definition",
    "run_frames",
    "run_opened",
    "write_record",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A definition that has been checked against its sources and its sink: ready to start.

    Args:
        definition: What was checked.
        path: The output, a folder or URI.
        frames: The pipeline on its opened sources.
        settings: The sink.
        checkpoint: Where a stream keeps its state; None: `path`/_checkpoint.
    """

    definition: PipelineDefinition
    path: str
    frames: Frames
    settings: SinkSettings
    checkpoint: str | None = None

    @property
    def interval(self) -> str | None:
        """The time between micro-batches as Spark wants it; None for a run that ends."""
        trigger = self.definition.options.trigger
        if trigger in (None, "available_now"):
            return None
        return f"{parse_duration(trigger) // 10**6} milliseconds"


def open_definition(
    definition: PipelineDefinition,
    *,
    master: str | None = None,
    out: str | None = None,
    take_over: bool = False,
    check_lease: bool = True,
) -> OpenRun:
    """Check a definition against its sources and its sink; nothing has run when this returns.

    Args:
        definition: The pipeline.
        master: A Spark master; None: local mode.
        out: Where tables go, instead of `sink.path`.
        take_over: Take the output over from another driver that holds the lease on it.
        check_lease: Refuse an output that another run writes to before Spark starts. False for an
            edit of the definition that runs: the output is ours.

    Raises:
        ConfigError: With the line of the file, for everything that can be found wrong before a row
            is read.
    """
    with definition.located():
        path = _output_of(definition, out)
        if check_lease:
            Epochs.at(path, "sink.path").check_free(take_over=take_over)
        opened = _open(definition, master, path)
    return replace(opened, settings=replace(opened.settings, take_over=take_over))


def _output_of(definition: PipelineDefinition, out: str | None) -> str:
    """Return where the tables of a definition go."""
    path = out or (definition.sink.path if definition.sink else None)
    if path is None:
        raise ConfigError("sink.path", None, "is required to run a pipeline (or give --out)")
    return sink_path(path)


def _open(definition: PipelineDefinition, master: str | None, path: str) -> OpenRun:
    """Do the work of `open_definition`, which adds the line of the file to errors."""
    checkpoint = definition.options.checkpoint
    if checkpoint is not None:
        checkpoint = sink_path(checkpoint, "options.checkpoint")
    settings = SinkSettings.of(definition.sink, definition.streams)
    check_sources(definition)
    streaming = definition.options.mode == "streaming"
    _, pipeline = open_pipeline(
        session_for(definition, master, log_file()),
        definition,
        streaming=streaming,
        control=f"{path}/_control" if streaming else None,
    )
    return OpenRun(definition, path, pipeline, settings, checkpoint)


def run_definition(
    definition: PipelineDefinition,
    *,
    master: str | None = None,
    out: str | None = None,
    console: Console | None = None,
    take_over: bool = False,
) -> Summary:
    """Run a definition to its end (batch, available_now) or until it is stopped.

    `master`, `out` and `take_over`: see `open_definition`; `console`: where the progress bar is
    shown, by default standard error. Returns what came out. Raises ConfigError, StateError, or
    RunError.
    """
    opened = open_definition(definition, master=master, out=out, take_over=take_over)
    return run_opened(opened, console or Console(stderr=True))


def run_opened(
    opened: OpenRun, console: Console, until: Callable[[Summary], bool] | None = None
) -> Summary:
    """Run it to its end, or until it is stopped.

    Args:
        opened: What `open_definition` returned.
        console: Where the progress bar is shown.
        until: Called ten times a second with the summary so far; True stops a stream between two
            micro-batches. None: nothing does.
    """
    with opened.definition.located():
        if opened.definition.options.mode == "batch":
            # before the record is written: what is there belongs to the run that wrote it
            check_output(opened.frames, opened.path, opened.settings)
        sink = open_sink(opened.settings, opened.path, opened.frames.schemas)
        check_output_is_free(sink)
    write_record(opened.path, opened.definition)
    return run_frames(
        opened.frames,
        opened.path,
        console=console,
        checkpoint=opened.checkpoint,
        available_now=opened.interval is None,
        interval=opened.interval,
        settings=opened.settings,
        until=until,
    )


def write_record(path: str, definition: PipelineDefinition) -> None:
    """Write the definition beside the tables, for whoever looks at them later."""
    fs, root = filesystem(path)
    write_whole(fs, f"{root}/{RECORD}", record_text(definition).encode())


def run_frames(
    pipeline: Frames,
    path: str,
    *,
    console: Console,
    checkpoint: str | None = None,
    available_now: bool = True,
    interval: str | None = None,
    expected: int | None = None,
    settings: SinkSettings | None = None,
    until: Callable[[Summary], bool] | None = None,
) -> Summary:
    """Run frames into `path` with a progress bar; return what came out.

    - `checkpoint`, `interval`, `settings`: see `tidegate.spark.query.start`.
    - `available_now`: whether a stream ends when it has read what is there.
    - `expected`: input rows, if known; they make the bar a percentage.
    - `until`: asked ten times a second; True stops a stream between two micro-batches.
    """
    summary = Summary(path, expected=Chain(pipeline.stages).expected_names())
    earlier = CommitLog.at(path).totals()
    summary.begin_with(earlier.shards)
    began = time.perf_counter()
    with progress_bar(console, expected) as bar:
        first: list[tuple[int, float]] = []

        def show(commit: Commit) -> None:
            if not summary.batches and not earlier.batches:
                summary.begin_with(read_beginning(path))
            summary.add(commit)
            now = time.perf_counter() - began
            if not first:
                first.append((summary.rows_in, now))
            summary.steady = (summary.rows_in - first[0][0], now - first[0][1])
            bar.show(summary, now)

        if pipeline.df.isStreaming:

            def begin() -> tuple[StreamingQuery, Callable[[], None]]:
                return start_followed(
                    pipeline,
                    path,
                    checkpoint=checkpoint,
                    mode="available-now" if available_now else "continuous",
                    interval=interval,
                    on_commit=show,
                    settings=settings,
                )

            query, finish = begin()
            clock = ClockWatch()
            try:
                # Wait here, not in Java: Ctrl-C in the middle of a call to it leaves a broken
                # connection and pages of its log.
                while query.isActive:
                    if until is not None and until(summary):
                        stop_between_batches(query)
                    elif interval is not None and (back := clock.set_back_s()):
                        log.warning(
                            "the clock was set back by %.0f s: Spark would begin no micro-batch "
                            "for as long, so the stream is started again from its last commit", back
                        )  # fmt: skip
                        stop_between_batches(query)
                        with failures_in_a_sentence():
                            query.awaitTermination()
                        finish()
                        query, finish = begin()
                    time.sleep(0.1)
                with failures_in_a_sentence():
                    query.awaitTermination()  # raises what stopped it
            finally:
                query.stop()
            finish()
        else:
            with bar.following(pipeline.df.sparkSession):
                run_batch_job(pipeline, path, settings, show, checkpoint)
    summary.seconds = time.perf_counter() - began
    return summary
