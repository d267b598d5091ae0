"""Tidegate on Spark: the same stages as in process, on DataFrames and on streams."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyspark
from nothing import Nothing
from on_spark import Given, batch_job, sorted_answer, stream_job
from on_spark import prepare as prepare_files
from pyspark.sql import DataFrame

import tidegate
from tidegate.spark import frames, session
from tidegate.spark.frames_api import Frames
from tidegate.spark.query import stop_when_quiet
from tidegate.windows import Session, Tumbling

VERSION = f"{tidegate.__version__} on pyspark {pyspark.__version__}"
TOPICS = ["lidar", "camera", "imu", "gps"]
GAP_NS = 500_000_000


def prepare(path: str) -> Given:
    return prepare_files(path, session(settings={"spark.sql.shuffle.partitions": "2"}))


def _frames(df: DataFrame) -> Frames:
    return frames(df, key="key", time="t", topic="name", arrival="id")


def _timed(df: DataFrame) -> Frames:
    return _frames(df).event_time("unixtimestamp_ns", "200 ms")


def reorder(df: DataFrame) -> DataFrame:
    return _timed(df).data


def tumbling(df: DataFrame) -> DataFrame:
    aggregates = {"n": "count", "m": ("mean", "value")}
    needed = df.select("id", "key", "topic", "name", "t", "value")
    return _timed(needed).window(Tumbling("1 s"), aggregates=aggregates, group_by="topic").data


def sessions(df: DataFrame) -> DataFrame:
    gps = df.where("topic = 3").select("id", "key", "name", "t")
    return _timed(gps).window(Session("500 ms"), aggregates={"n": "count"}).data


def sets(df: DataFrame) -> DataFrame:
    needed = df.select("id", "key", "name", "t")
    return _timed(needed).synchronize(TOPICS, queue_size=50, unmatched=False).data


def batches(df: DataFrame) -> DataFrame:
    """Its batches may also wait by the clock, which stands still for those who catch up: so it does
    in `tidegate run`."""
    told = _timed(df).batch("1 s", gated=("lidar", "imu"))
    return replace(told, wall_ns=time.time_ns()).data


def nothing(df: DataFrame) -> DataFrame:
    return _frames(df).then(Nothing()).data


def identity(df: DataFrame) -> DataFrame:
    return df.mapInArrow(lambda batches: batches, df.schema)


MADE = {
    "reorder": reorder,
    "tumbling": tumbling,
    "sessions": sessions,
    "sets": sets,
    "batches": batches,
    "nothing": nothing,
    "identity": identity,
}


def _of_batch(make: Any) -> Any:
    return batch_job(lambda given: make(given.batch))


def _of_stream(name: str) -> Any:
    # With timers Spark runs empty micro-batches for ever: it is stopped as `tidegate run` does it.
    return stream_job(MADE[name], stop_when_quiet if name == "batches" else None)


JOBS = {name: _of_batch(make) for name, make in MADE.items()} | {
    f"stream_{name}": _of_stream(name) for name in MADE
}


def answer(job: str, rows: Any) -> dict[str, Any]:
    table = rows()
    job = job.removeprefix("stream_")
    if job == "sets":
        ids = [pc.struct_field(table[name], "id").to_numpy() for name in TOPICS]
        return {"sets": np.stack(ids, axis=1)}
    if job == "tumbling":
        names = {"key": "key", "topic": "topic", "start": "window_start_ns", "n": "n", "m": "m"}
        return sorted_answer(table, names, ["key", "topic", "start"])
    if job == "sessions":
        names = {"key": "key", "first": "window_start_ns", "last": "window_end_ns", "n": "n"}
        found = sorted_answer(table, names, ["key", "first"])
        return {**found, "last": found["last"] - GAP_NS}
    order = np.argsort(table["key"].to_numpy(), kind="stable")
    return {"id": table["id"].to_numpy()[order]}
