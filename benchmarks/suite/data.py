"""The recording all contestants get: a fleet's messages in order of arrival."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RATES_HZ = {"lidar": 10, "camera": 30, "imu": 100, "gps": 5}
TOPICS = list(RATES_HZ)
START_NS = 1_700_000_000 * 10**9
DISORDER_NS = 200_000_000
LATE_NS = 5 * 10**9


def record(path: Path, messages: int, keys: int, seed: int = 0) -> None:
    """`messages` of `keys` vehicles: jitter, a phase per stream, 1 % drops, disorder of up to
    200 ms, and 0.1 % that come five seconds late.

    Columns: id (place in order of arrival), key and topic (numbers), t and arrival (ns), value.
    """
    rng = np.random.default_rng(seed)
    per_second = sum(RATES_HZ.values()) * 0.99
    seconds = messages / (keys * per_second) * 1.02 + 1
    parts: list[tuple[np.ndarray, ...]] = []
    for number, rate in enumerate(RATES_HZ.values()):
        period = 10**9 // rate
        count = int(seconds * rate)
        pulse = np.arange(count) * period
        for key in range(keys):
            t = pulse + rng.integers(0, period) + rng.normal(0, 0.02 * period, count)
            t = t[rng.random(count) > 0.01].astype(np.int64)
            parts.append((np.full(len(t), key), np.full(len(t), number), t))
    key, topic, t = (np.concatenate(column) for column in zip(*parts, strict=True))
    delay = rng.integers(0, DISORDER_NS, len(t))
    late = rng.random(len(t)) < 0.001
    arrival = t + np.where(late, LATE_NS, delay)
    order = np.argsort(arrival, kind="stable")[:messages]
    if len(order) < messages:
        raise AssertionError(f"made {len(order)} of {messages} messages")
    table = pa.table(
        {
            "id": np.arange(messages),
            "key": key[order].astype(np.int32),
            "topic": topic[order].astype(np.int32),
            "t": START_NS + t[order],
            "arrival": START_NS + arrival[order],
            "value": rng.normal(size=messages),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
