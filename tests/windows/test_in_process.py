"""Windows in process: early panes for want of memory, what calls return, retries, wall time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, ControlSignal, Dropped, Late
from tidegate.errors import ConfigError
from tidegate.eventtime import ProcessTimeWatermark
from tidegate.windows import (
    Accumulation,
    AfterCount,
    AfterTime,
    AtWatermark,
    Discard,
    Everything,
    Fixed,
    Memory,
    MemoryPressure,
    Once,
    StateWindow,
    Tumbling,
    Window,
    WindowOutput,
    Windows,
)


def batch(n: int, size: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"id": np.arange(n), "body": ["x" * size] * n})


def windows_of(items: list[Any]) -> list[WindowOutput]:
    return [item for item in items if isinstance(item, WindowOutput)]


@pytest.mark.parametrize("aggregates", [{}, {"n": "count"}], ids=["rows", "count"])
def test_an_emergency_flush_is_an_early_pane(aggregates: dict[str, Any]) -> None:
    got: list[Collection] = []
    windows = Windows(
        Tumbling("1 h"), memory=Memory(10_000), emit=got.append, aggregates=aggregates
    )
    for first in range(0, 400, 40):
        rows = batch(40)
        windows.process(rows, np.arange(first, first + 40))
    windows.flush()
    rows = [row for delivery in got for row in delivery.rows.to_pylist()]
    marks = sorted({(r["window_id"], r["pane"], r["revision"], r["timing"], r["final"])
                    for r in rows})  # fmt: skip
    assert len({pane for _, pane, *_ in marks}) == len(marks)  # never a second pane 0
    assert [pane for _, pane, *_ in marks] == list(range(len(marks)))
    assert {(timing, final) for *_, timing, final in marks[:-1]} <= {("early", False)}
    assert marks[-1][3:] == ("on_time", True)
    if not aggregates:
        assert len(marks) > 2
        assert len(rows) == 400


def test_accumulating_windows_accumulate_across_a_flush() -> None:
    stage = Window(
        Tumbling(1000), aggregates={"n": "count"}, accumulation=Accumulation.ACCUMULATING
    )
    state = stage.open()
    counts = []
    for number in range(3):
        stage.process(state, Collection.of(batch(5), np.arange(number * 5, number * 5 + 5)))
        for outcome in stage.control(state, ControlSignal("fire")):
            assert isinstance(outcome, Collection)
            counts += outcome.rows.select(["n", "pane", "timing", "trigger"]).to_pylist()
    assert [tuple(row.values()) for row in counts] == [
        (5, 0, "early", "fire"), (10, 1, "early", "fire"), (15, 2, "early", "fire"),
    ]  # fmt: skip


def test_push_returns_the_row_that_no_window_took() -> None:
    windows = Windows(Tumbling(10), late=Discard())
    windows.push({"v": 1}, 5)
    windows.advance(9)
    (dropped,) = windows.push({"v": 2}, 6)
    assert isinstance(dropped, Dropped)
    assert dropped.reason.to_pylist() == ["late"]
    aside = Windows(Tumbling(10))
    aside.push({"v": 1}, 5)
    aside.advance(9)
    (late,) = aside.push({"v": 2}, 6)
    assert isinstance(late, Late)
    assert late.lateness_ns.tolist() == [3]
    assert late.watermark_ns.tolist() == [9]
    large = Windows(Tumbling(10), memory=Memory(5000))
    (gone,) = large.push({"v": "x" * 6000}, 1)
    assert isinstance(gone, Dropped)
    assert gone.reason.to_pylist() == ["too_large"]
    state = Windows(StateWindow(False, True))
    (outside,) = state.push({"v": 1}, 1)
    assert isinstance(outside, Dropped)
    assert outside.reason.to_pylist() == ["no_open_window"]


def test_block_goes_on_when_its_sink_recovers_and_gives_up_when_it_does_not() -> None:
    got: list[int] = []
    failing = [True]
    tries = 0

    def emit(delivery: Collection) -> None:
        nonlocal tries
        tries += 1
        if failing[0] and tries < 5:
            raise OSError("the sink is down")
        got.extend(delivery.rows.column("id").to_pylist())

    windows = Windows(Tumbling("1 h"), memory=Memory(20_000, policy="block"), emit=emit)
    for first in range(0, 400, 50):
        rows = pa.record_batch({"id": np.arange(first, first + 50), "body": ["x" * 100] * 50})
        refused = windows.process(rows, np.arange(first, first + 50))
        assert not refused
    windows.flush()
    assert sorted(got) == list(range(400))

    def never(delivery: Collection) -> None:
        raise OSError("the sink is down")

    stuck = Windows(
        Tumbling("1 h"), memory=Memory(20_000, policy="block"), emit=never, block_for="50 ms"
    )
    out: list[Any] = []
    for first in range(0, 400, 50):
        rows = pa.record_batch({"id": np.arange(first, first + 50), "body": ["x" * 100] * 50})
        out += stuck.process(rows, np.arange(first, first + 50))
    assert {type(o) for o in out} == {Dropped}
    assert set(out[0].reason.to_pylist()) == {"memory_pressure"}


def test_wall_time_is_asked_for_where_it_is_needed() -> None:
    for windows in (Windows(Everything(), trigger=AfterTime("1 s")), Windows(Fixed("1 s"))):
        with pytest.raises(ConfigError, match="wall_ns"):
            windows.push({"v": 1}, 5)
    windows = Windows(Everything(), trigger=AfterTime(100))
    windows.push({"v": 1}, 5, wall_ns=7)
    assert windows.wake_at() == 107
    assert [w.trigger for w in windows_of(windows.tick(107))] == ["time"]


def test_memory_pressure_can_fire_with_the_default_budget() -> None:
    """Rows may take 50 of 100 MB: 80 per cent of that, not of the whole."""
    stage = Window(Everything(), trigger=MemoryPressure(0.8), memory=Memory(), size_column="size")
    state = stage.open()
    rows = pa.record_batch({"size": [1 << 20] * 60})
    out = stage.process(state, Collection.of(rows, np.arange(60)))
    assert [o.rows.column("trigger")[0].as_py() for o in out] == ["memory_pressure"]  # type: ignore[union-attr]
    assert out[0].rows.num_rows == 40  # type: ignore[union-attr]


def test_a_forgotten_key_says_so() -> None:
    stages = [ProcessTimeWatermark(), Window(Tumbling("1 h"), aggregates={"n": "count"})]
    flow = Flow(stages, key="k", forget="10 s")
    flow.process(pa.record_batch({"k": ["a"], "t": [1]}), wall_ns=0)
    out = flow.wake(11 * 10**9)
    assert [o.rows.column("trigger").to_pylist() for o in out if o.kind == "data"] == [
        ["forgotten"]
    ]  # type: ignore[union-attr]


def test_once_fires_once_per_window() -> None:
    stage = Window(Tumbling(100), AtWatermark(early=Once(AfterCount(2))), aggregates={"n": "count"})
    state = stage.open()
    out = stage.process(state, Collection.of(batch(20), np.arange(0, 200, 10)))
    state = stage.restore(stage.snapshot(state))  # that it fired is part of the state
    out += stage.process(state, Collection.of(batch(5), np.arange(95, 100)))
    out += stage.flush(state)
    rows = [row for o in out if isinstance(o, Collection) for row in o.rows.to_pylist()]
    assert [(r["window_start_ns"], r["n"], r["timing"]) for r in rows] == [
        (0, 2, "early"), (100, 2, "early"), (0, 13, "on_time"), (100, 8, "on_time"),
    ]  # fmt: skip
