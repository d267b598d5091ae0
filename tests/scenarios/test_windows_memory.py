"""Memory under a flood, as the allocators count it, and the budgets of the components."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection, Dropped
from tidegate.windows import Adaptive, Memory, RateMonitor, Tumbling, WindowOutput, Windows
from tidegate.windows.durable import SpillStore

MB = 1 << 20


@pytest.mark.parametrize("policy", ["flush", "reject", "spill", "block"])
def test_a_flood_holds_no_more_than_the_budget(policy: str, tmp_path: Path) -> None:
    """Ten times the budget comes in. What Python and Arrow have allocated in between says whether
    the accounting is right."""
    budget, sent, rows = 8 * MB, 80, 1000
    got: list[int] = []

    def emit(delivery: Collection) -> None:
        got.extend(delivery.rows.column("id").to_pylist())

    more: dict[str, Any] = {"spill": SpillStore(tmp_path / "s.db")} if policy == "spill" else {}
    windows = Windows(Tumbling("1 h"), memory=Memory(budget, policy=policy), emit=emit, **more)
    refused: list[int] = []
    body = pa.array(["x" * 1000] * rows)

    def send(number: int) -> None:
        ids = np.arange(number * rows, (number + 1) * rows)
        batch = pa.record_batch({"id": ids, "body": pa.concat_arrays([body])})
        for outcome in windows.process(batch, np.full(rows, number)):
            if isinstance(outcome, Dropped):
                refused.extend(outcome.rows.column("id").to_pylist())

    send(0)
    gc.collect()
    own = pa.total_allocated_bytes() - int(windows.metrics()["memory_used"])
    most = 0
    tracemalloc.start()
    try:
        for number in range(1, sent):
            send(number)
            python, _ = tracemalloc.get_traced_memory()
            ids = 64 * (len(got) + len(refused))  # this test's own notes
            most = max(most, python - ids + pa.total_allocated_bytes() - own)
    finally:
        tracemalloc.stop()
    windows.flush()
    assert most <= budget
    assert sorted(got + refused) == list(range(sent * rows))
    assert bool(refused) == (policy == "reject")


def test_rows_are_refused_when_open_windows_take_more_than_their_budget() -> None:
    """Which panes a window has emitted is part of what is kept, so flushing frees none of it; the
    watermark does."""
    small = Memory(components={"window_metadata": 20_000})
    windows = Windows(Tumbling(1), memory=small)
    out: list[int] = []
    refused: list[int] = []
    for number in range(50):
        ids = np.arange(number * 100, number * 100 + 100)
        for outcome in windows.process(pa.record_batch({"id": ids}), ids):
            if isinstance(outcome, Dropped):
                assert set(outcome.reason.to_pylist()) == {"memory_pressure"}
                refused += outcome.rows.column("id").to_pylist()
            else:
                assert isinstance(outcome, Collection)
                out += outcome.rows.column("id").to_pylist()
        if number == 25:
            for window in windows.advance(2599):
                assert isinstance(window, WindowOutput)
                out += window.rows.column("id").to_pylist()
            came = len(out) + len(refused)
    assert came == 2600
    assert 0 < len(refused) < 5000
    assert max(out) > 2600  # there was room again
    assert windows.metrics()["memory_used_window_metadata"] < 2 * 20_000  # and one collection
    for window in windows.flush():
        assert isinstance(window, WindowOutput)
        out += window.rows.column("id").to_pylist()
    assert sorted(out + refused) == list(range(5000))


def test_rows_are_refused_when_rates_take_more_than_their_budget() -> None:
    """Every lane of an adaptive window has a rate to remember, and flushing frees none of it."""
    budget = RateMonitor("10 s").nbytes + 100 * 40
    windows = Windows(Adaptive(), memory=Memory(components={"rate": budget}))
    came: list[int] = []
    refused: list[int] = []
    for lane in range(300):
        rows = pa.record_batch({"id": [lane]})
        lanes = np.array([lane], np.int32)
        for outcome in windows.process(rows, np.array([lane]), lane=lanes):
            if isinstance(outcome, Dropped):
                assert outcome.reason.to_pylist() == ["memory_pressure"]
                refused += outcome.rows.column("id").to_pylist()
            elif isinstance(outcome, Collection):
                came += outcome.rows.column("id").to_pylist()
    came += [i for w in windows.flush() for i in w.rows.column("id").to_pylist()]
    assert 0 < len(refused) < 250
    assert windows.metrics()["memory_used_rate"] <= budget + 128 * 40  # lanes grow in steps
    assert sorted(came + refused) == list(range(300))
