"""What all contestants get: a fleet's messages and changes to vectors, in order of arrival."""

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

VECTORS, DIMS, CHANGED = 10_000, 64, 4
"""Job F: each delta writes `CHANGED` of the `DIMS` dimensions of one vector."""


def record(path: Path, messages: int, keys: int, seed: int = 0) -> None:
    """`messages` of `keys` vehicles: jitter, a phase per stream, 1 % drops, disorder of up to
    200 ms, and 0.1 % that come five seconds late.

    Columns: id (place in order of arrival), key and topic (numbers), name (of the topic), t and
    arrival (ns), value.
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
            "name": pa.array(TOPICS).take(pa.array(topic[order])),
            "t": START_NS + t[order],
            "arrival": START_NS + arrival[order],
            "value": rng.normal(size=messages),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    record_deltas(deltas_of(path), messages // 5, seed)


def deltas_of(path: Path) -> Path:
    """Where the deltas of a recording lie."""
    return path.with_suffix(".deltas.parquet")


def record_deltas(path: Path, deltas: int, seed: int = 0) -> None:
    """Writes of a few dimensions of a vector, disordered by up to 200 ms; 0.5 % come twice."""
    rng = np.random.default_rng(seed)
    number = np.arange(deltas)
    again = rng.random(deltas) < 0.005
    arrival = number * 1_000_000 + rng.integers(0, DISORDER_NS, deltas)
    sent = np.concatenate([number, number[again]])
    order = np.argsort(np.concatenate([arrival, arrival[again] + 50_000_000]), kind="stable")
    sent = sent[order][:deltas]
    vector = rng.integers(VECTORS, size=deltas)
    first, stride = (
        rng.integers(DIMS, size=(deltas, 1)),
        2 * rng.integers(DIMS // 2, size=(deltas, 1)),
    )
    places = ((first + (stride + 1) * np.arange(CHANGED)) % DIMS).astype(np.int32)
    values = rng.normal(size=(deltas, CHANGED))
    ends = pa.array(np.arange(0, deltas * CHANGED + 1, CHANGED, dtype=np.int32))
    table = pa.table(
        {
            "delta_id": pa.array(np.char.add("d", sent.astype("U10"))),
            "vector_id": pa.array(np.char.add("v", vector[sent].astype("U6"))),
            "op": pa.array(["sparse"]).take(pa.array(np.zeros(deltas, np.int64))),
            "t": START_NS + sent * 1_000_000,
            "indices": pa.ListArray.from_arrays(ends, pa.array(places[sent].ravel())),
            "values": pa.ListArray.from_arrays(ends, pa.array(values[sent].ravel())),
        }
    )
    pq.write_table(table, path)
