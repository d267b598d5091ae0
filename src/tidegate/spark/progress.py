"""A run on the terminal: a bar while it goes on, and what came out at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tidegate.core.text import plural, span
from tidegate.core.time import format_time
from tidegate.output.summary import END, RELEASE, Summary
from tidegate.spark.connect import is_connect

__all__ = ["ProgressBar", "print_summary", "progress_bar"]

LOOK_EVERY_S = 0.3
"""Between two looks at Spark's tasks: soon for a person, nothing for the machine."""


@contextmanager
def progress_bar(console: Console, expected: int | None) -> Iterator[ProgressBar]:
    """Show a bar while the block runs. `expected`: input rows, if known; they make it a share."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield ProgressBar(progress, progress.add_task("starting Spark", total=expected, note=""))


class ProgressBar:
    """The bar of one run.

    Args:
        progress: The display it belongs to.
        task: Its task in that display.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def show(self, summary: Summary, seconds: float) -> None:
        """Show how far a run has come.

        Args:
            summary: What has been committed so far.
            seconds: Wall time since the start; more than 0.
        """
        note = (
            f"{plural(summary.rows_in, 'row')}, {summary.rows_in / seconds:,.0f}/s, "
            f"late {summary.late:,}, errors {summary.errors:,}, "
            f"watermark {format_time(summary.watermark_ns)}"
        )
        self._progress.update(
            self._task, description="running", completed=summary.rows_in, note=note
        )

    @contextmanager
    def following(self, spark: SparkSession) -> Iterator[None]:
        """Let the bar follow the tasks of Spark's stages while the block runs a batch job.

        A batch has one commit, at its end: until then tasks are all there is to see. A thread asks
        Spark for them, and has ended when the block has.
        """
        done = threading.Event()

        def follow() -> None:
            if is_connect(spark):  # a client cannot see tasks
                return
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(LOOK_EVERY_S):
                stages = [s for i in tracker.getActiveStageIds() if (s := tracker.getStageInfo(i))]
                total = sum(stage.numTasks for stage in stages)
                if total:
                    finished = sum(stage.numCompletedTasks for stage in stages)
                    self._progress.update(
                        self._task, description="running", total=total, completed=finished,
                        note=f"{finished} of {total} tasks",
                    )  # fmt: skip

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()


def print_summary(summary: Summary, console: Console) -> None:
    """Print what a run did: where every row is, then what came out, then where time stands."""
    table = Table(title="what came out", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("rows in", f"{summary.rows_in:,}")
    if summary.held_before:
        table.add_row("held from before", f"{summary.held_before:,}")
    places = [
        ("used in results", summary.used), ("late", summary.late), ("errors", summary.errors),
        ("dropped, with a reason", summary.dropped),
        ("discarded by a quick end", summary.discarded), ("held", summary.held),
    ]  # fmt: skip
    for name, rows in places:
        if rows or name in ("used in results", "late", "errors", "held"):
            table.add_row(f"  {name}", f"{rows:,}")
    for stage, rows in summary.held_by.items():
        table.add_row(f"    by {stage}", f"{rows:,}")
    table.add_row("rows in order", f"{summary.in_order:,}")
    for kind, rows in sorted(summary.rows.items()):
        if kind not in ("late", "error", "dropped"):
            table.add_row(f"rows out: {kind}", f"{rows:,}")
    table.add_row("keys", f"{summary.total('keys'):,}")
    lateness = summary.highest("eventtime_watermark.max_lateness")
    if lateness:
        table.add_row("latest by", span(lateness))
    table.add_row("watermark, highest", format_time(summary.watermark_ns))
    if summary.total("keys") > 1 and summary.lowest_watermark_ns is not None:
        table.add_row("watermark, median", format_time(summary.median_watermark_ns))
        table.add_row("watermark, lowest", format_time(summary.lowest_watermark_ns))
        for one in summary.furthest_behind(3):
            if one.lag_ns:
                table.add_row(f"  {one.key} is behind by", span(one.lag_ns))
    table.add_row("rows per second, start included", f"{summary.rows_per_second:,.0f}")
    if summary.steady_rows_per_second is not None:
        table.add_row("rows per second, once started", f"{summary.steady_rows_per_second:,.0f}")
    table.add_row("micro-batches", f"{summary.batches}")
    console.print(table)
    for warning in summary.warnings():
        console.print(f"[bold yellow]{escape(warning)}[/]", soft_wrap=True, highlight=False)
    for stage in summary.held_by:
        console.print(
            f"{stage} holds rows: {_release(stage)}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    if summary.held_by:
        console.print(f"({END})", soft_wrap=True, highlight=False)
    console.print(
        f"tables ({', '.join(sorted(summary.rows))}) are in [bold]{summary.out}[/]", soft_wrap=True
    )


def _release(label: str) -> str:
    """How a stage lets go of what it holds; the second window is called `window_2`."""
    name = label.rstrip("0123456789").removesuffix("_")
    return RELEASE.get(label) or RELEASE.get(name, "an end releases it")
