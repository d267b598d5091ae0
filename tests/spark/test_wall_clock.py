"""The wall clock steps back while a stream runs: what waits by it begins its wait again, and the
stream does not wait with it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark.outcomes import assert_same, in_process, written
from spark.recordings import Recording, ordered, stream_of
from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.errors import StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.epochs import Epochs
from tidegate.spark.arrival import Packed
from tidegate.spark.pack import to_blob
from tidegate.spark.query import ClockWatch, _begun_at
from tidegate.spark.runner import run_frames
from tidegate.spark.stateful_step import (
    METRIC,
    METRIC_AGAIN,
    FlowRecipe,
    RunningStep,
    StepSettings,
)

HOUR_MS = 3_600_000
NOON_MS = 12 * HOUR_MS


class Timers:
    """Spark's handle of a processor, as far as a step uses it."""

    def __init__(self) -> None:
        self.due: list[int] = []

    def listTimers(self) -> Iterator[int]:  # noqa: N802  (Spark's name)
        return iter(list(self.due))

    def deleteTimer(self, due: int) -> None:  # noqa: N802
        self.due.remove(due)

    def registerTimer(self, due: int) -> None:  # noqa: N802
        self.due.append(due)


class Pages(dict[int, bytes]):
    """The map state of a shard."""

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802
        return (self[key[0]],) if key[0] in self else None

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        self[key[0]] = value[0]

    def iterator(self) -> Iterator[tuple[tuple[int], tuple[bytes]]]:
        return (((page,), (blob,)) for page, blob in self.items())


class Step:
    """One shard of a stream with two sources, one of which may fall silent for 10 s."""

    def __init__(self, name: str, **options: Any) -> None:
        self.timers = Timers()
        stage = EventtimeWatermark("1 s", watermark_per="tuple", source="source",
                                   idle_timeout="10 s")  # fmt: skip
        recipe = FlowRecipe(lambda: Flow((stage,), key="car", timed=True, **options))
        settings = StepSettings(recipe, name, timers=True, shards=1)
        self.step = RunningStep(settings, cast(Any, self.timers), cast(Any, Pages()))
        self.number = 0

    def rows(self, now_ms: int, *sent: tuple[str, int]) -> list[dict[str, Any]]:
        """Run rows of these sources and seconds of event time at a wall time."""
        sources, times = zip(*sent, strict=True)
        rows = pa.record_batch(
            {"car": ["a"] * len(sent), "source": sources,
             TIME: pa.array([second * 10**9 for second in times], pa.int64())}
        )  # fmt: skip
        self.number += 1
        packed = Packed("data", 0, 0, self.number, f"{self.number}", 0, to_blob(rows).as_py())
        return list(self.step.rows(0, iter([packed]), now_ms))

    def kinds(self, made: list[dict[str, Any]]) -> set[str]:
        return {row["kind"] for row in made} - {METRIC, METRIC_AGAIN}


def test_a_source_is_waited_for_no_longer_than_its_timeout() -> None:
    step = Step("idle")
    step.rows(NOON_MS, ("x", 1), ("y", 1))
    step.rows(NOON_MS + 1_000, ("x", 60))
    assert step.timers.due == [NOON_MS + 10_001]  # y is idle then
    back = NOON_MS - HOUR_MS
    assert not step.kinds(step.rows(back, ("x", 61)))  # an hour back
    (due,) = step.timers.due
    assert due == back + 10_001
    assert step.kinds(list(step.step.expired(0, due))) == {"data"}


def test_a_key_is_forgotten_after_its_time_not_an_hour_later() -> None:
    step = Step("forget", forget="60 s")
    step.rows(NOON_MS, ("x", 1))
    back = NOON_MS - HOUR_MS
    list(step.step.expired(0, back))  # any call: the clock is seen to be back
    (due,) = step.timers.due
    assert due <= back + 60_001


def test_only_a_clock_that_is_set_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"time": 1e9, "monotonic": 50.0}
    for name in now:
        monkeypatch.setattr(time, name, lambda name=name: now[name])
    watch = ClockWatch()
    for step, said in ((1.0, 0.0), (7200.0, 0.0), (-5.0, 0.0), (-3600.0, 3600.0), (1.0, 0.0)):
        now["time"] += step
        assert watch.set_back_s() == pytest.approx(said)
    now["monotonic"] += 60.0  # time passes on both
    now["time"] += 60.0
    assert watch.set_back_s() == 0.0


def test_a_backfill_goes_by_the_clock_of_its_first_start(tmp_path: Path) -> None:
    """However often it is cut off: else what waits by the clock would leave in between."""
    first = _begun_at(str(tmp_path))
    assert abs(first - time.time_ns()) < 600 * 10**9
    assert _begun_at(str(tmp_path)) == first
    (tmp_path / "begun").write_text("1e9")
    with pytest.raises(StateError, match="begun is corrupt: b'1e9'"):
        _begun_at(str(tmp_path))


def test_a_stream_whose_clock_is_set_back_is_started_again(
    spark: SparkSession,
    recording: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark would begin its next micro-batch an hour later."""
    out, steps = str(tmp_path / "out"), [3600.0]
    frames = ordered(stream_of(spark, recording.folder))
    rows = recording.table.num_rows
    seen: list[int] = []

    def set_back(watch: ClockWatch) -> float:
        return steps.pop() if steps and seen and seen[-1] >= 1 else 0.0

    monkeypatch.setattr(ClockWatch, "set_back_s", set_back)
    done = run_frames(
        frames, out, console=Console(file=io.StringIO()), available_now=False,
        interval="100 milliseconds",
        until=lambda summary: seen.append(summary.batches) or summary.rows_in == rows,
    )  # fmt: skip
    assert done.rows_in == rows
    assert "the clock was set back by 3600 s" in caplog.text
    newest = Epochs.at(out).newest()
    assert newest is not None
    assert newest.epoch == 2
    assert_same(written(out, frames), in_process(frames, recording.slices, end=False))
