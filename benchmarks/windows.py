"""Windows in process against polars, in one run, contestants in turn, medians.

    python benchmarks/windows.py [rows in millions]

polars uses all cores (its thread pool); Tidegate's kernels use one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.core.outcomes import Collection, Watermark
from tidegate.windows import (
    AfterCount,
    AfterSize,
    AfterTime,
    AtWatermark,
    Everything,
    Memory,
    MemoryPressure,
    RateChange,
    Session,
    Sliding,
    Tumbling,
    Window,
    Windows,
)

ROUNDS = 7
SECOND = 10**9


def race(name: str, contestants: dict[str, Callable[[], object]]) -> None:
    """Run each in turn; medians and ratio of wall time, and the CPU time of all threads beside it:
    on a busy machine that is the steadier figure."""
    times: dict[str, list[float]] = {label: [] for label in contestants}
    spent: dict[str, list[float]] = {label: [] for label in contestants}
    results = {label: run() for label, run in contestants.items()}  # warm-up, and a check
    assert len(set(map(str, results.values()))) == 1, results
    for _ in range(ROUNDS):
        for label, run in contestants.items():
            began, used = time.perf_counter(), time.process_time()
            run()
            spent[label].append(time.process_time() - used)
            times[label].append(time.perf_counter() - began)
    medians = {label: statistics.median(taken) for label, taken in times.items()}
    cpu = {label: statistics.median(used) for label, used in spent.items()}
    (ours, mine), (theirs, other) = medians.items()
    print(
        f"{name:36s} {ours} {mine * 1e3:7.1f} ms (cpu {cpu[ours] * 1e3:6.1f})   "
        f"{theirs} {other * 1e3:7.1f} ms (cpu {cpu[theirs] * 1e3:6.1f})   "
        f"ratio {other / mine:5.2f} (cpu {cpu[theirs] / cpu[ours]:5.2f})",
        flush=True,
    )


def whole(rows: pa.RecordBatch, times: np.ndarray, wall_ns: int = 0) -> Collection:
    """A collection of a single key. Lanes are data, like the columns of polars' frame."""
    return Collection(rows, times, _lanes(len(times)), wall_ns)


@cache
def _lanes(rows: int) -> np.ndarray:
    return np.zeros(rows, np.int32)


def run_window(stage: Window, rows: pa.RecordBatch, times: np.ndarray, size: int) -> int:
    """All rows through a new state in collections of `size`, then the end; windows emitted."""
    state = stage.open()
    for first in range(0, len(times), size):
        part = times[first : first + size]
        stage.process(state, whole(rows.slice(first, size), part))
        stage.advance(state, Watermark.at(int(part[-1]) - 1))
    stage.flush(state)
    return int(stage.metrics(state)["windows_emitted"])


def main() -> None:
    n = int(float(sys.argv[1] if len(sys.argv) > 1 else 5) * 1_000_000)
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.integers(1, 2_000_000, n)).astype(np.int64)  # about 1,000 rows a second
    values = rng.normal(size=n)
    groups = rng.integers(0, 8, n)
    rows = pa.record_batch({"v": values, "g": groups})
    frame = pl.DataFrame({"t": pl.Series(times).cast(pl.Datetime("ns")), "v": values, "g": groups})
    frame = frame.set_sorted("t")
    print(f"{n:,} rows, {len(np.unique(times // SECOND)):,} seconds, polars threads "
          f"{pl.thread_pool_size()}")  # fmt: skip
    ours = {"n": "count", "s": ("sum", "v"), "m": ("mean", "v"), "hi": ("max", "v")}
    theirs = [
        pl.len().alias("n"),
        pl.col("v").sum().alias("s"),
        pl.col("v").mean().alias("m"),
        pl.col("v").max().alias("hi"),
    ]
    for size, label in ((n, "one collection"), (1_000_000, "collections of 1 M")):
        stage = Window(Tumbling("1 s"), aggregates=ours)
        race(
            f"tumbling 1 s, {label}",
            {
                "tidegate": lambda stage=stage, size=size: run_window(stage, rows, times, size),
                "polars": lambda: frame.group_by_dynamic("t", every="1s").agg(theirs).height,
            },
        )
    stage_g = Window(Tumbling("1 s"), aggregates=ours, group_by=("g",))
    race(
        "tumbling 1 s by 8 groups",
        {
            "tidegate": lambda: _windows(stage_g, rows, times),
            "polars": lambda: (
                frame.group_by_dynamic("t", every="1s", group_by="g").agg(theirs).height
            ),
        },
    )
    for step in (5, 1):
        stage_s = Window(Sliding("10 s", f"{step} s"), aggregates=ours)
        race(
            f"sliding 10 s every {step} s",
            {
                "tidegate": lambda stage_s=stage_s: _inner(stage_s, rows, times, 10 * SECOND),
                "polars": lambda step=step: _full(
                    frame.group_by_dynamic("t", every=f"{step}s", period="10s").agg(theirs), times
                ),
            },
        )
    gap = 1_990_000
    stage_e = Window(Session(gap), aggregates=ours)
    race(
        "sessions",
        {
            "tidegate": lambda: run_window(stage_e, rows, times, n),
            "polars": lambda: (
                frame.with_columns(
                    (pl.col("t").diff().dt.total_nanoseconds() > gap)
                    .fill_null(False)
                    .cum_sum()
                    .alias("k")
                )
                .group_by("k", maintain_order=True)
                .agg(theirs)
                .height
            ),
        },
    )
    ingest(rows, times)
    calls(rows, times)


def _windows(stage: Window, rows: pa.RecordBatch, times: np.ndarray) -> int:
    state = stage.open()
    stage.process(state, whole(rows, times))
    stage.flush(state)
    return int(stage.metrics(state)["rows_emitted"])


def _inner(stage: Window, rows: pa.RecordBatch, times: np.ndarray, size: int) -> int:
    """Sliding windows that lie wholly within the data: polars and we differ at the edges only."""
    state = stage.open()
    stage.process(state, whole(rows, times))
    stage.advance(state, Watermark.at(int(times[-1])))
    emitted = int(stage.metrics(state)["windows_emitted"])
    step = int(stage.window.step)  # type: ignore[union-attr, arg-type]
    before = sum(1 for k in range(1, size // step + 1)
                 if int(times[0]) // step * step - (k - 1) * step < int(times[0]))  # fmt: skip
    return emitted - before


def _full(frame: pl.DataFrame, times: np.ndarray) -> int:
    last = int(times[-1])
    done = frame.select((pl.col("t").cast(pl.Int64) + 10 * SECOND - 1 <= last)
                        & (pl.col("t").cast(pl.Int64) >= int(times[0])))  # fmt: skip
    return int(done.to_series().sum())


def calls(rows: pa.RecordBatch, times: np.ndarray) -> None:
    """CPU time of one call of `Windows` with few rows: taking them in, and with the watermark
    behind each collection, which emits about one window per thousand rows."""
    aggregates = {"n": "count", "m": ("mean", "v")}
    for size in (1000, 100):
        cuts = [slice(first, first + size) for first in range(0, 200 * size, size)]
        parts = [(rows.slice(cut.start, size), times[cut]) for cut in cuts]
        least = {"process": 9.0, "process and advance": 9.0}
        for _ in range(ROUNDS + 1):
            for what in least:
                windows = Windows(Tumbling("1 s"), aggregates=aggregates)
                began = time.process_time()
                for part, stamps in parts:
                    windows.process(part, stamps)
                    if what != "process":
                        windows.advance(int(stamps[-1]) - 1)
                taken = (time.process_time() - began) / len(parts) * 1e3
                least[what] = min(least[what], taken)
        for what, taken in least.items():
            print(f"a call with {size:5d} rows, {what:20s} {taken:6.3f} ms")


def ingest(rows: pa.RecordBatch, times: np.ndarray) -> None:
    """Rows a second with five triggers on every row, in collections of 10,000."""
    trigger = (
        AfterCount(500)
        | AfterSize(1 << 20)
        | AfterTime("5 s")
        | RateChange(0.9, "1 s")
        | MemoryPressure(0.9)
    )
    n = min(len(times), 2_000_000)
    for label, stage in (
        ("aggregated", Window(Everything(), trigger=trigger, memory=Memory(),
                              aggregates={"n": "count", "s": ("sum", "v")})),
        ("rows", Window(Everything(), trigger=trigger, memory=Memory())),
        ("tumbling 1 s, rows", Window(Tumbling("1 s"), trigger=trigger | AtWatermark(),
                                      memory=Memory(), in_order=True)),
    ):  # fmt: skip
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            state = stage.open()
            for first in range(0, n, 10_000):
                stage.process(
                    state,
                    Collection.of(
                        rows.slice(first, 10_000), times[first : first + 10_000], first * 1000
                    ),
                )
            stage.flush(state)
            taken.append(time.perf_counter() - began)
        rate = n / statistics.median(taken) / 1e6
        print(f"ingest, five triggers, {label:20s} {rate:6.2f} M rows/s")


if __name__ == "__main__":
    main()
