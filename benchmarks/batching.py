"""How fast batching decides: messages per second, and how that depends on streams and length.

    python benchmarks/batching.py              everything
    python benchmarks/batching.py --ratios     only the ratios to an argsort and take

Prints medians of several rounds, contestants in turn within each round, in CPU time (so that a
busy machine does not count) with wall time beside it. The last lines are ratios of one run: the
stage against `argsort` of the times (by key, then time) and `take` of the same rows, the least that
any operator with sorted output must do.
"""

from __future__ import annotations

import statistics
import sys
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


def keyed_rows(n: int, keys: int, streams: int) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
    """Rows, times and lanes of `keys` keys with `streams` streams each, in order of time."""
    every = keys * streams
    pulse = np.arange(-(-n // every))[:, None] * (SECOND / RATE_HZ)
    times = (pulse + np.arange(every)[None, :] * (SECOND / RATE_HZ / every)).astype(np.int64)
    which = np.tile(np.arange(every), -(-n // every))[:n]
    names = pa.array([f"s{i}" for i in range(streams)])
    time_ns = times.ravel()[:n]
    topic = names.take(pa.array(which % streams))
    rows = pa.record_batch({"topic": topic, "value": time_ns.astype(float)})
    return rows, time_ns, (which // streams).astype(np.int32)


def ratio(keys: int, streams: int, n: int, call: int, length: str) -> tuple[float, float]:
    """CPU time of the stage over that of argsort and take, and ns per row of the stage."""
    rows, times, lane = keyed_rows(n, keys, streams)
    cuts = [slice(i, i + call) for i in range(0, n, call)]
    parts = [Collection(rows.slice(cut.start, call), times[cut], lane[cut], 0) for cut in cuts]
    batch = Batch(length, max_rows=10**7)

    def by_stage() -> None:
        state = batch.open(keys)
        for part in parts:
            batch.process(state, part)

    def by_sort() -> None:
        for part in parts:
            order = np.lexsort((part.time_ns, part.lane)) if keys > 1 else np.argsort(part.time_ns)
            part.rows.take(pa.array(order))

    spent: dict[Callable[[], None], list[float]] = {by_stage: [], by_sort: []}
    for _ in range(ROUNDS + 1):
        for once, seconds in spent.items():
            begun = time.process_time()
            once()
            seconds.append(time.process_time() - begun)
    stage_s, sort_s = (statistics.median(spent[once][1:]) for once in (by_stage, by_sort))
    return stage_s / sort_s, stage_s / n * 1e9


RATIOS = {
    "1 stream": (1, 1, 400_000, 100_000, "1 s"),
    "16 streams": (1, 16, 400_000, 100_000, "1 s"),
    "16 streams, 10 s": (1, 16, 400_000, 100_000, "10 s"),
    "16 streams, 60 s": (1, 16, 400_000, 100_000, "60 s"),
    "16 streams, calls of 10,000": (1, 16, 200_000, 10_000, "1 s"),
    "100 keys": (100, 4, 400_000, 100_000, "1 s"),
    "100 keys, calls of 10,000": (100, 4, 400_000, 10_000, "1 s"),
    "10,000 keys": (10_000, 1, 800_000, 100_000, "1 s"),
    "10,000 keys, calls of 10,000": (10_000, 1, 400_000, 10_000, "1 s"),
}


def ratios() -> None:
    print(f"{'over argsort and take of the same rows':48}{'ratio':>8}{'ns/row':>10}")
    for name, settings in RATIOS.items():
        times, row_ns = ratio(*settings)
        print(f"{name:48}{times:8.1f}{row_ns:10.0f}", flush=True)


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
    if "--ratios" in sys.argv:
        ratios()
        return
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
    ratios()


if __name__ == "__main__":
    main()
