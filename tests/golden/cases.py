"""One case per operator: its settings, and the rows it gets before and after the snapshot.

A case must reach every array and table of its operator's state: rows that wait, several keys,
counters. The input is made by a fixed formula, not by a random generator, so that it is the same on
every machine and version of numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidegate import align
from tidegate.batching import Batch
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection
from tidegate.deltas import Add, Compact, Create, Offset, Scale, Sparse, VectorDelta
from tidegate.deltas.operations import Operation, rows_from
from tidegate.eventtime import EventtimeWatermark, ProcessTimeWatermark
from tidegate.sync import Synchronize
from tidegate.windows import Adaptive, CountWindow, Reemit, Session, Sliding, Tumbling, Window

MS = 1_000_000
TOPICS = ("camera", "lidar", "imu")


def messages(first: int, last: int) -> Collection:
    """Messages of three topics and two keys, a little out of order, some far too late."""
    number = np.arange(first, last)
    time_ns = number * 7 * MS + (number * 7919 % 11) * MS
    time_ns = np.where(number % 97 == 96, time_ns - 3000 * MS, time_ns)
    key = number % 2
    rows = pa.record_batch(
        {
            "key": pa.array([f"car-{k}" for k in key]),
            "topic": pa.array([TOPICS[n % 3] for n in number]),
            "id": pa.array(number),
            "value": pa.array((number * 37 % 101) / 4.0),
        }
    )
    return Collection(rows, time_ns, key.astype(np.int32), int(time_ns.max()))


def ahead(first: int, last: int) -> Collection:
    """The same, with a clock of each key that runs an hour ahead for a while: suspects wait."""
    whole = messages(first, last)
    id_ = whole.rows["id"].to_numpy()
    far = (id_ % 20 > 16) | ((id_ >= HALF - 6) & (id_ < HALF + 2))
    time_ns = np.where(far, whole.time_ns + 3_600_000 * MS, whole.time_ns)
    return dataclasses.replace(whole, time_ns=time_ns)


def deltas(first: int, last: int) -> Collection:
    """Vector deltas of two vectors per key: writes, sums, scales, some out of order, some that wait
    for a parent."""
    number = np.arange(first, last)
    time_ns = number * 5 * MS + (number * 7 % 3) * MS
    made = []
    for n in number.tolist():
        operation: Operation = Create([float(n), 1.0, -float(n % 5)])
        if n >= 4:
            changes = Add([0.5, 1.0, 0.0]), Scale(0.5), Sparse([n % 3], [0.5]), Offset(0.25)
            operation = changes[n % 4 - n // 4 % 2]
        wait = {30: 8, 21: 40}.get(n % 31)  # for a parent that comes later, or never
        parent = None if wait is None else f"d{n + wait}"
        made.append(VectorDelta(f"d{n}", f"v{n % 4}", operation, int(time_ns[n - first]), parent))
    keys = pa.array([f"shard-{n % 2}" for n in number])
    rows = rows_from(made).add_column(0, "key", keys)
    return Collection(rows, time_ns, (number % 2).astype(np.int32), int(time_ns.max()))


Case = tuple[Callable[[], tuple[Operator, ...]], Callable[[int, int], Collection]]


def behind_event_time(*stages: Operator) -> tuple[Operator, ...]:
    return (EventtimeWatermark("50 ms"), *stages)


CASES: dict[str, Case] = {
    "eventtime": (lambda: (EventtimeWatermark("50 ms", idle_timeout="1 s"),), messages),
    "eventtime-suspects": (
        lambda: (
            EventtimeWatermark(
                "50 ms", max_future_skew="1 s", skew_against="rows", skew_confirm=9,
                source="topic", max_sources=2,
            ),
        ),
        ahead,
    ),
    "process-time": (lambda: (ProcessTimeWatermark("100 ms"),), messages),
    "synchronize": (
        lambda: behind_event_time(
            Synchronize(TOPICS, queue_size=10, max_interval="40 ms", keys=("key",))
        ),
        messages,
    ),
    "synchronize-exact": (
        lambda: behind_event_time(
            Synchronize(TOPICS, queue_size=10, policy="exact", keys=("key",))
        ),
        messages,
    ),
    "align": (
        lambda: behind_event_time(
            align.Align(
                {"lidar": align.nearest("30 ms"), "imu": align.linear("80 ms")},
                reference="camera",
                keys=("key",),
            )
        ),
        messages,
    ),
    "episodes": (
        lambda: behind_event_time(
            align.Episodes(
                gap="60 ms",
                state="topic",
                within=("camera", "imu"),
                actions={"action": {"next": "value"}},
                keys=("key",),
            )
        ),
        messages,
    ),
    "align-grid": (
        lambda: behind_event_time(
            align.Align(
                {"lidar": align.next("60 ms"), "imu": align.mean("80 ms")},
                grid="30 Hz",
                missing="drop",
                keys=("key",),
            )
        ),
        messages,
    ),
    "batch": (lambda: behind_event_time(Batch("200 ms", keys=("key",))), messages),
    "window-tumbling": (
        lambda: behind_event_time(
            Window(
                Tumbling("200 ms"), late=Reemit("5 s"), keys=("key",),
                aggregates={"n": "count", "v": ("mean", "value")}, group_by=("topic",),
            )
        ),
        messages,
    ),
    "window-retractions": (
        lambda: behind_event_time(
            Window(
                Tumbling("200 ms"), late=Reemit("5 s", retract=True), keys=("key",),
                aggregates={"n": "count"},
            )
        ),
        messages,
    ),
    "window-sliding": (
        lambda: behind_event_time(
            Window(Sliding("300 ms", "100 ms"), aggregates={"v": ("sum", "value")}, keys=("key",))
        ),
        messages,
    ),
    "window-session": (
        lambda: behind_event_time(Window(Session("25 ms"), stats=True, keys=("key",))),
        messages,
    ),
    "window-count": (lambda: behind_event_time(Window(CountWindow(7), keys=("key",))), messages),
    "window-adaptive": (lambda: behind_event_time(Window(Adaptive(), keys=("key",))), messages),
    "compact": (
        lambda: behind_event_time(Compact(3, keys=("key",), delta_threshold=20)), deltas),
}  # fmt: skip
"""By name: the stages, and the rows from number `first` up to `last`."""

HALF, WHOLE = 120, 240
"""The snapshot is taken after row HALF; rows up to WHOLE follow, and the end."""
