"""How the cost per message grows: with messages, keys, topics, queue size, tolerance, collections;
and what memory it takes.

    PYTHONPATH=benchmarks python benchmarks/growth.py [--largest 10000000] [--each 1000000]

Least CPU time of a few rounds, in ns per message; `x` is the cost against the first line of its
block. Flat is what we promise; what is not flat stands here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from suite.data import record
from suite.drawing import curves
from suite.results import write_note, write_picture
from suite.usage import peak_bytes

from tidegate.core.flow import Flow
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import ApproximateTime
from tidegate.windows import Tumbling, Window

ROUNDS = 3
PIECE = 1_000_000


def cost(run: Callable[[], Any], messages: int) -> float:
    """CPU nanoseconds per message, the least of the rounds after a warm-up."""
    run()
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return min(taken) / messages * 1e9


def block(title: str, cases: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Measure the cases one after the other, saying so."""
    print(title, file=sys.stderr)
    out = {}
    for label, measure in cases.items():
        out[label] = measure()
        print(f"  {label:>14s} {out[label]:8.1f}", file=sys.stderr, flush=True)
    return out


def fleet(messages: int, keys: int) -> pa.RecordBatch:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.parquet"
        record(path, messages, keys)
        return pq.read_table(path, columns=["key", "topic", "t"]).combine_chunks().to_batches()[0]


def flow(tolerance: str = "200 ms") -> Flow:
    """Event time and a window per second, key and topic."""
    stages = (
        EventtimeWatermark(tolerance, watermark_per="tuple"),
        Window(Tumbling("1 s"), aggregates={"n": "count"}, group_by="topic", keys="key"),
    )
    return Flow(stages, key="key", decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)))


def pipeline(rows: pa.RecordBatch, piece: int = PIECE, tolerance: str = "200 ms") -> int:
    made = flow(tolerance)
    out = 0
    for first in range(0, rows.num_rows, piece):
        out += len(made.process(rows.slice(first, piece)))
    return out + len(made.end())


def of_pipeline(messages: int, keys: int) -> float:
    return cost(partial(pipeline, fleet(messages, keys)), messages)


def of_pieces(rows: pa.RecordBatch, piece: int, tolerance: str) -> float:
    return cost(partial(pipeline, rows, piece, tolerance), rows.num_rows)


def streams(topics: int, messages: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    each = messages // topics
    t = (np.arange(each)[:, None] * 10**8 + rng.integers(0, 10**8, topics)).ravel()
    t = t + rng.normal(0, 5e6, len(t)).astype(np.int64)
    order = np.argsort(t, kind="stable")
    return np.tile(np.arange(topics), each)[order], t[order]


def of_sync(topics: int, queue: int, messages: int) -> float:
    given = streams(topics, messages)
    names = [f"t{number}" for number in range(topics)]
    return cost(lambda: ApproximateTime(names, queue_size=queue).process(*given), messages)


def memory(messages: int, keys: int) -> float:
    """MB a process of its own has resident at most, reading the recording piece by piece."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.parquet"
        record(path, messages, keys)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_resident, (str(path),)) / 2**20


def _resident(path: str) -> int:
    made = flow()
    for rows in pq.ParquetFile(path).iter_batches(100_000, columns=["key", "topic", "t"]):
        made.process(rows)
    made.end()
    return peak_bytes()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=10**7, help="most messages")
    parser.add_argument("--each", type=int, default=10**6, help="messages of the other blocks")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    n = given.each
    sizes = [size for size in (10**4, 10**5, 10**6, 10**7) if size <= given.largest]
    rows = fleet(n, 100)
    blocks = {
        "ns per message, by messages (100 keys)": {
            f"{size:,}": partial(of_pipeline, size, 100) for size in sizes
        },
        f"ns per message, by keys ({n:,} messages)": {
            f"{keys:,}": partial(of_pipeline, n, keys) for keys in (1, 10, 100, 1000, 10_000)
        },
        "ns per message, by rows per collection": {
            f"{piece:,}": partial(of_pieces, rows, piece, "200 ms")
            for piece in (1_000_000, 100_000, 10_000, 1000)
        },
        "ns per message, by tolerance": {
            tolerance: partial(of_pieces, rows, 100_000, tolerance)
            for tolerance in ("50 ms", "200 ms", "1 s", "6 s")
        },
        "sync: ns per message, by topics (queue 10)": {
            f"{topics}": partial(of_sync, topics, 10, n) for topics in (2, 3, 5, 9, 16, 32, 64)
        },
        "sync: ns per message, by queue size (3 topics)": {
            f"{queue:,}": partial(of_sync, 3, queue, n) for queue in (2, 10, 100, 1000, 10_000)
        },
        "MB resident, by messages (100 keys)": {
            f"{size:,}": partial(memory, size, 100) for size in sizes
        },
        f"MB resident, by keys ({n:,} messages)": {
            f"{keys:,}": partial(memory, n, keys) for keys in (1, 100, 10_000)
        },
    }
    found = {title: block(title, cases) for title, cases in blocks.items()}
    text = section(found)
    print(text)
    if not given.no_report:
        picture = write_picture("growth", curves("in process", found, ""))
        write_note("growth", f"{text}\n\n{picture}")


def section(found: dict[str, dict[str, float]]) -> str:
    lines = [
        "# How costs grow, in process",
        "",
        f"`benchmarks/growth.py`, {time.strftime('%Y-%m-%d %H:%M')}: event time (200 ms) and a "
        "count per second, key and topic; sync is the in-process synchroniser. Least CPU time of "
        f"{ROUNDS} rounds. Memory is the peak of a process of its own that reads the recording in "
        "collections of 100,000, Python, numba and Arrow included. `x` is against the first.",
    ]
    for title, points in found.items():
        first = next(iter(points.values()))
        lines += ["", f"| {title} | {' | '.join(points)} |", "|---" * (len(points) + 1) + "|"]
        lines.append("| | " + " | ".join(f"{value:.0f}" for value in points.values()) + " |")
        lines.append("| x | " + " | ".join(f"{v / first:.2f}" for v in points.values()) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
