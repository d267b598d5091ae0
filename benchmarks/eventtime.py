"""The event-time stage in process, against the least that putting rows in order can cost.

The contestant: EventtimeWatermark on 5 M rows of a fleet (one key), in collections of 10,000, late
tolerance 200 ms. The yardstick, in the same run and on the same rows: one stable argsort of all
5 M times by numpy, and one Arrow take of all rows. Runs alternate, times are CPU times (both are
one thread), and the figure is the best of each against the other, because noise only ever adds: the
yardstick takes two to four times as long when its 800 MB are not in memory yet. It is a hard one:
the stage decides lateness, keeps state and hands on a watermark 500 times, while the yardstick sees
everything at once.

    python benchmarks/eventtime.py [--rows 5000000] [--rounds 5] [--keys 1] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Collection
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.fleet import fleet

COLLECTION = 10_000


def recording(rows: int, keys: int) -> tuple[list[Collection], np.ndarray, np.ndarray, pa.Table]:
    """Rows of a fleet as collections, and the same rows whole."""
    cars = 20
    table = fleet(cars, seconds=rows / cars / 143.5, seed=1, unreadable=0, broken_clock=False)
    table = table.slice(0, rows).combine_chunks()
    time_ns = table["stamp"].to_numpy()
    names = table["vehicle"].combine_chunks().dictionary_encode().indices.to_numpy()
    lane = (names % keys).astype(np.int32)
    parts = []
    for first in range(0, len(time_ns), COLLECTION):
        here = slice(first, first + COLLECTION)
        batch = table.slice(first, COLLECTION).combine_chunks().to_batches()[0]
        parts.append(Collection(batch, time_ns[here], lane[here]))
    return parts, time_ns, lane, table


def stage(parts: list[Collection], keys: int) -> float:
    operator = EventtimeWatermark("200 ms", watermark_per="tuple")
    state = operator.open(keys)
    started = time.process_time()
    rows = 0
    for part in parts:
        for outcome in operator.process(state, part):
            if outcome.kind in ("data", "late"):
                rows += outcome.rows.num_rows  # they are copied when they are looked at
    rows += sum(outcome.rows.num_rows for outcome in operator.flush(state))
    spent = time.process_time() - started
    assert rows == sum(map(len, parts)), "a row was lost"
    return spent


def yardstick(time_ns: np.ndarray, lane: np.ndarray, table: pa.Table, keys: int) -> float:
    started = time.process_time()
    order = np.argsort(time_ns, kind="stable")
    if keys > 1:
        order = order[np.argsort(lane[order], kind="stable")]
    table.take(pa.array(order))
    return time.process_time() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--keys", type=int, default=1)
    options.add_argument("--profile", action="store_true")
    asked = options.parse_args()
    parts, time_ns, lane, table = recording(asked.rows, asked.keys)
    stage(parts[:3], asked.keys)  # compile
    print(f"{len(time_ns):,} rows of {table.nbytes / len(time_ns):.0f} bytes, "
          f"{len(parts)} collections, {asked.keys} keys")  # fmt: skip
    if asked.profile:
        profile = cProfile.Profile()
        profile.runcall(stage, parts, asked.keys)
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)
        return
    stages, yardsticks = [], []
    for number in range(asked.rounds):
        if number % 2:
            ours = stage(parts, asked.keys)
            theirs = yardstick(time_ns, lane, table, asked.keys)
        else:
            theirs = yardstick(time_ns, lane, table, asked.keys)
            ours = stage(parts, asked.keys)
        stages.append(ours)
        yardsticks.append(theirs)
        speeds = [len(time_ns) / spent / 1e6 for spent in (ours, theirs)]
        print(f"stage {speeds[0]:5.2f} M rows/s   argsort + take {speeds[1]:5.2f} M rows/s   "
              f"ratio {theirs / ours:.2f}")  # fmt: skip
    pairs = zip(yardsticks, stages, strict=True)
    median = statistics.median(theirs / ours for theirs, ours in pairs)
    best = min(yardsticks) / min(stages)
    print(f"best against best {best:.2f}, median of the ratios {median:.2f} (wanted: >= 0.50)")


if __name__ == "__main__":
    main()
