"""Tidegate in process: the stages of a pipeline, all keys at once, rows as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidegate
from tidegate.batching import Batch
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Outcome
from tidegate.deltas import Compact
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import Synchronize
from tidegate.windows import Session, Tumbling, Window

VERSION = tidegate.__version__
PIECE = 1_000_000
DIMS = 64
GAP_NS = 500_000_000
TOPICS = ("lidar", "camera", "imu", "gps")


@dataclass(frozen=True)
class Given:
    """The two recordings, in memory."""

    rows: pa.RecordBatch
    deltas: pa.RecordBatch


def prepare(path: str) -> Given:
    files = path, path.replace(".parquet", ".deltas.parquet")
    return Given(*(pq.read_table(file).combine_chunks().to_batches()[0] for file in files))


def _run(rows: pa.RecordBatch, *stages: Any, key: str | None = "key") -> list[Outcome]:
    in_order = EventtimeWatermark("200 ms", watermark_per="tuple")
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    flow = Flow((in_order, *stages), key=key, decoder=decoder)
    out: list[Outcome] = []
    for first in range(0, rows.num_rows, PIECE):
        out += flow.process(rows.slice(first, PIECE))
    return out + flow.end()


def _data(outcomes: list[Outcome]) -> pa.Table:
    return pa.Table.from_batches([o.rows for o in outcomes if isinstance(o, Collection)])


def reorder(given: Given) -> pa.Table:
    return _data(_run(given.rows))


def tumbling(given: Given) -> pa.Table:
    aggregates = {"n": "count", "m": ("mean", "value")}
    stage = Window(Tumbling("1 s"), aggregates=aggregates, group_by="topic", keys="key")
    return _data(_run(given.rows.select(["key", "topic", "t", "value"]), stage))


def sessions(given: Given) -> pa.Table:
    gps = given.rows.select(["key", "t"]).filter(pc.equal(given.rows.column("topic"), 3))
    return _data(_run(gps, Window(Session("500 ms"), aggregates={"n": "count"}, keys="key")))


def sets(given: Given) -> pa.Table:
    rows = given.rows.select(["id", "key", "t", "name"])
    return _data(
        _run(rows, Synchronize(TOPICS, queue_size=50, topic="name", keys="key", unmatched=False))
    )


def batches(given: Given) -> pa.Table:
    stage = Batch("1 s", topic="name", gated=("lidar", "imu"), keys=("key",))
    return _data(_run(given.rows, stage))


def compaction(given: Given) -> pa.Table:
    stage = Compact(DIMS, "full_merge", time_threshold=None)
    return _data(_run(given.deltas, stage, key=None))


JOBS = {
    "reorder": reorder,
    "tumbling": tumbling,
    "sessions": sessions,
    "sets": sets,
    "batches": batches,
    "compaction": compaction,
}


def answer(job: str, result: pa.Table) -> dict[str, Any]:
    if job == "reorder":
        by_key = np.argsort(result["key"].to_numpy(), kind="stable")
        return {"id": result["id"].to_numpy()[by_key]}
    if job == "sets":
        ids = [pc.struct_field(result[name], "id").to_numpy() for name in TOPICS]
        return {"sets": np.stack(ids, axis=1)}
    if job == "batches":
        return {"id": result["id"].to_numpy()}
    if job == "compaction":
        vectors = result["vector"].combine_chunks().flatten().to_numpy().reshape(-1, DIMS)
        ids = result["vector_id"].to_pylist()  # one leaves several times: the last counts
        last = {name: row for row, name in enumerate(ids)}
        return {"vector_id": np.array(list(last)), "vectors": vectors[list(last.values())]}
    start = result["window_start_ns"].to_numpy()
    order = [start, result["topic"].to_numpy()] if job == "tumbling" else [start]
    rows = np.lexsort([*order, result["key"].to_numpy()])
    if job == "tumbling":
        names = {"key": "key", "topic": "topic", "start": "window_start_ns", "n": "n", "m": "m"}
    else:
        names = {"key": "key", "first": "window_start_ns", "last": "window_end_ns", "n": "n"}
    found = {name: result[column].to_numpy()[rows] for name, column in names.items()}
    if job == "sessions":
        found["last"] = found["last"] - GAP_NS  # a session ends where its gap does
    return found
