"""Spark's own operators, all in Java: window functions in batch, event-time windows in streams."""

from __future__ import annotations

from typing import Any

import pyspark
from on_spark import Given, batch_job, in_time, session, sorted_answer, stream_job
from on_spark import prepare as prepare_files
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

VERSION = pyspark.__version__


def prepare(path: str) -> Given:
    return prepare_files(path, session())


def reorder(given: Given) -> DataFrame:
    rows = in_time(given.batch)
    return rows.repartition("key").sortWithinPartitions("key", "t", "id")


def tumbling(given: Given) -> DataFrame:
    return _by_second(in_time(given.batch).withColumn("start", F.expr("t div 1000000000")), "start")


def sessions(given: Given) -> DataFrame:
    return _by_session(_stamped(in_time(given.batch.where("topic = 3"))))


def stream_tumbling(stream: DataFrame) -> DataFrame:
    """Its watermark is one for all keys and moves between micro-batches."""
    rows = _stamped(stream).withWatermark("ts", "200 milliseconds")
    return _by_second(rows, F.window("ts", "1 second").alias("span")).select(
        "key",
        "topic",
        (F.unix_micros("span.start") / 1_000_000).cast("long").alias("start"),
        "n",
        "m",
    )


def stream_sessions(stream: DataFrame) -> DataFrame:
    return _by_session(_stamped(stream.where("topic = 3")).withWatermark("ts", "200 milliseconds"))


def _stamped(df: DataFrame) -> DataFrame:
    return df.withColumn("ts", F.timestamp_micros(F.expr("t div 1000")))


def _by_second(df: DataFrame, start: Any) -> DataFrame:
    groups = df.groupBy("key", "topic", start)
    return groups.agg(F.count("*").alias("n"), F.mean("value").alias("m"))


def _by_session(df: DataFrame) -> DataFrame:
    groups = df.groupBy("key", F.session_window("ts", "500 milliseconds"))
    found = groups.agg(F.min("t").alias("first"), F.max("t").alias("last"), F.count("*").alias("n"))
    return found.drop("session_window")


JOBS = {
    "reorder": batch_job(reorder),
    "tumbling": batch_job(tumbling),
    "sessions": batch_job(sessions),
    "stream_tumbling": stream_job(stream_tumbling),
    "stream_sessions": stream_job(stream_sessions),
}


def answer(job: str, rows: Any) -> dict[str, Any]:
    table = rows()
    if job == "reorder":
        # rows of a key lie in one partition, in order; which partition comes first is left open
        return by_key(table)
    if job.endswith("tumbling"):
        names = {name: name for name in ("key", "topic", "start", "n", "m")}
        found = sorted_answer(table, names, ["key", "topic", "start"])
        return {**found, "start": found["start"] * 10**9}
    names = {name: name for name in ("key", "first", "last", "n")}
    return sorted_answer(table, names, ["key", "first"])


def by_key(table: Any) -> dict[str, Any]:
    import numpy as np

    order = np.argsort(table["key"].to_numpy(), kind="stable")
    return {"id": table["id"].to_numpy()[order]}
