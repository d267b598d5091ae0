"""The pure functions of batching against their recorded tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import load
from tidegate.batching import PulseGrid, StreamPeriodEstimator
from tidegate.batching.grid import refresh
from tidegate.batching.kernel import anchor_of, sort_rows
from tidegate.batching.layout import RING, ROW, STREAM


def grid_of(row: dict[str, int]) -> PulseGrid:
    return PulseGrid(row["origin_ns"], row["period_ns"], slots=1)


def pulse_index(row: dict[str, Any]) -> int:
    return grid_of(row).pulse_index(row["t_ns"])


def batch_base_index(row: dict[str, Any]) -> int:
    return grid_of(row).first_pulse(row["batch_start_ns"])


def slot_in_batch(row: dict[str, Any]) -> int:
    return grid_of(row).slot(row["t_ns"], row["batch_start_ns"])


def estimator(row: dict[str, Any]) -> int | None:
    stream = StreamPeriodEstimator()
    time_ns = 0
    stream.observe(time_ns)
    for diff in row["diffs_ns"]:
        time_ns += diff
        stream.observe(time_ns)
    return stream.rate_hz


def plausible_anchor(row: dict[str, Any]) -> int:
    times = row["timestamps_ns"]
    rows = np.zeros(len(times), ROW)
    rows["time"] = times
    numbers = np.arange(len(times))
    sort_rows(rows, numbers, 0, len(times), numbers.copy(), True)
    return int(anchor_of(rows, numbers, 0, len(times), row["batch_length_ns"]))


def refresh_grid(row: dict[str, Any]) -> list[int] | None:
    streams = np.zeros(1, STREAM)
    stream = streams[0]
    diffs = row["diffs_ns"][-RING:]
    stream["ring"][: len(diffs)] = diffs
    stream["tracked"], stream["diffs"], stream["last"] = 1, len(diffs), row["last_ts_ns"]
    if row["grid_before"]:
        stream["origin"], stream["period"], stream["slots"] = row["grid_before"]
    start, bucket = row["batch_start_ns"], row["bucket_ts_ns"] or [row["last_ts_ns"]]
    after = next((t for t in bucket if t >= start), bucket[0])
    refresh(stream, start, row["batch_length_ns"], bucket[0], after, np.zeros(RING), False)
    return [int(stream[at]) for at in ("origin", "period", "slots")] if stream["period"] else None


FUNCTIONS = {
    function.__name__: function
    for function in (
        pulse_index,
        batch_base_index,
        slot_in_batch,
        estimator,
        plausible_anchor,
        refresh_grid,
    )
}


@pytest.mark.parametrize("table", load("batching/unit_*.json"))
def test_table(table: dict[str, Any]) -> None:
    function = FUNCTIONS[table["function"]]
    wrong = [row for row in table["rows"] if function(row["in"]) != row["out"]]
    assert not wrong[:3]
