"""Telemetry: means per second that are corrected when late readings come.

    python examples/telemetry_windows.py

A window is emitted when the watermark reaches its end. With `Reemit` a reading that comes later
makes a revision: the same window again, with a higher number, instead of being lost.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import tidegate as tg

SECOND = 10**9


def main() -> list[tuple[float, int, int, float]]:
    rng = np.random.default_rng(7)
    times = np.arange(0, 10 * SECOND, SECOND // 20)
    value = 20 + np.sin(times / SECOND) + rng.normal(0, 0.05, len(times))
    # most readings arrive at once, one in twenty two seconds later
    arrival = times + np.where(rng.random(len(times)) < 0.05, 2 * SECOND, 0)
    order = np.argsort(arrival, kind="stable")

    flow = tg.Flow(
        [
            tg.EventtimeWatermark("200 ms", watermark_per="tuple"),
            tg.Window(
                tg.Tumbling("1 s"),
                late=tg.windows.Reemit("5 s"),
                aggregates={"readings": "count", "mean": ("mean", "value")},
            ),
        ],
        decoder=tg.Decoder((tg.TimeColumn("t", "unixtimestamp_ns"),)),
    )
    rows = pa.record_batch({"t": times[order], "value": value[order]})
    outcomes = []
    for first in range(0, rows.num_rows, 10):  # as they come in, half a second at a time
        outcomes += flow.process(rows.slice(first, 10))
    emitted = []
    for outcome in [*outcomes, *flow.end()]:
        if isinstance(outcome, tg.Collection):
            for row in outcome.rows.to_pylist():
                start = row["window_start_ns"] / SECOND
                emitted.append((start, row["revision"], row["readings"], row["mean"]))
                note = f"  revision {row['revision']}" if row["revision"] else ""
                print(f"{start:4.0f} s  {row['readings']:3d} readings, {row['mean']:.3f}{note}")
    return emitted


if __name__ == "__main__":
    main()
