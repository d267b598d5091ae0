"""Run a definition with a progress bar, and say what came out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidegate.core.time import format_duration, format_time, parse_duration
from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.output.filesystem import filesystem, write_whole
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.formats import sink_path
from tidegate.pipeline.run_record import RECORD, record_text
from tidegate.spark.dataflow import HIGHEST
from tidegate.spark.failures import failures_in_a_sentence
from tidegate.spark.frames import Frames
from tidegate.spark.open import check_sources, open_pipeline, session_for
from tidegate.spark.query import run_batch_job, start, stop_between_batches
from tidegate.spark.session import log_file
from tidegate.spark.sinks import SinkSettings, open_sink

__all__ = [
    "OpenRun",
    "Summary",
    "open_definition",
    "print_summary",
    "run_definition",
    "run_frames",
    "run_opened",
    "write_record",
]


@dataclass
class Summary:
    """What a run did, from its commits."""

    out: str
    seconds: float = 0.0
    batches: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    shards: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, commit: Commit) -> None:
        self.batches += 1
        for kind, rows in commit.rows.items():
            self.rows[kind] = self.rows.get(kind, 0) + rows
        if commit.watermark_ns is not None:
            self.watermark_ns = max(self.watermark_ns or commit.watermark_ns, commit.watermark_ns)
        self.shards |= commit.shards

    def __add__(self, later: Summary) -> Summary:
        """This run and the one after it, into the same place."""
        both = Summary(self.out, self.seconds + later.seconds, self.batches + later.batches)
        for kind in {**self.rows, **later.rows}:
            both.rows[kind] = self.rows.get(kind, 0) + later.rows.get(kind, 0)
        both.watermark_ns = self.watermark_ns if later.watermark_ns is None else later.watermark_ns
        both.shards = {**self.shards, **later.shards}
        return both

    def total(self, metric: str) -> int:
        """A metric over all shards, as each last reported it."""
        return sum(metrics.get(metric, 0) for metrics in self.shards.values())

    def highest(self, metric: str) -> int:
        return max((metrics.get(metric, 0) for metrics in self.shards.values()), default=0)

    @property
    def rows_in(self) -> int:
        return self.total("rows_in")

    @property
    def held(self) -> int:
        return self.total("eventtime_watermark.rows_held")

    @property
    def in_order(self) -> int:
        """Rows the event-time stage has handed on, in order."""
        refused = self.rows.get("late", 0) + self.rows.get("error", 0)
        return self.rows_in - refused - self.held

    @property
    def rows_per_second(self) -> float:
        return self.rows_in / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        metrics = sorted({name for metrics in self.shards.values() for name in metrics})
        return {
            "out": self.out,
            "seconds": round(self.seconds, 3),
            "batches": self.batches,
            "rows_in": self.rows_in,
            "rows": self.rows,
            "in_order": self.in_order,
            "held": self.held,
            "watermark_ns": self.watermark_ns,
            "rows_per_second": round(self.rows_per_second),
            "metrics": {
                name: self.highest(name) if name.rpartition(".")[2] in HIGHEST else self.total(name)
                for name in metrics
            },
        }


@dataclass(frozen=True)
class OpenRun:
    """A definition that has been checked against its sources and its sink: ready to start."""

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
    definition: PipelineDefinition, *, master: str | None = None, out: str | None = None
) -> OpenRun:
    """Everything that can be wrong before a row is read is said here."""
    with definition.located():
        return _open(definition, master, out)


def _open(definition: PipelineDefinition, master: str | None, out: str | None) -> OpenRun:
    path = out or (definition.sink.path if definition.sink else None)
    if path is None:
        raise ConfigError("sink.path", None, "is required to run a pipeline (or give --out)")
    path = sink_path(path)
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
) -> Summary:
    """Run a definition to its end (batch, available_now) or until it is stopped."""
    opened = open_definition(definition, master=master, out=out)
    return run_opened(opened, console or Console(stderr=True))


def run_opened(
    opened: OpenRun, console: Console, until: Callable[[Summary], bool] | None = None
) -> Summary:
    """Run it; `until` is asked ten times a second and stops a stream between micro-batches."""
    with opened.definition.located():
        sink = open_sink(opened.settings, opened.path, opened.frames.schemas)
        if opened.definition.options.mode == "batch":
            # before the record is written: what lies there belongs to the run that wrote it
            sink.check_unused()
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
    """Write down beside the tables what ran."""
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
    """Run frames into `path` with a progress bar; `expected` input rows make it a percentage."""
    summary = Summary(path)
    began = time.perf_counter()
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Spark", total=expected, note="")

        def show(commit: Commit) -> None:
            summary.add(commit)
            took = time.perf_counter() - began
            note = (
                f"{summary.rows_in:,} rows, {summary.rows_in / took:,.0f}/s, "
                f"late {summary.rows.get('late', 0):,}, errors {summary.rows.get('error', 0):,}, "
                f"watermark {format_time(summary.watermark_ns)}"
            )
            bar.update(task, description="running", completed=summary.rows_in, note=note)

        if pipeline.df.isStreaming:
            query = start(
                pipeline,
                path,
                checkpoint=checkpoint,
                mode="available-now" if available_now else "continuous",
                interval=interval,
                on_commit=show,
                settings=settings,
            )
            try:
                # Wait here, not in Java: Ctrl-C in the middle of a call to it leaves a broken
                # connection and pages of its log.
                while query.isActive:
                    if until is not None and until(summary):
                        stop_between_batches(query)
                    time.sleep(0.1)
                with failures_in_a_sentence():
                    query.awaitTermination()  # raises what stopped it
            finally:
                query.stop()
        else:
            spark = pipeline.df.sparkSession
            _watched(spark, lambda: show(run_batch_job(pipeline, path, settings)), bar, task)
    summary.seconds = time.perf_counter() - began
    return summary


def _watched(spark: SparkSession, job: Callable[[], None], bar: Progress, task: Any) -> None:
    """Run a batch job while the bar follows the tasks of its stages."""
    done = threading.Event()

    def follow() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(0.3):
            stages = [s for i in tracker.getActiveStageIds() if (s := tracker.getStageInfo(i))]
            total = sum(stage.numTasks for stage in stages)
            if total:
                finished = sum(stage.numCompletedTasks for stage in stages)
                bar.update(
                    task, description="running", total=total, completed=finished,
                    note=f"{finished} of {total} tasks",
                )  # fmt: skip

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        job()
    finally:
        done.set()
        follower.join()


def print_summary(summary: Summary, console: Console) -> None:
    """The table at the end of a run."""
    table = Table(title="what came out", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("rows in", f"{summary.rows_in:,}")
    table.add_row("  in order", f"{summary.in_order:,}")
    table.add_row("  late", f"{summary.rows.get('late', 0):,}")
    table.add_row("  errors", f"{summary.rows.get('error', 0):,}")
    table.add_row("  held back in the state", f"{summary.held:,}")
    for kind, rows in sorted(summary.rows.items()):
        if kind not in ("late", "error"):
            table.add_row(f"rows out: {kind}", f"{rows:,}")
    table.add_row("keys", f"{summary.total('keys'):,}")
    lateness = summary.highest("eventtime_watermark.max_lateness")
    if lateness:
        table.add_row("latest by", format_duration(lateness // 10**6 * 10**6))
    table.add_row("watermark", format_time(summary.watermark_ns))
    table.add_row("rows per second", f"{summary.rows_per_second:,.0f}")
    table.add_row("micro-batches", f"{summary.batches}")
    console.print(table)
    console.print(
        f"tables ({', '.join(sorted(summary.rows))}) lie in [bold]{summary.out}[/]", soft_wrap=True
    )
