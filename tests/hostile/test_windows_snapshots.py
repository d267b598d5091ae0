"""Crafted snapshots of windows: refused with a StateError, or used without a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection, Late, Watermark
from tidegate.testing.snapshots import assert_survives_crafted
from tidegate.windows import (
    Accumulation,
    Adaptive,
    AfterCount,
    AfterTime,
    Aggregate,
    AtWatermark,
    Calendar,
    CountWindow,
    Cumulate,
    Everything,
    Fixed,
    Fold,
    LookBack,
    Memory,
    Once,
    RateChange,
    Reemit,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    Window,
)


class Longest(Fold):
    """The length of the longest text."""

    type = state_type = pa.int64()

    def init(self) -> int:
        return 0

    def is_state(self, state: int | None) -> bool:
        return state is not None

    def add(self, state: int, values: pa.Array) -> int:
        return max([state, *(len(v or "") for v in values.to_pylist())])

    def merge(self, left: int, right: int) -> int:
        return max(left, right)


SUMS: dict[str, Any] = {
    "n": "count", "s": ("sum", "v"), "f": ("first", "g"), "hi": ("max", "v"), "w": ("mean", "i"),
}  # fmt: skip
STAGES = {
    "tumbling": Window(Tumbling(10), aggregates=SUMS, group_by="g", keys="k", complete=True),
    "rows": Window(
        Tumbling(10), AfterCount(3) | AfterTime(9), deduplicate_by="i", stats=True, affected="g",
        memory=Memory(5000),
    ),
    "reemit": Window(
        Tumbling(10), AtWatermark(early=Once(AfterCount(2))), Reemit(50, retract=True),
        aggregates=SUMS, keys="k",
    ),
    "reemit rows": Window(Sliding(20, 10), late=Reemit(50, retract=True)),
    "accumulating": Window(
        Tumbling(10), AfterCount(2), accumulation=Accumulation.ACCUMULATING,
        aggregates={"q": ("quantile", "v", 0.5), "t": ("top", "v", 2)},
    ),
    "sessions": Window(
        Session(4), aggregates={"x": Aggregate(Longest(), "g"), **SUMS}, late=Reemit(30)
    ),
    "session rows": Window(Session(4), AfterCount(4)),
    "sliding": Window(Sliding(25, 10), aggregates={**SUMS, "a": ("approx_quantile", "v", 0.5)}),
    "cumulate": Window(Cumulate(40, 10), aggregates=SUMS, group_by=("g",)),
    "calendar": Window(Calendar("day", "Europe/Berlin"), aggregates=SUMS),
    "count": Window(CountWindow(3), aggregates=SUMS),
    "state": Window(StateWindow(When("g", "==", "a"), When("g", "==", "b"), ("k",))),
    "everything": Window(Everything(), RateChange(0.5, 5), aggregates={"t": ("min", "g")}),
    "adaptive": Window(Adaptive(5, 50, 3)),
    "fixed": Window(Fixed(5), aggregates=SUMS, timestamp="earliest"),
    "look back": Window(LookBack(6, 3), aggregates=SUMS),
    "look back rows": Window(LookBack(6, 3)),
}  # fmt: skip


def some_rows(start: int, wall: int) -> Collection:
    n = 12
    batch = pa.record_batch(
        {
            "k": ["x", "y"] * (n // 2),
            "g": ["a", "b", "cc", None] * (n // 4),
            "i": np.arange(n) % 5,
            "v": pa.array([None if k % 7 == 3 else float(k) for k in range(n)]),
        }
    )
    times = start + np.array([3, 1, 4, 1, 5, 9, 2, 6, 12, 8, 17, 13])
    return Collection(batch, times, np.array([0, 1] * (n // 2), np.int32), wall)


@pytest.mark.parametrize("name", STAGES)
def test_a_crafted_state(name: str) -> None:
    stage = STAGES[name]
    first = stage.open(2)
    stage.process(first, some_rows(0, 1))
    stage.advance(first, Watermark(np.array([9, 9]), np.array([0, 1], np.int32)))
    stage.process(first, some_rows(10, 2))

    def use(changed: bytes) -> None:
        state = stage.restore(changed)
        state.grow(2)
        stage.metrics(state)
        stage.process(state, some_rows(12, 3))
        rows = some_rows(0, 4)
        stage.process_late(state, Late(rows.rows, rows.time_ns, rows.lane, 20 - rows.time_ns))
        stage.wake(state, 15)
        stage.advance(state, Watermark(np.array([18, 30]), np.array([0, 1], np.int32)))
        stage.snapshot(state)
        stage.flush(state)

    assert_survives_crafted(stage.snapshot(first), use, examples=60)
