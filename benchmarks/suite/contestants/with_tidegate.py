"""Tidegate in process: the stages of a pipeline, all keys at once, rows as they arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidegate
from tidegate.core.batching import Batch
from tidegate.core.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.core.flow import Flow
from tidegate.core.model import Collection, Outcome
from tidegate.core.sync import Synchronize
from tidegate.core.windows import Session, Tumbling, Window

VERSION = tidegate.__version__
PIECE = 1_000_000
TOPICS = ("lidar", "camera", "imu", "gps")


def prepare(table: pa.Table) -> Any:
    names = pa.array(TOPICS)
    named = names.take(table["topic"].combine_chunks())
    return table.append_column("name", named).combine_chunks().to_batches()[0]


def _run(rows: pa.RecordBatch, *stages: Any) -> list[Outcome]:
    in_order = EventtimeWatermark("200 ms", watermark_per="tuple")
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    flow = Flow((in_order, *stages), key="key", decoder=decoder)
    out: list[Outcome] = []
    for first in range(0, rows.num_rows, PIECE):
        out += flow.process(rows.slice(first, PIECE))
    return out + flow.end()


def _data(outcomes: list[Outcome]) -> pa.Table:
    return pa.Table.from_batches([o.rows for o in outcomes if isinstance(o, Collection)])


def reorder(rows: pa.RecordBatch) -> pa.Table:
    return _data(_run(rows))


def tumbling(rows: pa.RecordBatch) -> pa.Table:
    aggregates = {"n": "count", "m": ("mean", "value")}
    return _data(
        _run(rows, Window(Tumbling("1 s"), aggregates=aggregates, group_by="topic", keys="key"))
    )


def sessions(rows: pa.RecordBatch) -> pa.Table:
    gps = rows.filter(pc.equal(rows.column("topic"), 3))
    return _data(_run(gps, Window(Session("500 ms"), aggregates={"n": "count"}, keys="key")))


def sets(rows: pa.RecordBatch) -> pa.Table:
    rows = rows.select(["id", "key", "t", "name"])
    return _data(_run(rows, Synchronize(TOPICS, 50, topic="name", keys="key", unmatched=False)))


def batches(rows: pa.RecordBatch) -> pa.Table:
    return _data(_run(rows, Batch("1 s", stream="name", gated=("lidar", "imu"), keys=("key",))))


JOBS = {
    "reorder": reorder,
    "tumbling": tumbling,
    "sessions": sessions,
    "sets": sets,
    "batches": batches,
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
    start = result["window_start_ns"].to_numpy()
    order = [start, result["topic"].to_numpy()] if job == "tumbling" else [start]
    rows = np.lexsort([*order, result["key"].to_numpy()])
    if job == "tumbling":
        names = {"key": "key", "topic": "topic", "start": "window_start_ns", "n": "n", "m": "m"}
    else:
        names = {"key": "key", "first": "window_start_ns", "n": "n"}
    return {name: result[column].to_numpy()[rows] for name, column in names.items()}
