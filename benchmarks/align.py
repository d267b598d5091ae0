"""Align in process against polars' as-of joins and `numpy.interp`, in one run, contestants in turn.

    python benchmarks/align.py [messages in millions]

A fleet of robots records a reference (30 Hz) and four topics (100, 100, 200 and 50 Hz) with jitter
into one table in the order of arrival, which is not the order of the stamps. Every contestant is
given that table. polars needs a frame per topic, sorted by time, and joins them one after the other
with `join_asof`; numpy interpolates one topic of one robot at a time, as scripts do. Where the task
begins with frames already split and sorted, which no recording gives, is a line of its own.

Answers are compared before anything is timed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate import align

ROUNDS = 5
RATES_HZ = {"camera": 30, "joint": 100, "wheel": 100, "imu": 200, "gps": 50}
TOPICS = [name for name in RATES_HZ if name != "camera"]
TOLERANCE_NS = 50_000_000
JITTER_NS = 2_000_000
DELAY_NS = 20_000_000
"""Messages arrive up to this much after their stamps: rows of the table are out of order."""


def recording(messages: int, robots: int) -> pa.Table:
    """One table of messages of all robots and topics, in the order of arrival."""
    rng = np.random.default_rng(1)
    seconds = messages / robots / sum(RATES_HZ.values())
    parts = []
    for robot in range(robots):
        for number, rate in enumerate(RATES_HZ.values()):
            n = int(seconds * rate)
            stamp = np.arange(n) * (10**9 // rate) + rng.integers(0, JITTER_NS, n) + number
            parts.append((np.full(n, robot), np.full(n, number), stamp))
    robot, topic, stamp = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(stamp + rng.integers(0, DELAY_NS, len(stamp)), kind="stable")
    topics = pa.DictionaryArray.from_arrays(pa.array(topic[order], pa.int32()), list(RATES_HZ))
    return pa.table(
        {
            "robot": pa.array(robot[order]),
            "topic": topics.cast(pa.string()),
            "stamp": pa.array(stamp[order]),
            "x": rng.normal(size=len(stamp)),
            "y": rng.normal(size=len(stamp)),
        }
    )


def race(name: str, contestants: dict[str, Callable[[], object]]) -> None:
    """Run each in turn; medians and ratio by the clock, and the CPU time of all threads."""
    times: dict[str, list[float]] = {label: [] for label in contestants}
    spent: dict[str, list[float]] = {label: [] for label in contestants}
    for _ in range(ROUNDS):
        for label, run in contestants.items():
            began, used = time.perf_counter(), time.process_time()
            run()
            spent[label].append(time.process_time() - used)
            times[label].append(time.perf_counter() - began)
    wall = {label: statistics.median(taken) for label, taken in times.items()}
    cpu = {label: statistics.median(used) for label, used in spent.items()}
    (ours, mine), (theirs, other) = wall.items()
    print(
        f"{name:44s} {ours} {mine * 1e3:7.1f} ms (cpu {cpu[ours] * 1e3:6.1f})   "
        f"{theirs} {other * 1e3:7.1f} ms (cpu {cpu[theirs] * 1e3:6.1f})   "
        f"ratio {other / mine:5.2f} (cpu {cpu[theirs] / cpu[ours]:5.2f})",
        flush=True,
    )


def ours(table: pa.Table, method: align.Method, key: str | tuple[()] = "robot") -> pa.Table:
    """One call."""
    return align.rows(
        table, key=key, topic="topic", time="stamp", reference="camera",
        topics=dict.fromkeys(TOPICS, method),
    )  # fmt: skip


def split(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """A sorted frame per topic, its columns named after it."""
    out = {}
    for name in RATES_HZ:
        mine = frame.filter(pl.col("topic") == name).drop("topic").sort("stamp")
        out[name] = mine.rename({"x": f"{name}_x", "y": f"{name}_y"}).with_columns(
            pl.col("stamp").alias(f"{name}_stamp")
        )
    return out


def joined(frames: dict[str, pl.DataFrame], by: str | None) -> pl.DataFrame:
    """As-of joins of the topics to the reference, one after the other."""
    out = frames["camera"]
    for name in TOPICS:
        out = out.join_asof(
            frames[name], on="stamp", by=by, strategy="nearest", tolerance=TOLERANCE_NS,
            check_sortedness=False,
        )  # fmt: skip
    return out


def interpolated(table: pa.Table, by: str) -> list[np.ndarray]:
    """numpy.interp per robot, topic and column, from the same table."""
    frame = table.to_pandas()
    out = []
    for _, robot in frame.groupby(by, sort=True):
        robot = robot.sort_values("stamp", kind="stable")
        at = robot.loc[robot["topic"] == "camera", "stamp"].to_numpy()
        for name in TOPICS:
            mine = robot[robot["topic"] == name]
            known = mine["stamp"].to_numpy()
            out += [np.interp(at, known, mine[column].to_numpy()) for column in ("x", "y")]
    return out


def check(mine: pa.Table, theirs: pl.DataFrame) -> None:
    """The same rows: sorted by robot and time, every topic's source time and value alike."""
    frame = theirs.sort("robot", "stamp", maintain_order=True)
    assert mine.num_rows == frame.height
    for name in TOPICS:
        for column, other in (("x", f"{name}_x"), ("time_ns", f"{name}_stamp")):
            got = mine.column(name).combine_chunks().field(column)
            assert got.equals(frame[other].to_arrow().cast(got.type)), (name, column)


def main() -> None:
    """Measure and print."""
    messages = int(float(sys.argv[1] if len(sys.argv) > 1 else 5) * 1_000_000)
    print(f"{messages:,} messages, 4 topics to a reference, polars threads {pl.thread_pool_size()}")
    nearest = align.nearest(TOLERANCE_NS)
    for robots in (1, 20, 1000):
        table = recording(messages, robots)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        mine = ours(table, nearest)
        check(mine, joined(split(frame), "robot"))
        race(
            f"nearest, {robots} robots, from one table",
            {
                "tidegate": lambda table=table: ours(table, nearest),
                "polars": lambda frame=frame: joined(split(frame), "robot"),
            },
        )
        ready = split(frame)
        race(
            f"nearest, {robots} robots, polars split before",
            {
                "tidegate": lambda table=table: ours(table, nearest),
                "polars": lambda ready=ready: joined(ready, "robot"),
            },
        )
        race(
            f"linear, {robots} robots",
            {
                "tidegate": lambda table=table: ours(table, align.linear("1 s")),
                "numpy": lambda table=table: interpolated(table, "robot"),
            },
        )


if __name__ == "__main__":
    main()
