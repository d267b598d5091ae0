"""How fast batching decides: messages per second, and how that depends on streams and length.

    python benchmarks/batching.py

Prints medians of several rounds, contestants in turn within each round, in CPU time (so that a
busy machine does not count) with wall time beside it. The last lines are ratios of one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidegate.batching import Batch, Message, RateAwareBatcher
from tidegate.core.outcomes import Collection

SECOND = 10**9
ROUNDS = 5
RATE_HZ = 14


def stamps(n: int, streams: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and stream numbers of `streams` steady streams, interleaved as they would arrive."""
    pulse = np.arange(-(-n // streams))[:, None] * (SECOND / RATE_HZ)
    times = (pulse + np.arange(streams)[None, :] * 1e5).astype(np.int64).ravel()[:n]
    return times, np.tile(np.arange(streams), -(-n // streams))[:n]


def stage(n: int, streams: int, call: int, length: str) -> Callable[[], int]:
    """The pipeline stage over Arrow collections."""
    times, which = stamps(n, streams)
    names = pa.array([f"s{i}" for i in range(streams)])
    rows = pa.record_batch({"topic": names.take(pa.array(which)), "value": times.astype(float)})
    parts = [Collection.of(rows.slice(i, call), times[i : i + call]) for i in range(0, n, call)]
    batch = Batch(length, max_streams=64, max_rows=10**7)

    def once() -> int:
        state = batch.open()
        for part in parts:
            batch.process(state, part)
        return n

    return once


def messages(n: int, streams: int, call: int, length: str) -> Callable[[], int]:
    """The in-process batcher over Python messages."""
    times, which = stamps(n, streams)
    made = [
        Message(f"s{s}", t, None, True) for t, s in zip(times.tolist(), which.tolist(), strict=True)
    ]
    parts = [made[i : i + call] for i in range(0, n, call)]

    def once() -> int:
        batcher = RateAwareBatcher(length, max_rows=10**7)
        for part in parts:
            batcher.process(part)
        return n

    return once


CONTESTANTS = {
    "stage, calls of 10,000, 1 stream": stage(200_000, 1, 10_000, "1 s"),
    "stage, calls of 10,000, 16 streams": stage(200_000, 16, 10_000, "1 s"),
    "stage, calls of 10,000, 64 streams": stage(200_000, 64, 10_000, "1 s"),
    "stage, calls of 10,000, 16 streams, 10 s": stage(200_000, 16, 10_000, "10 s"),
    "stage, calls of 10,000, 16 streams, 60 s": stage(200_000, 16, 10_000, "60 s"),
    "stage, calls of 100, 16 streams": stage(10_000, 16, 100, "1 s"),
    "stage, one call of 1,000,000, 16 streams": stage(1_000_000, 16, 1_000_000, "1 s"),
    "in process, calls of 100, 1 stream": messages(50_000, 1, 100, "1 s"),
    "in process, calls of 100, 16 streams": messages(50_000, 16, 100, "1 s"),
    "in process, calls of 100, 64 streams": messages(50_000, 64, 100, "1 s"),
    "in process, calls of 100, 16 streams, 60 s": messages(50_000, 16, 100, "60 s"),
    "in process, calls of 10,000, 16 streams": messages(200_000, 16, 10_000, "1 s"),
}


def main() -> None:
    cpu: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    wall: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for once in CONTESTANTS.values():
        once()  # compile and warm up
    for _ in range(ROUNDS):
        for name, once in CONTESTANTS.items():
            begun_cpu, begun = time.process_time(), time.perf_counter()
            n = once()
            cpu[name].append(n / (time.process_time() - begun_cpu) / 1e6)
            wall[name].append(n / (time.perf_counter() - begun) / 1e6)
    print(f"{'':48}{'M/s cpu':>8}{'M/s wall':>10}")
    for name in CONTESTANTS:
        print(f"{name:48}{statistics.median(cpu[name]):8.2f}{statistics.median(wall[name]):10.2f}")
    middle = {name: statistics.median(values) for name, values in cpu.items()}
    flat = middle["stage, calls of 10,000, 16 streams"]
    print(f"64 streams against 16: {middle['stage, calls of 10,000, 64 streams'] / flat:.2f}")
    print(f"60 s against 1 s: {middle['stage, calls of 10,000, 16 streams, 60 s'] / flat:.2f}")
    whole = wall["stage, one call of 1,000,000, 16 streams"]
    print(f"a backlog of 1,000,000 messages: {1 / statistics.median(whole):.2f} s")


if __name__ == "__main__":
    main()
