"""How the cost per message grows: with messages, keys, topics, queue size, tolerance, collections.

    PYTHONPATH=benchmarks python benchmarks/growth.py [--largest 1000000]

Least CPU time of a few rounds, in ns per message; the last column is the cost against the first
line of its block. Flat is what we promise; what is not flat stands here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from suite.data import record

from tidegate.core.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.core.flow import Flow
from tidegate.core.sync import ApproximateTime
from tidegate.core.windows import Tumbling, Window

ROUNDS = 3


def cost(run: Callable[[], Any], messages: int) -> float:
    """CPU nanoseconds per message, the least of the rounds after a warm-up."""
    run()
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return min(taken) / messages * 1e9


def block(title: str, lines: Iterable[tuple[str, float]]) -> None:
    first = None
    print(f"\n{title}", flush=True)
    for label, ns in lines:
        first = first or ns
        print(f"  {label:>14s} {ns:8.0f} ns   {ns / first:5.2f}x", flush=True)


def fleet(messages: int, keys: int) -> pa.RecordBatch:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.parquet"
        record(path, messages, keys)
        return pq.read_table(path).combine_chunks().to_batches()[0]


def pipeline(rows: pa.RecordBatch, piece: int = 1_000_000, tolerance: str = "200 ms") -> int:
    """Event time and a window per second, key and topic."""
    stages = (
        EventtimeWatermark(tolerance, watermark_per="tuple"),
        Window(Tumbling("1 s"), aggregates={"n": "count"}, group_by="topic", keys="key"),
    )
    flow = Flow(stages, key="key", decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)))
    out = 0
    for first in range(0, rows.num_rows, piece):
        out += len(flow.process(rows.slice(first, piece)))
    return out + len(flow.end())


def streams(topics: int, messages: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    each = messages // topics
    t = (np.arange(each)[:, None] * 10**8 + rng.integers(0, 10**8, topics)).ravel()
    t = t + rng.normal(0, 5e6, len(t)).astype(np.int64)
    order = np.argsort(t, kind="stable")
    return np.tile(np.arange(topics), each)[order], t[order]


def sync(topics: int, queue: int, given: tuple[np.ndarray, np.ndarray]) -> Callable[[], Any]:
    names = [f"t{number}" for number in range(topics)]
    return lambda: ApproximateTime(names, queue).process(*given)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=1_000_000)
    n = parser.parse_args().largest
    sizes = [size for size in (10**4, 10**5, 10**6, 10**7) if size <= n]
    block(
        "event time + window, messages (100 keys)",
        ((f"{size:,}", cost(partial(pipeline, fleet(size, 100)), size)) for size in sizes),
    )
    block(
        f"event time + window, keys ({n:,} messages)",
        (
            (f"{keys:,}", cost(partial(pipeline, fleet(n, keys)), n))
            for keys in (1, 10, 100, 1000, 10_000)
        ),
    )
    rows = fleet(n, 100)
    block(
        "event time + window, collections",
        (
            (f"{piece:,}", cost(partial(pipeline, rows, piece), n))
            for piece in (1_000_000, 100_000, 10_000, 1000)
        ),
    )
    block(
        "event time + window, tolerance",
        (
            (tolerance, cost(partial(pipeline, rows, 100_000, tolerance), n))
            for tolerance in ("50 ms", "200 ms", "1 s", "6 s")
        ),
    )
    block(
        "sync, topics (queue 10)",
        (
            (f"{topics}", cost(sync(topics, 10, streams(topics, n)), n))
            for topics in (2, 3, 5, 9, 16, 32, 64)
        ),
    )
    given = streams(3, n)
    block(
        "sync, queue size (3 topics)",
        ((f"{queue:,}", cost(sync(3, queue, given), n)) for queue in (2, 10, 100, 1000, 10_000)),
    )


if __name__ == "__main__":
    main()
