"""Synchronisation: throughput of `process` and `push`, and against as-of joins on the same data.

    python benchmarks/sync.py [messages]

Prints figures of this run only. numpy's stable argsort of 5 M int64 is printed beside them: it says
how fast (and how busy) the machine was. Contestants take turns. Given are the median wall time of
the rounds, and the least processor time: on a busy machine only that one is the contestant's own.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl

from tidegate.sync import ApproximateTime

ROUNDS = 5
PERIOD_NS = 100_000_000


def recording(topics: int, messages: int, jitter: float = 0.05, seed: int = 0) -> tuple[Any, Any]:
    """Topics of one rate with a phase each, normal jitter, in order of time."""
    rng = np.random.default_rng(seed)
    each = messages // topics
    times, numbers = [], []
    for topic in range(topics):
        t = np.arange(each) * PERIOD_NS + rng.integers(0, PERIOD_NS)
        times.append(np.sort(t + rng.normal(0, jitter * PERIOD_NS, each).astype(np.int64)))
        numbers.append(np.full(each, topic))
    t, k = np.concatenate(times), np.concatenate(numbers)
    order = np.argsort(t, kind="stable")
    return k[order].astype(np.int64), t[order]


def timed(function: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def contest(contestants: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float, Any]]:
    """Median wall seconds and least processor seconds of each, and its last result."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    last: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for name, function in contestants.items():
            wall, cpu, last[name] = timed(function)  # only the last is kept: memory is not a result
            runs[name].append((wall, cpu))
    return {
        name: (statistics.median(r[0] for r in each), min(r[1] for r in each), last[name])
        for name, each in runs.items()
    }


def names(topics: int) -> list[str]:
    return [f"t{k}" for k in range(topics)]


def arrays(messages: int) -> None:
    unsorted = np.random.default_rng(0).integers(0, 2**60, 5_000_000)
    cases: dict[str, Callable[[], Any]] = {
        "numpy stable argsort, 5 M int64": lambda: np.argsort(unsorted, kind="stable")
    }
    for topics in (2, 3, 5, 9, 64):
        k, t = recording(topics, messages)
        for queue in (10, 1000):
            cases[f"process, {topics} topics, queue {queue}"] = partial(
                lambda n, q, k, t: len(ApproximateTime(names(n), queue_size=q).process(k, t)),
                topics,
                queue,
                k,
                t,
            )
    print(f"{'':40} {'s':>7} {'cpu s':>7} {'M msg/s':>8} {'per cpu':>8}")
    for name, (wall, cpu, result) in contest(cases).items():
        line = f"{name:40} {wall:7.3f} {cpu:7.3f}"
        if name.startswith("process"):
            line += f" {messages / wall / 1e6:8.1f} {messages / cpu / 1e6:8.1f}  {result} sets"
        print(line)


def one_at_a_time(messages: int) -> None:
    k, t = recording(3, messages)
    given = [(f"t{topic}", time_ns) for topic, time_ns in zip(k.tolist(), t.tolist(), strict=True)]

    def push() -> int:
        sync = ApproximateTime(names(3), queue_size=10)
        return sum(len(sync.push(topic, time_ns, time_ns)) for topic, time_ns in given)

    wall, cpu, sets = contest({"push": push})["push"]
    print(
        f"\npush, 3 topics, with payloads: {len(given) / wall / 1e6:.2f} M msg/s, "
        f"{len(given) / cpu / 1e6:.2f} M per cpu second, {sets} sets"
    )


def as_of_joins(messages: int, topics: int = 3) -> None:
    """The first topic is the reference that joins need. Everyone starts from the same recording,
    interleaved in order of time; polars is also given its tables split beforehand."""
    k, t = recording(topics, messages)
    frame = pd.DataFrame({"k": k, "t": t})
    table = pl.DataFrame({"k": k, "t": t}).set_sorted("t")
    parts = [
        table.filter(pl.col("k") == n).select("t", pl.col("t").alias(f"t{n}"))
        for n in range(topics)
    ]
    database = duckdb.connect()
    database.execute("set threads=1")
    database.register("frame", frame)
    database.execute("create table recording as select * from frame")

    def by_pandas() -> Any:
        out = None
        for n in range(topics):
            part = frame.loc[frame["k"] == n, ["t"]]
            part = part.assign(**{f"t{n}": part["t"]})
            out = part if out is None else pd.merge_asof(out, part, on="t", direction="nearest")
        return out[names(topics)].to_numpy()

    def by_polars_split(parts: Any = parts) -> Any:
        out = parts[0]
        for other in parts[1:]:
            out = out.join_asof(other, on="t", strategy="nearest")
        return out.select(names(topics)).to_numpy()

    def by_polars() -> Any:
        return by_polars_split(
            [
                table.filter(pl.col("k") == n).select("t", pl.col("t").alias(f"t{n}"))
                for n in range(topics)
            ]
        )

    def by_duckdb() -> Any:
        first, *others = (f"(select t as t{n} from recording where k = {n})" for n in range(topics))
        joins = " ".join(f"asof join {o} on t0 >= t{n}" for n, o in enumerate(others, 1))
        columns = ", ".join(names(topics))
        return database.execute(f"select {columns} from {first} {joins}").df().to_numpy()

    def by_tidegate() -> Any:
        return ApproximateTime(names(topics), queue_size=10).process(k, t).times_ns

    results = contest(
        {
            "tidegate": by_tidegate,
            "pandas merge_asof nearest": by_pandas,
            "polars join_asof nearest": by_polars,
            "the same, tables split beforehand": by_polars_split,
            "duckdb asof join (backward only)": by_duckdb,
        }
    )
    ours = results["tidegate"]
    print(f"\n{messages} messages of {topics} topics")
    print(
        f"{'':34} {'s':>7} {'cpu s':>7} {'our cpu':>9} {'median spread':>14} {'99 %':>9} "
        f"{'rows':>8} {'used twice':>11}"
    )
    for name, (wall, cpu, times) in results.items():
        spread = (times.max(axis=1) - times.min(axis=1)) / 1e6
        twice = sum(len(column) - len(np.unique(column)) for column in times.T)
        print(
            f"{name:34} {wall:7.3f} {cpu:7.3f} {ours[1] / cpu:8.2f}x {np.median(spread):11.3f} ms "
            f"{np.percentile(spread, 99):6.1f} ms {len(times):8} {twice:11}"
        )


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    arrays(size)
    one_at_a_time(min(size, 300_000))
    as_of_joins(size)
    as_of_joins(size, 9)
